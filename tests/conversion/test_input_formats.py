"""Formats of inputs: known by their first bytes, asked for, or refused by name."""

from __future__ import annotations

import dataclasses
import gzip
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.formats.file_formats import HEAD_BYTES, format_of
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import (
    FORMATS,
    TFRECORD,
    RecordOptions,
    SourceSpec,
)
from gristmill.transforms.sources.input_files import InputFiles
from tests.support.other_formats import MAKERS, MORE
from tests.support.records import (
    array_record_bytes,
    frames_of,
    small_records,
    write_array_records,
)

DATA = frames_of([b"one", b"two"])


def refused(*patterns: object) -> str:
    with pytest.raises(InputError) as caught:
        find_inputs(list(map(str, patterns)))
    return str(caught.value)


def is_read(name: str) -> bool:
    """Whether files of a format are converted as they are."""
    compressed = any(name.startswith(f"{one}-") for one in ("gzip", "zlib", "zstd"))
    return any(
        name.removeprefix(f"{name[:4]}-compressed ") == known.found_as
        and (known.compressed or not compressed)
        for known in FORMATS.values()
    )


@pytest.mark.parametrize("name", [name for name in MAKERS if is_read(name)])
def test_each_format_that_is_read(tmp_path, name):
    (tmp_path / "in").write_bytes(MAKERS[name]())
    found = find_inputs([str(tmp_path / "in")])
    assert FORMATS[found.spec.format].found_as == name.rpartition("compressed ")[2]


def test_some_of_many(tmp_path):
    for number in range(5):
        (tmp_path / f"{number}.parquet").write_bytes(MAKERS["Parquet"]())
    (tmp_path / "a.csv").write_bytes(MAKERS["CSV"]())
    (tmp_path / "b").write_bytes(DATA)
    message = refused(tmp_path / "*")
    assert "6 of 7 input files are not TFRecord files" in message
    assert f"{tmp_path}/2.parquet and 2 more" in message
    assert "got:      Parquet (5), CSV (1)" in message
    assert (
        "or convert each format separately: `gristmill append` adds records" in message
    )


def test_array_records(tmp_path):
    write_array_records(tmp_path / "in", [b"one"])
    assert find_inputs([str(tmp_path / "in")]).spec.format == "arrayrecord"
    # What describes them is not one of them.
    (tmp_path / "dataset.json").write_bytes(MAKERS["JSON"]())
    assert "give their directory alone" in refused(tmp_path / "*")
    (tmp_path / "dataset.json").unlink()
    # Among TFRecord files they are refused.
    (tmp_path / "other").write_bytes(DATA)
    assert "`gristmill index`" in refused(tmp_path / "*")


@pytest.mark.parametrize(
    ("name", "cure"),
    [
        ("dataset.json", "a dataset of ArrayRecord files"),
        ("dataset_info.json", "give its directory alone"),
        ("features.json", "give its directory alone"),
    ],
)
def test_what_describes_a_dataset_among_the_inputs(tmp_path, name, cure):
    (tmp_path / name).write_bytes(MAKERS["JSON"]())
    (tmp_path / "in").write_bytes(DATA)
    assert cure in refused(tmp_path / "*")


@pytest.mark.parametrize(
    "damaged",
    [
        *(DATA[1:], bytes(4096), DATA[:5], gzip.compress(DATA, mtime=0)[:20]),
        *(b"\xff" * 4096, random.Random(1).randbytes(4096)),
    ],
    ids=["shifted", "zeros", "cut", "compressed and cut", "ones", "random"],
)
def test_damaged_files_of_the_right_format_are_left_to_their_reader(tmp_path, damaged):
    (tmp_path / "in").write_bytes(damaged)
    assert find_inputs([str(tmp_path / "in")]).spec.format == "tfrecord"


