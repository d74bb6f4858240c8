"""Causes of a trainer's waiting, from the ratios of times that its feeds measured.

Only ratios count, so a verdict does not depend on how fast a machine is. Each part of
the time that batches take is compared with the others, and the time of a batch with
that of a step.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping
from typing import Literal

from gristmill.loader.stats.feed_stats import FeedStats

Cause = Literal[
    "trainer", "storage", "read", "decode", "workers", "transfer", "host", "unknown"
]

CAUSES: tuple[Cause, ...] = (
    "trainer",
    "storage",
    "read",
    "decode",
    "workers",
    "transfer",
    "host",
    "unknown",
)

# A trainer that waits less than this share of its time is not held up.
WAITING_SHARE = 0.05
# A host is slower than the others if its trainer waits this many times as long.
_SLOWER_TIMES = 3
# Others use the processors if this feed uses less than this share of them.
_OWN_SHARE = 0.7
# A computing thread keeps the lock while it waits for a processor; a woken one does not
# have it. At most this multiple of the work counts as the former.
_QUEUED_TIMES = 2
# Measured times explain a wait if they make up at least this share of it.
_EXPLAINED_SHARE = 0.2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Waiting:
    """The cause of a trainer's waiting.

    Attributes:
        cause: `storage`; `read`, decompression and checks; `decode`; `workers`, too few
            of them; `transfer` to the trainer or the devices; `host`, one that is
            slower than others, or whose processors others use; `trainer`, if it hardly
            waits; `unknown`, if nothing was measured.
        waiting_share: Share of the trainer's time that it waited, 0 to 1.
        share: Share of the cause in the time of batches, 0 to 1.
        text: The cause with its numbers, in a sentence.
        cure: What to do.
        host: The slow host, if the stats of several were given.
    """

    cause: Cause
    waiting_share: float
    share: float
    text: str
    cure: str
    host: str | None = None

    def __str__(self) -> str:
        return f"{self.cause}: {self.text}; {self.cure}"


def waits_for(stats: FeedStats | Mapping[str, FeedStats]) -> Waiting:
    """Returns the cause of a trainer's waiting.

    Args:
        stats: Stats of a feed, or later ones minus earlier ones for the time in
            between. Or the stats of all hosts of a run for the same time, by host name,
            to find a slow one.
    """
    if isinstance(stats, FeedStats):
        return _of_feed(stats)
    return _of_hosts(stats)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Parts:
    """Seconds of a batch by kind of work. The last field is a share.

    `queued` is a part of `read` and `decode`.
    """

    storage: float
    read: float
    decode: float
    transfer: float
    queued: float
    lock_share: float

    @property
    def sum(self) -> float:
        return self.storage + self.read + self.decode + self.transfer


def _parts_of(stats: FeedStats) -> _Parts:
    """Returns the time of a batch, divided by kind of work.

    A thread that neither works nor waits for a processor waits for storage, or for
    another thread that has Python's lock. Threads that always work always hold the
    lock, and idle threads never do: so the share of time in which threads worked is
    taken as the share of waiting that is for the lock. Each worker has its own lock.
    """
    batches = max(stats.batches, 1)
    elapsed = stats.wait_seconds + stats.busy_seconds
    read_work = stats.read_cpu_seconds + stats.read_queued_seconds
    decode_work = stats.decode_cpu_seconds + stats.decode_queued_seconds
    lock_share = 0.0
    if not stats.workers and elapsed:
        cpu = stats.read_cpu_seconds + stats.decode_cpu_seconds
        queued = stats.read_queued_seconds + stats.decode_queued_seconds
        held = cpu + stats.busy_cpu_seconds + min(queued, _QUEUED_TIMES * cpu)
        lock_share = min(1.0, held / elapsed)
    free = 1.0 - lock_share
    read_wait = max(0.0, stats.read_seconds - read_work) * free
    decode_wait = max(0.0, stats.decode_seconds - decode_work) * free
    return _Parts(
        storage=read_wait / batches,
        read=read_work / batches,
        decode=(decode_work + decode_wait) / batches,
        transfer=stats.transfer_seconds / batches,
        queued=(stats.read_queued_seconds + stats.decode_queued_seconds) / batches,
        lock_share=lock_share,
    )


def _of_feed(stats: FeedStats) -> Waiting:
    waiting = stats.waiting_share
    elapsed = stats.wait_seconds + stats.busy_seconds
    if not elapsed:
        return Waiting(
            cause="unknown",
            waiting_share=0.0,
            share=0.0,
            text="no batch was given after the first",
            cure="ask again after a few steps",
        )
    waits = f"the trainer waits {waiting:.0%} of its time for batches"
    if waiting < WAITING_SHARE:
        return Waiting(
            cause="trainer",
            waiting_share=waiting,
            share=1.0 - waiting,
            text=waits,
            cure="a faster feed would not help",
        )
    parts = _parts_of(stats)
    if parts.sum * stats.batches < _EXPLAINED_SHARE * stats.wait_seconds:
        return Waiting(
            cause="unknown",
            waiting_share=waiting,
            share=0.0,
            text=f"{waits}, and reading, decode and transfer do not take that long",
            cure="look at what is between this feed and the trainer, or whether the "
            "feed was paused",
        )
    cause, seconds, does, cure = _largest(stats, parts)
    share = min(1.0, seconds / parts.sum) if parts.sum else 0.0
    return Waiting(
        cause=cause,
        waiting_share=waiting,
        share=share,
        text=f"{waits}; {share:.0%} of what a batch takes {does}",
        cure=cure,
    )


def _largest(stats: FeedStats, parts: _Parts) -> tuple[Cause, float, str, str]:
    """Returns the cause, its seconds of a batch, its description, and a cure."""
    processors = max(stats.processors, 1)
    if parts.queued > parts.sum / 2 and _own_share(stats) < _OWN_SHARE:
        return (
            "host",
            parts.queued,
            "is waiting for a processor that others use",
            "look for other processes on this host, or raise the limit of the pod's "
            "processors",
        )
    seconds: dict[Cause, float] = {
        "storage": parts.storage,
        "read": parts.read,
        "decode": parts.decode,
        "transfer": parts.transfer,
    }
    cause = max(seconds, key=seconds.__getitem__)
    if cause == "storage":
        cure = "read larger ranges (shuffle='block', larger groups of records), keep "
        cure += "copies of shards on this host, raise prefetch, or look for throttling"
        return cause, parts.storage, "is waiting for storage", cure
    if cause == "transfer":
        cure = "let decode return smaller or fewer arrays"
        return cause, parts.transfer, "is passing it to the trainer", cure
    kind = "worker" if stats.workers else "thread"
    how = f"{stats.makers} {kind}{'s' if stats.makers != 1 else ''}"
    work = parts.sum - parts.queued
    step = stats.busy_seconds / max(stats.batches, 1)
    needed = math.ceil(work / step) if step else math.inf
    does = {
        "read": "is decompression and checks",
        "decode": "is decode",
    }[cause]
    if needed <= processors and _too_few(stats, parts, int(needed)):
        return (
            "workers",
            parts.sum,
            f"is the work of {how}, {1000 * work:,.0f} ms for a step of "
            f"{1000 * step:,.0f} ms",
            f"use workers={max(needed, 1)}",
        )
    if stats.workers < processors and needed > stats.makers:
        cure = f"use more workers, up to {processors}"
    else:
        cure = f"no more is to be had of {how} on {processors} processors"
    if cause == "decode":
        cure += "; make decode cheaper, or convert what it does into the dataset"
    else:
        cure += "; use faster compression, or more hosts"
    return cause, seconds[cause], does, cure


def _too_few(stats: FeedStats, parts: _Parts, needed: int) -> bool:
    """Returns whether there are fewer workers or threads than a step needs."""
    if stats.workers:
        return stats.workers < needed
    # Threads that share the lock all the time do as much as one.
    return stats.makers < needed or (needed > 1 and parts.lock_share > 0.5)


def _own_share(stats: FeedStats) -> float:
    """Returns the share of the processors that this process used."""
    worked = stats.read_cpu_seconds + stats.decode_cpu_seconds + stats.busy_cpu_seconds
    elapsed = stats.wait_seconds + stats.busy_seconds
    return worked / (elapsed * max(stats.processors, 1))


def _of_hosts(hosts: Mapping[str, FeedStats]) -> Waiting:
    """Returns the cause of waiting of a run whose hosts go from step to step together.

    To the others, a slow host looks like a long step. So the slow host is the one that
    waits.
    """
    found = {host: _of_feed(stats) for host, stats in hosts.items()}
    if not found:
        return _of_feed(FeedStats())
    worst = max(found, key=lambda host: found[host].waiting_share)
    own = found[worst]
    usual = statistics.median_low(each.waiting_share for each in found.values())
    most = max(WAITING_SHARE, _SLOWER_TIMES * usual)
    slow = [host for host in found if found[host].waiting_share > most]
    if not slow or 2 * len(slow) > len(found):
        return dataclasses.replace(own, host=worst if own.cause == "host" else None)
    named = f"{worst} and {len(slow) - 1} more" if len(slow) > 1 else worst
    return Waiting(
        cause="host",
        waiting_share=own.waiting_share,
        share=own.share,
        text=f"{named} of {len(found)} hosts: there {own.text}, on the host in the "
        f"middle {usual:.0%}",
        cure=f"compare it with the others ({own.cause}): {own.cure}",
        host=worst,
    )
