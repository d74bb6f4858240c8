"""The choice of conversion options, with reasons: pure functions of measurements."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from gristmill.pipelines.advice.encoded_sizes import Encoded
from gristmill.pipelines.advice.epoch_requests import EpochRequests
from gristmill.pipelines.text.formatting import plural, size_text
from gristmill.transforms.planning.shard_plan import DEFAULT_SHARD_BYTES

# A codec that saves less than this of the plain size costs more than it gives.
_LEAST_SAVED = 0.03
# zstd:9 takes about three times the CPU of zstd:3, once.
_LEAST_SAVED_MORE = 0.10
# Chunks of 16 records are read and decompressed for one: only small records gain.
_LEAST_SAVED_GROUPED = 0.40
_MOST_CHUNK_BYTES = 64 << 10
_GROUP = 16

# Every host opens an index for each shard.
_MOST_SHARDS = 16_384
_SHARDS_PER_WORKER = 2
_LEAST_SHARD_BYTES = 16 << 20

_LEAST_DOLLARS = 1.0
_FEWER_REQUESTS = 3
_COPY_BYTES = 8 << 20  # A request of a copy of a shard: docs/train/storage.md.
_MOST_COPIED_BYTES = 2 << 40

Candidates = dict[tuple[str, int], Encoded]


class Choice(NamedTuple):
    """A choice, and the reason.

    Attributes:
        value: The choice.
        reason: The reason in one line.
    """

    value: str | int
    reason: str


def choose_group_size(found: Candidates) -> Choice:
    """Chooses the number of records per chunk, with the best codec for each."""

    def best(group_size: int) -> Encoded:
        sizes = [one for (_, group), one in found.items() if group == group_size]
        return min(sizes, key=lambda one: one.shard_bytes.value)

    single, grouped = best(1), best(_GROUP)
    saved = 1 - grouped.shard_bytes.value / max(1.0, single.shard_bytes.value)
    chunk = size_text(grouped.chunk_bytes)
    if saved >= _LEAST_SAVED_GROUPED and grouped.chunk_bytes <= _MOST_CHUNK_BYTES:
        return Choice(
            _GROUP,
            f"group size {_GROUP}: {saved:.0%} smaller than 1; a random read fetches "
            f"{chunk} for a record, which is little",
        )
    return Choice(
        1,
        f"group size 1: a random read fetches one record, "
        f"{size_text(single.chunk_bytes)}; {_GROUP} would save {max(0.0, saved):.0%} "
        f"of the size, and fetch {chunk} for each record",
    )


def choose_compression(found: Candidates, group_size: int) -> Choice:
    """Chooses a codec for chunks of a number of records."""
    plain, fast, small = (
        found[name, group_size] for name in ("uncompressed", "zstd:3", "zstd:9")
    )
    saved = 1 - fast.shard_bytes.value / max(1.0, plain.shard_bytes.value)
    more = 1 - small.shard_bytes.value / max(1.0, fast.shard_bytes.value)
    if saved < _LEAST_SAVED:
        return Choice(
            "uncompressed",
            f"compression uncompressed: zstd:3 would save {max(0.0, saved):.1%} of the "
            "size; the records are compressed already, or random",
        )
    times = "several times"
    if fast.encode_seconds > 0:
        # The measurement of a small sample is rough.
        times = f"{max(1.0, small.encode_seconds / fast.encode_seconds):.1f} times"
    if more >= _LEAST_SAVED_MORE:
        return Choice(
            "zstd:9",
            f"compression zstd:9: {more:.0%} smaller than zstd:3, for {times} the CPU "
            "to encode, once",
        )
    return Choice(
        "zstd:3",
        f"compression zstd:3: {saved:.0%} smaller than uncompressed; zstd:9 would save "
        f"{max(0.0, more):.1%} more, for {times} the CPU to encode",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardChoice:
    """The number of shards to make.

    Attributes:
        option: The option of `gristmill convert`, None for its default.
        value: Its value.
        reason: The reason in one line.
    """

    option: Literal["--num-shards", "--shard-size"] | None
    value: str
    reason: str


def choose_shards(
    input_bytes: int,
    *,
    workers: int,
    one_cut: bool,
    shards_of: Callable[[int], int],
) -> ShardChoice:
    """Chooses how many shards to make.

    Args:
        input_bytes: Size of the input as stored.
        workers: Processes that convert.
        one_cut: Whether there is one split, and its files can be cut anywhere. An
            option holds for each split, and a compressed file is read by one worker.
        shards_of: Returns the number of shards for a number of input bytes each.
    """
    usual = shards_of(DEFAULT_SHARD_BYTES)
    if usual > _MOST_SHARDS:
        size = DEFAULT_SHARD_BYTES
        while shards_of(size) > _MOST_SHARDS and size < 1 << 40:
            size *= 2
        return ShardChoice(
            option="--shard-size",
            value=f"{size >> 20}MiB" if size < 1 << 30 else f"{size >> 30}GiB",
            reason=f"{shards_of(size):,} shards of {size_text(size)} of input: the "
            f"default would make {usual:,}, and every host opens an index of each",
        )
    enough = min(_SHARDS_PER_WORKER * workers, input_bytes // _LEAST_SHARD_BYTES)
    if one_cut and usual < enough:
        return ShardChoice(
            option="--num-shards",
            value=str(enough),
            reason=f"{plural(enough, 'shard')}: {_SHARDS_PER_WORKER} for each of "
            f"{plural(workers, 'worker')}, so that none waits for the last one; the "
            f"default, 256 MiB of input each, would make {usual:,}",
        )
    return ShardChoice(
        option=None,
        value="",
        reason=f"{plural(usual, 'shard')}: the default, 256 MiB of input each",
    )


def choose_shuffle(
    epochs: Sequence[EpochRequests],
    dollars: Sequence[float],
    *,
    hosts: int,
    file_bytes: float,
    class_b_dollars: float,
) -> tuple[Choice, str | None]:
    """Chooses the order of training, and tells whether copies of shards pay.

    Args:
        epochs: Requests with the shuffle `global`, then with `block`.
        dollars: Cost of these.
        hosts: Hosts of the training.
        file_bytes: Size of the dataset.
        class_b_dollars: Price of a read.
    """
    anywhere, block = epochs
    fewer = anywhere.requests / max(1.0, block.requests)
    copies = None
    if dollars[0] >= _LEAST_DOLLARS and file_bytes <= _MOST_COPIED_BYTES:
        requests = hosts * file_bytes / _COPY_BYTES
        if requests * class_b_dollars < dollars[0]:
            copies = (
                f"copies of shards (cache_bytes=) would take {requests:,.0f} requests "
                f"once (${requests * class_b_dollars:,.2f}) and none afterwards, with "
                f"{size_text(file_bytes)} of local disk on each host"
            )
    if dollars[0] >= _LEAST_DOLLARS and fewer >= _FEWER_REQUESTS:
        reason = (
            f"shuffle block: {fewer:,.0f} times fewer requests than global; it mixes "
            "within windows of 65,536 records"
        )
        return Choice("block", reason), copies
    if dollars[0] < _LEAST_DOLLARS:
        reason = (
            "shuffle global: every record anywhere, for under a dollar of requests an "
            "epoch"
        )
    else:
        share = f", as each host needs one record in {hosts:,} of a block"
        reason = (
            f"shuffle global: block would make {max(0.0, 1 - 1 / fewer):.0%} fewer "
            f"requests{share if hosts > 1 else ''}"
        )
    return Choice("global", reason), copies
