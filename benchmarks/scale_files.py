"""Inputs without content, and the reports of workers about their shards.

All records have the same size, so that it is known where each of them begins.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Iterator

import numpy as np

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.formats.tfrecord.frame_layout import encode_frame
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_report import ShardReport, SourceSpan
from gristmill.transforms.conversion.make_shards import ShardResult, ShardTask
from gristmill.transforms.jobs.conversion_job import PreparedJob

RECORD_BYTES = 2_216  # With the 16 bytes of its frame.
_FILE_RECORDS = (1 << 30) // RECORD_BYTES  # Some four shards.
_KINDS = 64  # Of sizes. Files are links to so many, or a few more, of each.
_MOST_LINKS = 60_000  # Of one file, in ext4.


def make_inputs(directory: str, shards: int) -> int:
    """Makes input files for so many shards, and returns all their bytes."""
    files = max(1, -(-shards // 4))
    chance = np.random.default_rng(0)
    records = _FILE_RECORDS + chance.integers(-50_000, 50_000, _KINDS)
    sizes = records * RECORD_BYTES
    kinds = np.arange(files) % _KINDS
    names = (f"{directory}/c4-train-{file:07d}.tfrecord" for file in range(files))
    head = encode_frame(bytes(RECORD_BYTES - 16))
    link(names, (int(sizes[kind]) for kind in kinds), head=head)
    return int(sizes[kinds].sum())


def make_shards(prepared: PreparedJob) -> None:
    """Makes the files of all shards, and an index of nothing for each."""
    output = prepared.job.output
    paths = [prepared.shard_path(shard) for shard in range(prepared.plan.shards)]
    link((f"{output}/{path}" for path in paths), map(_file_bytes, range(len(paths))))
    indexes = (f"{output}/{layout.index_path(path)}" for path in paths)
    link(indexes, (0 for _ in paths))


def _file_bytes(shard: int) -> int:
    return 120_000_000 + shard % _KINDS * 65_521


def link(names: Iterable[str], sizes: Iterable[int], *, head: bytes = b"") -> None:
    """Makes files of no content but a head: links, where sizes are the same."""
    known: dict[int, tuple[str, int]] = {}
    for name, size in zip(names, sizes, strict=True):
        first, links = known.get(size, ("", _MOST_LINKS))
        if links < _MOST_LINKS:
            os.link(first, name)
            known[size] = first, links + 1
            continue
        pathlib.Path(name).parent.mkdir(exist_ok=True)
        with open(name, "wb") as file:
            file.write(head)
            file.truncate(size)
        known[size] = name, 1


def made_results(prepared: PreparedJob) -> Iterator[list[ShardResult]]:
    """Yields what the shards of a plan would report, shuffled, some at a time."""
    shards = np.random.default_rng(1).permutation(prepared.plan.shards)
    for begin in range(0, len(shards), 4096):
        some = shards[begin : begin + 4096].tolist()
        yield [_result(prepared, shard) for shard in some]


def _result(prepared: PreparedJob, shard: int) -> ShardResult:
    spans = []
    for part in prepared.plan.ranges(shard):
        size = int(prepared.files.sizes[part.file_index])
        start = _frame_after(part.begin_bytes)
        stop = _frame_after(part.end_bytes)
        spans.append(
            SourceSpan(
                file_index=part.file_index,
                begin_bytes=part.begin_bytes,
                end_bytes=part.end_bytes,
                start_bytes=start,
                stop_bytes=min(stop, size),
                records=(min(stop, size) - start) // RECORD_BYTES,
                whole=False,
            )
        )
    records = sum(span.records for span in spans)
    digest = RecordsDigest(
        records=records,
        raw_bytes=records * (RECORD_BYTES - 16),
        low=hash((shard, 1)) & (1 << 64) - 1,
        high=hash((shard, 2)) & (1 << 64) - 1,
    )
    report = ShardReport(
        path=prepared.shard_path(shard),
        shard_index=shard,
        job=prepared.fingerprint,
        file_bytes=_file_bytes(shard),
        file_crc32c=(shard * 2_654_435_761) & (1 << 32) - 1,
        read=digest,
        written=digest,
        spans=tuple(spans),
    )
    return ShardResult(ShardTask.of(prepared, shard), report)


def _frame_after(position: int) -> int:
    return -(-position // RECORD_BYTES) * RECORD_BYTES
