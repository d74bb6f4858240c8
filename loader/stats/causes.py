"""The cause of a trainer's waiting, for people who measure a loader."""

from __future__ import annotations

import dataclasses
from typing import Literal

from gristmill.loader.stats.feed_stats import FeedStats

Cause = Literal["trainer", "storage", "read", "decode", "transfer"]

# A trainer that waits less than this share of its time is not held up.
_WAITING_SHARE = 0.05

_DOES_AND_CURE: dict[Cause, tuple[str, str]] = {
    "storage": (
        "is waiting for storage",
        "read larger ranges (shuffle='block', larger groups of records), keep copies "
        "of shards on this host, raise prefetch, or look for throttling",
    ),
    "read": (
        "is decompression and checks",
        "use more workers, faster compression, or more hosts",
    ),
    "decode": (
        "is decode",
        "use more workers, or convert what decode does into the dataset",
    ),
    "transfer": (
        "is passing it to the trainer",
        "let decode return smaller or fewer arrays",
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Waiting:
    """The cause of a trainer's waiting.

    Attributes:
        cause: The work that takes most of a batch's time, or `trainer` if it hardly
            waits.
        text: The cause with its numbers, in a sentence.
        cure: What to do.
    """

    cause: Cause
    text: str
    cure: str


def waits_for(stats: FeedStats) -> Waiting:
    """Returns the cause of a trainer's waiting."""
    waits = f"the trainer waits {stats.waiting_share:.0%} of its time for batches"
    if stats.waiting_share < _WAITING_SHARE:
        cure = "a faster feed would not help"
        return Waiting(cause="trainer", text=waits, cure=cure)
    worked = stats.read_cpu_seconds + stats.read_queued_seconds
    seconds: dict[Cause, float] = {
        "storage": max(0.0, stats.read_seconds - worked),
        "read": worked,
        "decode": stats.decode_seconds,
        "transfer": stats.transfer_seconds,
    }
    cause = max(seconds, key=seconds.__getitem__)
    share = seconds[cause] / max(sum(seconds.values()), 1e-9)
    does, cure = _DOES_AND_CURE[cause]
    text = f"{waits}; {share:.0%} of what a batch takes {does}"
    return Waiting(cause=cause, text=text, cure=cure)
