"""Statistics of a feed: its batches, and the time that they took."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from contextlib import AbstractContextManager
from typing import Any, NamedTuple


# Not frozen, as that takes several times as long to create, for each batch.
@dataclasses.dataclass(slots=True, kw_only=True)
class ReadBatch:
    """A batch, and the time to make it; see `FeedStats`."""

    step: int
    batch: Any
    records: int
    record_bytes: int
    read_seconds: float
    decode_seconds: float


class BatchesRead(NamedTuple):
    """Batches of consecutive steps, and the error of the next one, if any."""

    batches: list[ReadBatch]
    error: BaseException | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeedStats:
    """Totals of a feed on this host since its creation.

    The difference of two of them covers the time in between.

    Attributes:
        batches: Batches given to the trainer.
        records: Records in them.
        record_bytes: Their size, before they were decoded.
        wait_seconds: Time that the trainer waited for them. The first batch after a
            start takes longest: shards are opened, and workers start.
        read_seconds: Time that reading them took, in all threads or workers.
        decode_seconds: Time that decode took, in all threads or workers.
    """

    batches: int = 0
    records: int = 0
    record_bytes: int = 0
    wait_seconds: float = 0.0
    read_seconds: float = 0.0
    decode_seconds: float = 0.0

    def __add__(self, other: FeedStats) -> FeedStats:
        """Returns the stats of both."""
        pairs = vars(other).items()
        return FeedStats(**{name: vars(self)[name] + value for name, value in pairs})

    def __sub__(self, before: FeedStats) -> FeedStats:
        """Returns the stats since `before`."""
        less = {name: -value for name, value in vars(before).items()}
        return self + FeedStats(**less)

    def __str__(self) -> str:
        size = self.record_bytes / (1 << 20)
        return (
            f"{self.batches:,} batches, {self.records:,} records, {size:,.1f} MiB; "
            f"waited {self.wait_seconds:,.1f} s, read {self.read_seconds:,.1f} s, "
            f"decoded {self.decode_seconds:,.1f} s"
        )

    def after(self, read: ReadBatch, wait_seconds: float) -> FeedStats:
        """Returns the stats after another batch."""
        return FeedStats(
            batches=self.batches + 1,
            records=self.records + read.records,
            record_bytes=self.record_bytes + read.record_bytes,
            wait_seconds=self.wait_seconds + wait_seconds,
            read_seconds=self.read_seconds + read.read_seconds,
            decode_seconds=self.decode_seconds + read.decode_seconds,
        )


_NO_SPAN = contextlib.nullcontext()


def span(name: str, **fields: int) -> AbstractContextManager[Any]:
    """Returns a context that a trace of JAX shows as a span of this thread.

    Nothing is recorded while no trace runs, and JAX is not imported for it.
    """
    annotation = getattr(sys.modules.get("jax.profiler"), "TraceAnnotation", None)
    if annotation is None:
        return _NO_SPAN
    made: AbstractContextManager[Any] = annotation(name, **fields)
    return made
