"""ReadTFRecords: every record once, however files are cut, whatever records hold."""

from __future__ import annotations

import itertools
import pathlib
import time

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.errors import InputError
from gristmill.dataset.tfrecord.frames import encode_frame
from gristmill.transforms import ReadTFRecords
from gristmill.transforms import read_tfrecords as module
from gristmill.transforms.read_tfrecords import SourceRecord, frame_ranges
from tests.support.pipelines import BUNDLE_BASED, BUNDLES_TWICE, IN_MEMORY, run
from tests.support.records import (
    AWKWARD_RECORDS,
    frames_of,
    small_records,
    text_records,
    write_tfrecords,
)

RUNNERS = [IN_MEMORY, BUNDLES_TWICE, BUNDLE_BASED]


def offsets_of(records: list[bytes]) -> list[int]:
    sizes = (len(encode_frame(record)) for record in records)
    return list(itertools.accumulate(sizes, initial=0))


@pytest.mark.parametrize("argv", RUNNERS)
def test_all_kinds_of_files(tmp_path: pathlib.Path, argv: tuple[str, ...]) -> None:
    kinds = {"a": "", "b": "GZIP", "c": "ZLIB", "d": ""}
    for name, compression in kinds.items():
        records = [name.encode() + record for record in AWKWARD_RECORDS]
        write_tfrecords(tmp_path / name, records, compression=compression)
    expected = [n.encode() + record for n in kinds for record in AWKWARD_RECORDS]
    found = run(ReadTFRecords(f"{tmp_path}/*", range_bytes=50_000), argv=argv)
    assert sorted(found) == sorted(expected)


def test_splits_are_joined_by_a_list_and_not_by_a_pattern(tmp_path, caplog) -> None:
    for name in ("train-0", "test-0"):
        (tmp_path / name).write_bytes(frames_of([name.encode()]))
    with pytest.raises(InputError, match="several splits"):
        list(module._list_files((f"{tmp_path}/*",), False))
    patterns = (f"{tmp_path}/train*", f"{tmp_path}/test*")
    assert len(list(module._list_files(patterns, False))) == 2
    assert "splits are joined: test (1 file), train (1 file)" in caplog.text


