"""Ranges of files, read one by one: together they are the file, wherever it is cut."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import os
import pathlib
import random
import sys
import tempfile
import zlib
from collections.abc import Callable
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import (
    CorruptFrameError,
    StorageChangedError,
)
from gristmill.dataset.formats.tfrecord_frames import encode_frame
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.storage.lookup import version_of
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.formats import TFRECORD
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.source import KeptPass, SkippedRegions, source_of
from tests.support.conversion import nested_records
from tests.support.records import frames_of, small_records
from tests.support.watched import at_storage

PACK: dict[str, Callable[..., bytes]] = {
    "gzip": gzip.compress,
    "zlib": zlib.compress,
    "zstd": lambda data, level=3: zstandard.compress(data, level),
}


@dataclasses.dataclass
class Read:
    """What reading gave."""

    records: list[bytes]
    regions: list[tuple[int, int]]
    span: SourceSpan


def read_range(
    path: pathlib.Path, begin: int, end: int, *, keep: bool = True, **options: Any
) -> Read:
    source = SourceRange(
        file_index=0,
        begin_bytes=begin,
        end_bytes=end,
        cut=options.pop("cut", False),
        from_start=options.pop("from_start", False),
    )
    skipped = SkippedRegions()
    kind = options.pop("compression", "none")
    reader = source_of(TFRECORD).read(
        InputFile(str(path), path.stat().st_size, compression=kind),
        source,
        skipped=skipped if keep else None,
        **options,
    )
    records = [record for batch in reader.batches() for record in batch.records]
    regions = [(line["begin_bytes"], line["end_bytes"]) for line in skipped.found]
    return Read(records, regions, reader.span)


def read_in_ranges(
    path: pathlib.Path, cuts: list[int], *, keep: bool, whole: bool = False
) -> list[Read] | None:
    """Reads a file range by range as a conversion does; None if two do not meet.

    With `whole`, each is read from the start of the file.
    """
    size = path.stat().st_size
    reached, reads = 0, []
    for begin, end in itertools.pairwise(sorted({0, *cuts, size})):
        if whole:
            end = -1 if end == size else end
            read = read_range(path, begin, end, keep=keep, from_start=True)
        else:
            read = read_range(path, begin, end, keep=keep, cut=True)
        start = read.span.start_bytes
        if not (reached >= end if start is None else start == reached):
            return None
        if read.span.stop_bytes is not None:
            reached = read.span.stop_bytes
        reads.append(read)
    assert reached == size
    return reads


def outcome(read: Callable[[], Any]) -> Any:
    """Returns what a function returns, or the damage that it raises."""
    try:
        return read()
    except CorruptFrameError as error:
        return error


@pytest.fixture(scope="module")
def path():
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder, "in.tfrecord")


def flipped(data: bytes, position: int) -> bytes:
    changed = bytearray(data)
    changed[position] ^= 0x10
    return bytes(changed)


# What a damaged file can be made of: (bytes, the record if it can be recovered).
PIECES = st.one_of(
    st.binary(max_size=40).map(lambda r: (encode_frame(r), r)),
    st.integers(0, 10**6)
    .map(lambda seed: nested_records(random.Random(seed), depth=2))
    .map(lambda r: (encode_frame(r), r)),
    st.binary(max_size=20).map(lambda r: (flipped(encode_frame(r), 1), None)),
    st.binary(min_size=1, max_size=20).map(
        lambda r: (flipped(encode_frame(r), 12), None)
    ),
    st.binary(max_size=20).map(lambda r: (encode_frame(r)[:-3], None)),
    st.binary(min_size=1, max_size=20).map(lambda junk: (junk, None)),
)


def records_in(reads: list[Read]) -> list[bytes]:
    return [record for read in reads for record in read.records]


class TestCuts:
    @given(records=small_records(), cuts=st.lists(st.integers(0, 400), max_size=8))
    def test_good_files_are_read_exactly_or_refused_wherever_they_are_cut(
        self, path, records, cuts
    ):
        data = frames_of(records)
        path.write_bytes(data)
        cuts = [cut for cut in cuts if cut <= len(data)]
        reads = outcome(lambda: read_in_ranges(path, cuts, keep=False))
        if isinstance(reads, CorruptFrameError):
            assert "--whole-files" in reads.cure
        else:
            assert reads is None or records_in(reads) == records
        assert records_in(read_in_ranges(path, cuts, keep=False, whole=True)) == records

    @given(pieces=st.lists(PIECES, max_size=8), data=st.data())
    def test_damaged_files_lose_nothing_else_wherever_they_are_cut(
        self, path, pieces, data
    ):
        content = b"".join(piece for piece, _ in pieces)
        good = [record for _, record in pieces if record is not None]
        path.write_bytes(content)
        cuts = data.draw(st.lists(st.integers(0, len(content)), max_size=6))
        alone = read_range(path, 0, len(content))
        assert [record for record in alone.records if record in good] == good
        for whole in (False, True):
            reads = read_in_ranges(path, cuts, keep=True, whole=whole)
            if reads is None:
                assert not whole
                continue
            assert records_in(reads) == alone.records
            regions = [region for read in reads for region in read.regions]
            assert regions == alone.regions
        # Bytes in = bytes of records + bytes left out.
        frames = sum(len(encode_frame(record)) for record in alone.records)
        lost = sum(end - begin for begin, end in alone.regions)
        assert frames + lost == len(content)

    def test_damage_at_a_cut_belongs_to_the_range_before(self, path):
        records = [bytes([65 + number]) * 100 for number in range(12)]
        for first in (1, 5):
            data = frames_of(records)
            for number in (first, first + 1, first + 2):
                data = flipped(data, number * 116 + 50)
            path.write_bytes(data)
            for cut in range(1, len(data), 7):
                reads = read_in_ranges(path, [cut], keep=True)
                assert reads is not None
                assert records_in(reads) == records[:first] + records[first + 3 :]
                assert sum(len(read.regions) for read in reads) == 3


def read_compressed(
    path: pathlib.Path, cuts: list[int], kind: str, *, keep: bool, once: bool
) -> tuple[list[Read], int]:
    """Reads a compressed file in ranges; returns how often it was opened.

    Args:
        path: The file.
        cuts: Where it is cut, in stored bytes.
        kind: How it is compressed.
        keep: Whether damage is kept, and no error.
        once: Whether one range goes on where the one before it ended.
    """
    kept = KeptPass() if once else None
    opened = []
    edges = [0, *cuts, -1]
    with pytest.MonkeyPatch.context() as patch:
        at_storage(patch, "open", "", lambda: opened.append(1), times=sys.maxsize)
        reads = [
            read_range(
                path,
                begin,
                end,
                keep=keep,
                compression=kind,
                cuts=cuts,
                kept=kept,
            )
            for begin, end in itertools.pairwise(edges)
        ]
    if kept is not None:
        kept.close()
    return reads, len(opened)


class TestCutsInCompressedFiles:
    @given(seed=st.integers(0, 10_000), inside=st.booleans())
    def test_damage_is_left_out_once_wherever_the_file_is_cut(self, seed, inside):
        chance = random.Random(seed)
        records = [chance.randbytes(chance.randrange(900)) for _ in range(60)]
        data = bytearray(frames_of(records))
        if inside:  # Before it was compressed: it can be read on behind.
            for _ in range(3):
                data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        stored = bytearray(zlib.compress(bytes(data)))
        if not inside:
            stored[chance.randrange(2, len(stored))] ^= 1 << chance.randrange(8)
        cuts = sorted(chance.sample(range(1, len(stored)), 6))
        with tempfile.TemporaryDirectory() as directory:
            path = pathlib.Path(directory, "in")
            path.write_bytes(bytes(stored))
            (whole,), _ = read_compressed(path, [], "zlib", keep=True, once=False)
            each, _ = read_compressed(path, cuts, "zlib", keep=True, once=False)
            once, _ = read_compressed(path, cuts, "zlib", keep=True, once=True)
        assert once == each
        assert [record for read in once for record in read.records] == whole.records
        assert [region for read in once for region in read.regions] == whole.regions
        stops = [read.span.stop_bytes for read in once]
        assert [read.span.start_bytes for read in once] == [0, *stops[:-1]]
        assert once[-1].span.whole


# Frames of 1 KiB: no block that is read ends in one.
OLD = frames_of([b"old %1004d" % number for number in range(8_000)])
NEW = frames_of([b"new %1004d" % number for number in range(8_000)])


def in_place(path: pathlib.Path) -> None:
    """Every checksum fits, and so do all ends: half is old and half is new."""
    with open(path, "r+b") as file:
        file.write(NEW)


def in_place_with_the_old_time(path: pathlib.Path) -> None:
    status = path.stat()
    in_place(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def as_another_file(path: pathlib.Path) -> None:
    path.unlink()
    path.write_bytes(NEW)


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (in_place, "while it was read"),
        (in_place_with_the_old_time, "its size and time did not"),
        (as_another_file, "while it was read"),
        (pathlib.Path.unlink, "while it was read"),
    ],
)
def test_a_file_that_is_written_while_it_is_read(tmp_path, change, what):
    path = tmp_path / "in.tfrecord"
    path.write_bytes(OLD)
    source = SourceRange(file_index=0, begin_bytes=0, end_bytes=-1)
    noted_ns = path.stat().st_ctime_ns
    file = InputFile(str(path), len(OLD), version_of(str(path)), noted_ns=noted_ns)
    batches = source_of(TFRECORD).read(file, source).batches()
    next(batches)
    change(path)
    with pytest.raises(StorageChangedError, match=what) as caught:
        list(batches)
    assert str(path) in str(caught.value)


class TestCompressedDamage:
    def test_a_damaged_stream_that_repeats_records_is_not_believed(self, path):
        # Deflate writes what it has seen before as a reference. With one literal
        # changed it stays readable to the end, where the checksum of all does not fit.
        records = [b"record %3d " % (n % 7) + bytes(40) for n in range(500)]
        data = zlib.compress(frames_of(records))
        repeated = 0
        for position in range(2, len(data) - 4, 5):
            path.write_bytes(flipped(data, position))
            read = read_range(path, 0, -1, compression="zlib")
            assert read.records == records[: len(read.records)]
            assert len(read.regions) == 1
            repeated += len(read.records) < 500
        assert repeated > 10