def test_a_stray_file_among_lines_is_named(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_bytes(MAKERS["JSON lines"]())
    (tmp_path / "README").write_bytes(MAKERS["text"]())
    message = refused(tmp_path / "*")
    assert "not a JSON lines file, but text\n" in message
    assert f"where:    {tmp_path}/README" in message
    assert "leave out other files than JSON lines" in message


@pytest.mark.parametrize("name", ["text", "CSV", "JSON lines"])
@pytest.mark.parametrize("damaged", [DATA[1:], bytes(100), DATA[:5]])
def test_text_beside_damaged_tfrecords_is_not_taken_for_the_data(
    tmp_path, name, damaged
):
    for number in range(3):
        (tmp_path / f"{number}.txt").write_bytes(MAKERS[name]())
    (tmp_path / "in").write_bytes(damaged)
    message = refused(tmp_path / "*")
    assert "3 of 4 input files are not TFRecord files" in message
    assert "`input_format`" in message
    # Nor is it set aside, all that there is to read.
    with pytest.raises(InputError, match="3 of 4 input files"):
        find_inputs([f"{tmp_path}/*"], allow_other_formats=True)


def test_empty_files_say_nothing_of_the_format_of_others(tmp_path):
    (tmp_path / "a").write_bytes(b"")
    (tmp_path / "b").write_bytes(MAKERS["JSON lines"]())
    found = find_inputs([f"{tmp_path}/*"], allow_empty_files=True)
    assert found.spec.format == "jsonl"


def test_a_format_that_is_asked_for_has_files_that_look_like_others(tmp_path):
    (tmp_path / "in").write_bytes(b'name\n"a text,\nof two lines"\n')
    assert find_inputs([str(tmp_path / "in")]).spec.format == "text"
    asked = RecordOptions(input_format="csv")
    assert find_inputs([str(tmp_path / "in")], options=asked).spec.format == "csv"


def test_some_but_not_all_where_damage_is_accepted(tmp_path):
    (tmp_path / "a").write_bytes(DATA)
    (tmp_path / "b").write_bytes(MAKERS["HTML"]())
    assert len(find_inputs([f"{tmp_path}/*"], allow_other_formats=True)) == 2
    with pytest.raises(InputError, match="unsupported format: HTML"):
        find_inputs([f"{tmp_path}/b"], allow_other_formats=True)


def name_of(data: bytes) -> str | None:
    found = format_of(data[:HEAD_BYTES])
    return None if found is None else found.name


@pytest.mark.parametrize(
    ("name", "make"), [*MAKERS.items(), *MORE], ids=[*MAKERS, *(n for n, _ in MORE)]
)
def test_each_is_named_with_what_to_do(name, make):
    found = format_of(make()[:HEAD_BYTES])
    assert found is not None
    assert found.name == name
    assert found.cure


@pytest.mark.parametrize("options", ["group_size:1", "transpose:true", "uncompressed"])
def test_array_records_of_any_options(tmp_path, options):
    data = array_record_bytes([b"one", b"two"], options=options, folder=str(tmp_path))
    assert name_of(data) == "ArrayRecord"


@pytest.mark.parametrize(
    ("compress", "name"),
    [
        (bytes, "TFRecord"),
        (gzip.compress, "gzip-compressed TFRecord"),
        (zlib.compress, "zlib-compressed TFRecord"),
    ],
)
def test_tfrecords_of_text(compress, name):
    assert name_of(compress(frames_of([b'{"a": 1}\n' * 999]))) == name


class TestDamagedTFRecords:
    """They are of no other format: only reading them tells what is damaged."""

    @given(small_records(), st.integers(0, 95), st.sampled_from([bytes, gzip, zlib]))
    def test_a_flipped_bit_of_the_first_header(self, records, bit, compression):
        data = frames_of([*records, b"record"])
        if compression is not bytes:
            data = compression.compress(data)
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        found = name_of(bytes(damaged))
        assert found is None or found.endswith("TFRecord")


SPECS = [
    TFRECORD,
    SourceSpec("tfrecord", "column:a", ("a", "b"), '{"a": "int64"}'),
]


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_survives_its_file(tmp_path, spec):
    assert SourceSpec.from_json(spec.to_json()) == spec
    (tmp_path / "in").write_bytes(frames_of([b"one"]))
    files = dataclasses.replace(find_inputs([str(tmp_path / "in")]), spec=spec)
    again = InputFiles.of_arrays(files.arrays())
    assert (again.spec, list(again.paths)) == (spec, list(files.paths))
    assert (again[0].spec or TFRECORD) == spec


@pytest.mark.parametrize("record", ["exam", "column", "column:", "line:a", ":"])
def test_records_of_no_kind_are_refused(record):
    with pytest.raises(InputError, match="unknown `record`"):
        RecordOptions(record=record)


@pytest.mark.parametrize("columns", [("",), ("a", ""), ("a", "b", "a")])
def test_columns_without_a_name_or_twice_are_refused(columns):
    with pytest.raises(InputError, match="`columns` names"):
        RecordOptions(columns=columns)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (RecordOptions(columns=("a", "b")), "`columns` a,b"),
        (RecordOptions(record="example"), "`record` example"),
    ],
)
def test_options_for_columns_are_not_for_tfrecords(tmp_path, options, named):
    (tmp_path / "in").write_bytes(frames_of([b"one"]))
    with pytest.raises(InputError, match="is not for TFRecord files") as caught:
        find_inputs([str(tmp_path / "in")], options=options)
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        *((text, "text") for text in (b"x", b"hi\n", b"a b\n", "é\n".encode())),
        (b"{}\n", "JSON lines"),
        (b"[]", "JSON array"),
        *((data, None) for data in (DATA[:1], DATA[:4], b"\n", b"\xff", b"\x1fa")),
    ],
)
def test_files_of_less_than_five_bytes(data, name):
    assert name_of(data) == name
