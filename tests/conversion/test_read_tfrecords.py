"""ReadTFRecords: every record once, however files are cut, whatever records hold."""

from __future__ import annotations

import collections
import itertools
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.utils.timestamp import Timestamp

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.formats.tfrecord_frames import encode_frame
from gristmill.dataset.storage.base import FileInfo
from gristmill.transforms import ReadTFRecords, RecordOptions
from gristmill.transforms.beam.find_ranges import (
    FilePart,
    FileWalk,
    Listing,
    by_file,
    cut_walks,
    list_parts,
    walk_part,
)
from gristmill.transforms.beam.read_ranges import FileRange, SourceRecord, read_range
from gristmill.transforms.sources.input_files import InputFile
from tests.servers.buckets import overlapping
from tests.servers.gcs_server import GcsServer
from tests.support.pipelines import (
    BUNDLE_BASED,
    BUNDLES_TWICE,
    IN_MEMORY,
    WORKER_PROCESSES,
    run,
)
from tests.support.records import (
    AWKWARD_RECORDS,
    frames_of,
    text_records,
    write_tfrecords,
)

RUNNERS = [IN_MEMORY, BUNDLES_TWICE, BUNDLE_BASED]


def tfrecords(part_bytes: int) -> Listing:
    return Listing(None, RecordOptions(input_format="tfrecord"), False, part_bytes)


def offsets_of(records: list[bytes]) -> list[int]:
    sizes = (len(encode_frame(record)) for record in records)
    return list(itertools.accumulate(sizes, initial=0))


@pytest.mark.slow
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
        list(list_parts((f"{tmp_path}/*",), tfrecords(1000)))
    patterns = (f"{tmp_path}/train*", f"{tmp_path}/test*")
    assert len(list(list_parts(patterns, tfrecords(1000)))) == 2
    assert "splits are joined: test (1 file), train (1 file)" in caplog.text


@pytest.mark.slow
def test_nested_frames_fool_nobody(tmp_path: pathlib.Path) -> None:
    """Nearly every byte of these files is part of a frame within a record."""
    inner = frames_of([b"inner %d" % i for i in range(200)])
    records = [inner[cut:] for cut in range(40)]
    (tmp_path / "nested").write_bytes(frames_of(records))
    for range_bytes in (500, 20_000):
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


