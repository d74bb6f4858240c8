"""What a commit stands on: tables, and shards with their indexes, as written."""

from __future__ import annotations

import dataclasses
import pathlib

import google_crc32c
import pytest

from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import StorageChangedError
from gristmill.dataset.commit.commit import (
    write_table,
)
from gristmill.dataset.commit.write import Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_files import ShardPlace
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.storage.lookup import storage_for
from tests.support.records import text_records

NAME = "data"
OPTIONS = WriterOptions()


def write_shard(
    output: str,
    split: str,
    shard: int,
    shards: int,
    *,
    segments: bytes | None = None,
    place: ShardPlace | None = None,
) -> ShardReport:
    """Writes one shard of ten records, as a worker does."""
    path, packed = layout.shard_name(NAME, split, shard, shards), segments is not None
    if place is None:
        place = ShardPlace.at(output, path, packed=packed)
    records = text_records(10, seed=shard)
    temporary = layout.temporary_dir(output, NAME, split)
    with storage_for(output).temporary(temporary) as local:
        writer = ShardWriter(local, options=OPTIONS)
        writer.write(records, [google_crc32c.value(record) for record in records])
        written = writer.finish()
        report = ShardReport(
            path=place.path,
            shard_index=shard,
            job="written by a test",
            file_bytes=written.file_bytes,
            file_crc32c=written.file_crc32c,
            read=written.digest,
            written=written.digest,
            packed=PackedCounts() if packed else None,
        )
        return place.publish(local, written, report, segments=segments)


def finish(output: str, split: str, reports: list[ShardReport]) -> Split:
    """Writes the table of a split."""
    write = Write(output=output, name=NAME, split=split, id=split)
    table = ShardTable.of(reports)
    return write_table(write, table, writer_options=OPTIONS.described, source={})


def written(output: str, split: str = "train", shards: int = 2) -> Split:
    reports = [write_shard(output, split, shard, shards) for shard in range(shards)]
    return finish(output, split, reports)


@pytest.fixture
def output(tmp_path: pathlib.Path) -> str:
    return str(tmp_path / "out")


def test_a_packed_shard_is_finished_with_its_segment_index(output: str) -> None:
    whole = write_shard(output, "train", 0, 1, segments=b"of the shard")
    assert whole.segments_bytes == 12
    assert whole.segments_crc32c == google_crc32c.value(b"of the shard")
    place = ShardPlace.at(output, whole.path, packed=True)
    assert place.finished(whole.job) == whole
    segments = pathlib.Path(output, layout.segments_path(whole.path))
    segments.write_bytes(b"of the")
    assert ShardPlace.at(output, whole.path, packed=True).finished(whole.job) is None
    segments.unlink()
    place = ShardPlace.at(output, whole.path, packed=True)
    assert place.finished(whole.job) is None
    # A job without rows meets the shard of another one.
    assert ShardPlace.at(output, whole.path).report() == whole
    write_shard(output, "train", 0, 1)
    place = ShardPlace.at(output, whole.path, packed=True)
    assert place.report() == dataclasses.replace(
        whole, packed=None, segments_bytes=0, segments_crc32c=0
    )


def test_the_index_of_a_packed_shard_comes_last(output: str) -> None:
    path = layout.shard_name(NAME, "train", 0, 1)
    before = ShardPlace.at(output, path, packed=True)
    write_shard(output, "train", 0, 1, segments=b"first")
    pathlib.Path(output, path).unlink()
    index = pathlib.Path(output, layout.index_path(path))
    index.unlink()
    # What another worker has written since then stays, and there is no index.
    with pytest.raises(StorageChangedError, match="segments"):
        write_shard(output, "train", 0, 1, segments=b"second", place=before)
    segments = pathlib.Path(output, layout.segments_path(path))
    assert segments.read_bytes() == b"first"
    assert not index.exists()