def test_a_directory_stands_for_the_files_in_it(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_bytes(frames_of([b"a"]))
    (tmp_path / "_SUCCESS").write_bytes(b"")
    assert run(ReadTFRecords(str(tmp_path))) == [b"a"]


def test_with_source_gives_file_and_offset(tmp_path: pathlib.Path) -> None:
    records = text_records(50)
    write_tfrecords(tmp_path / "plain", records)
    write_tfrecords(tmp_path / "packed", records, compression="GZIP")
    expected = [
        SourceRecord(str(tmp_path / name), offset, record)
        for name in ("plain", "packed")
        for offset, record in zip(offsets_of(records), records, strict=False)
    ]
    patterns = [str(tmp_path / "plain"), str(tmp_path / "packed")]
    options = {"with_source": True, "range_bytes": 999}
    found = run(ReadTFRecords(patterns, **options))
    assert sorted(found) == sorted(expected)
    # The fields can be used by what follows.
    measure = beam.Map(lambda source: len(source.record))
    lengths = run(ReadTFRecords(patterns, **options), measure)
    assert sorted(lengths) == sorted([*map(len, records)] * 2)


def test_nested_frames_fool_nobody(tmp_path: pathlib.Path) -> None:
    """Nearly every byte of these files is part of a frame within a record."""
    inner = frames_of([b"inner %d" % i for i in range(200)])
    records = [inner[cut:] for cut in range(40)]
    (tmp_path / "nested").write_bytes(frames_of(records))
    for range_bytes in (1, 1000, 4321, 20_000):
        path = str(tmp_path / "nested")
        assert sorted(run(ReadTFRecords(path, range_bytes=range_bytes))) == sorted(
            records
        )


@pytest.mark.parametrize("range_bytes", [64, 1 << 20])
def test_damage_names_file_and_offset(tmp_path: pathlib.Path, range_bytes: int) -> None:
    records = text_records(30)
    data = bytearray(frames_of(records))
    offset = offsets_of(records)[20]
    data[offset] ^= 1
    path = tmp_path / "damaged"
    path.write_bytes(data)
    message = rf"(?s)corrupt length field.*damaged, byte offset {offset:,}"
    with pytest.raises(Exception, match=message):
        run(ReadTFRecords(str(path), range_bytes=range_bytes))


def test_length_field_beyond_the_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "cut"
    path.write_bytes(frames_of(text_records(30))[:-5])
    with pytest.raises(Exception, match="ends in the middle of a record"):
        run(ReadTFRecords(str(path), range_bytes=64))


def test_file_that_changes_meanwhile(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "changing"
    path.write_bytes(frames_of(text_records(30)))
    (file,) = module._list_files((str(path),), allow_empty_files=False)
    pieces = list(module._cut(file, 1000))
    time.sleep(0.02)
    path.write_bytes(frames_of(text_records(30, seed=2)))
    with pytest.raises(Exception, match=r"(?s)changing.*run"):
        list(module._read_range(pieces[1], with_source=False))


def test_empty_file_only_where_allowed(tmp_path: pathlib.Path) -> None:
    (tmp_path / "empty").touch()
    write_tfrecords(tmp_path / "full", [b"a"])
    with pytest.raises(Exception, match="empty"):
        run(ReadTFRecords(f"{tmp_path}/*"))
    assert run(ReadTFRecords(f"{tmp_path}/*", allow_empty_files=True)) == [b"a"]


def test_nothing_happens_before_the_pipeline_runs(tmp_path: pathlib.Path) -> None:
    pattern = str(tmp_path / "later*")
    pipeline = beam.Pipeline(options=PipelineOptions(list(IN_MEMORY)))
    assert_that(pipeline | ReadTFRecords(pattern), equal_to([b"made later"]))
    write_tfrecords(tmp_path / "later", [b"made later"])
    pipeline.run().wait_until_finish()
    with pytest.raises(Exception, match="no input file matches"):
        run(ReadTFRecords(str(tmp_path / "never")))


def test_options_are_checked_at_once() -> None:
    with pytest.raises(InputError, match="no input files"):
        ReadTFRecords([])
    with pytest.raises(InputError, match="range_bytes"):
        ReadTFRecords("x", range_bytes=0)
    with pytest.raises(TypeError):
        ReadTFRecords("x", True)  # type: ignore[misc]


@given(records=small_records(), range_bytes=st.integers(1, 200))
def test_ranges_begin_at_frames_and_cover_the_file(
    records: list[bytes], range_bytes: int
) -> None:
    data = frames_of(records)
    begins = offsets_of(records)
    size = begins[-1]
    ranges = list(frame_ranges(lambda a, b: data[a:b], size, range_bytes=range_bytes))
    # The oracle: cut at the first frame that leaves a range long enough.
    cuts = [0]
    for offset in begins[:-1]:
        if offset - cuts[-1] >= range_bytes and size - cuts[-1] > range_bytes:
            cuts.append(offset)
    assert ranges == list(itertools.pairwise([*cuts, size]))


def test_ranges_of_large_records_are_hopped_over() -> None:
    data = frames_of([bytes(3 << 20)] * 8)
    read_bytes = 0

    def read(begin: int, end: int) -> bytes:
        nonlocal read_bytes
        read_bytes += end - begin
        return data[begin:end]

    ranges = list(
        frame_ranges(read, len(data), range_bytes=1 << 20, block_bytes=1 << 10)
    )
    assert len(ranges) == 8
    assert read_bytes <= 8 << 10


def test_range_bytes_decides_the_number_of_ranges() -> None:
    data = frames_of([bytes(84)] * 100)  # 100 bytes a frame.
    for range_bytes, count in ((100, 100), (1000, 10), (5000, 2), (10_000, 1)):
        ranges = frame_ranges(
            lambda a, b: data[a:b], len(data), range_bytes=range_bytes
        )
        assert len(list(ranges)) == count