def test_file_that_changes_meanwhile(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "changing"
    path.write_bytes(frames_of(text_records(30)))
    (part,) = list_parts((str(path),), tfrecords(16_000))
    pieces = list(cut_walks(list(walk_part(part, 1000)), 1000))
    time.sleep(0.02)
    path.write_bytes(frames_of(text_records(30, seed=2)))
    with pytest.raises(Exception, match=r"(?s)changing.*run"):
        list(read_range(pieces[1], with_source=False))


def test_parts_of_a_file(tmp_path: pathlib.Path) -> None:
    for name, size in (("a", 99), ("b", 100), ("c", 299), ("d", 1001)):
        (tmp_path / name).write_bytes(bytes(size))
    parts = list(list_parts((str(tmp_path),), tfrecords(100)))
    counts = collections.Counter(part.file.path[-1] for part in parts)
    assert counts == {"a": 1, "b": 1, "c": 2, "d": 10}
    of_c = [part[1:] for part in parts if part.file.path[-1] == "c"]
    assert of_c == [(0, 149), (149, 299)]
    # Without groups, a file is one part.
    whole = list(list_parts((str(tmp_path),), tfrecords(0)))
    assert [part[1:] for part in whole] == [(0, 99), (0, 100), (0, 299), (0, 1001)]


def test_elements_are_small(tmp_path: pathlib.Path) -> None:
    """What there is once a file takes 210 bytes, beside its path."""
    path = str(tmp_path / "file")
    info = FileInfo(path, 1 << 40, "1700000000123456789", 12345, 1700000000123456789)
    file = InputFile(path, 1 << 40, info.version, "gzip", info.noted_ns)
    small = [
        FilePart(info._replace(crc32c=None), 1 << 39, 1 << 40),
        FileWalk(file, 1 << 39, ()),
        FileRange(file, 1 << 39, 1 << 40),
    ]
    coder = beam.coders.registry.get_coder(Any)
    for element in small:
        assert len(coder.encode(element)) <= 210 + len(path)
    # What a part of 16 ranges gives is 8 bytes a range more.
    chain = tuple(range(1 << 39, 1 << 40, 1 << 35))
    walk = FileWalk(file, 1 << 39, (chain,))
    assert len(coder.encode(walk)) <= 210 + len(path) + 10 * len(chain)
    key, value = by_file(walk, Timestamp(5))
    assert len(coder.encode(value)) <= 220 + len(path) + 10 * len(chain)
    assert len(key) <= 50 + len(path)


@pytest.mark.parametrize(
    "argv",
    [
        IN_MEMORY,
        pytest.param(WORKER_PROCESSES, marks=pytest.mark.slow),
        pytest.param(BUNDLE_BASED, marks=pytest.mark.slow),
    ],
)
def test_large_files_of_several_parts(
    tmp_path: pathlib.Path, argv: tuple[str, ...]
) -> None:
    files = {name: text_records(150, seed=seed) for seed, name in enumerate("abc")}
    for name, records in files.items():
        (tmp_path / name).write_bytes(frames_of(records))
    # A part has 16 ranges.
    options = {"range_bytes": 1000, "with_source": True}
    found = run(ReadTFRecords(f"{tmp_path}/[abc]", **options), argv=argv)
    assert sorted(found) == [
        SourceRecord(str(tmp_path / name), offset, record)
        for name, records in files.items()
        for offset, record in zip(offsets_of(records), records, strict=False)
    ]


@pytest.mark.slow
def test_a_file_of_another_format(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a").write_bytes(frames_of([b"a"]))
    (tmp_path / "b").write_bytes(b"PAR1" + bytes(100) + b"PAR1")
    with pytest.raises(Exception, match=r"(?s)not a TFRecord file, but.*Parquet"):
        run(ReadTFRecords(f"{tmp_path}/*"))


@pytest.fixture
def server(
    monkeypatch: pytest.MonkeyPatch, blocks_of: Callable[[int], None]
) -> Iterator[GcsServer]:
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        blocks_of(4096)
        yield server


@pytest.mark.slow
def test_objects_are_read_by_requests_that_overlap(server: GcsServer) -> None:
    """In both passes over a file: of its headers, and of its records."""
    records = text_records(1000)
    server.objects.put("bucket", "large", frames_of(records))
    (part,) = list_parts(("gs://bucket/large",), tfrecords(0))
    # The frames of another part are searched for first.
    for begin in (0, part.end_bytes // 2):
        part = part._replace(begin_bytes=begin)
        walks = overlapping(server, lambda p=part: list(walk_part(p, 50_000)))
        assert len(walks[0].chains[0]) >= 3
    (piece,) = cut_walks([walks[0]._replace(begin_bytes=0)], 1 << 20)
    read = overlapping(server, lambda: list(read_range(piece, False)))
    assert read == records


def test_objects_by_range_are_read_in_bounded_memory(server: GcsServer) -> None:
    """What was requested and has not become records is a few blocks at most."""
    records = text_records(1000)
    server.objects.put("bucket", "large", frames_of(records))
    (part,) = list_parts(("gs://bucket/large",), tfrecords(0))
    (walk,) = walk_part(part, 1 << 20)
    (piece,) = cut_walks([walk], 1 << 20)
    server.log.clear()
    found = read_range(piece, with_source=True)
    for count, one in enumerate(found):
        if count % 100:
            continue
        requested = 4096 * len(server.log)
        assert requested <= one.place + 6 * 4096
    assert len(server.log) == -(-part.end_bytes // 4096)
