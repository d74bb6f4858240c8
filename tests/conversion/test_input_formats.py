"""Inputs of other formats are refused by name, with what to do about them."""

from __future__ import annotations

import gzip

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import FORMATS, RecordOptions
from tests.support.other_formats import MAKERS
from tests.support.records import frames_of, write_array_records

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
    [DATA[1:], bytes(100), DATA[:5], gzip.compress(DATA, mtime=0)[:20]],
    ids=["shifted", "zeros", "cut", "compressed and cut"],
)
def test_damaged_files_of_the_right_format_are_left_to_their_reader(tmp_path, damaged):
    (tmp_path / "in").write_bytes(damaged)
    assert len(find_inputs([str(tmp_path / "in")])) == 1


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
