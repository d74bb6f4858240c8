"""Many ranges of objects at once: how many in flight, what to retry, until when.

Answers come in any order. What fails and may pass is asked for again, later and later,
until a deadline; an answer that takes much longer than others gets a second request
beside it; a server that says that it is asked too much is asked less.
"""

from __future__ import annotations

import collections
import dataclasses
import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

from gristmill.dataset.errors import (
    InputError,
    StorageChangedError,
    StorageError,
)
from gristmill.dataset.storage import storage_for
from gristmill.loader.object_reads import (
    ByteRange,
    Changed,
    Failure,
    ObjectRead,
    ObjectReads,
)

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 8.0
# A slow line is not a dead one: so much more time for each byte.
_SLOWEST_BYTES_PER_SECOND = 1 << 20
# Wrong answers of a server that answers: worth another try, but not a deadline of them.
_WRONG_ANSWERS = 4
_FEWEST_IN_FLIGHT = 4
# How long to wait for the oldest request before looking whether others are done.
_GLANCE_SECONDS = 0.002
# At most one request in so many is a second one for a straggler.
_HEDGE_EVERY = 100
_HEDGE_SHORTEST_SECONDS = 0.05
_THROTTLED = (429, 503)
_PASSING = (0, 408, 429, 500, 502, 503, 504)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read object storage.

    The defaults suit records of kilobytes at a latency of tens of milliseconds: 256
    requests in flight at 20 ms are 12,800 a second, more than one process decodes.

    Attributes:
        in_flight: Most requests at once, of one process. A server that throttles gets
            fewer, for as long as it does.
        timeout_seconds: What has not arrived by then is asked for again.
        deadline_seconds: How long to try again after failures that pass.
        hedge_factor: A request that takes so many times as long as 95 of 100 others
            gets a second one beside it, at most one in a hundred; None for never.
        window_bytes: Memory for the records of two windows of a block shuffle, in each
            process that reads batches. Where they are larger, batches are read one by
            one, with about a request for each record.
        index_bytes: Local disk for the indexes of one dataset. Where they are larger,
            entries are read by ranges as well: two more requests for a record.
    """

    in_flight: int = 256
    timeout_seconds: float = 10.0
    deadline_seconds: float = 120.0
    hedge_factor: float | None = 3.0
    window_bytes: int = 1 << 30
    index_bytes: int = 64 << 30

    def __post_init__(self) -> None:
        if self.in_flight < 1 or min(self.timeout_seconds, self.deadline_seconds) <= 0:
            raise InputError(
                "these options leave no time or no requests to read with",
                expected="in_flight, timeout_seconds and deadline_seconds over 0",
                got=str(self),
            )
        if self.hedge_factor is not None and self.hedge_factor < 1:
            raise InputError(
                "a second request cannot be sent before the first is late",
                expected="hedge_factor of at least 1, or None",
                got=self.hedge_factor,
            )


@dataclasses.dataclass
class ReadCounts:
    """What a process has asked of object storage.

    Attributes:
        requests: All of them.
        received_bytes: Of answers that were taken.
        retries: Requests after failures.
        hedges: Second requests for stragglers.
        throttled: Answers that said that it was too much.
    """

    requests: int = 0
    received_bytes: int = 0
    retries: int = 0
    hedges: int = 0
    throttled: int = 0


class _Gate:
    """How many requests are in flight, of all threads, and how many may be."""

    def __init__(self, most: int):
        self._most, self.limit = most, float(most)
        self._inside = self._waiting = 0
        self._last_cut = 0.0
        self._freed = threading.Condition(threading.Lock())

    def enter(self, *, wait_seconds: float) -> bool:
        with self._freed:
            if self._inside >= self.limit and wait_seconds:
                self._waiting += 1
                self._freed.wait(wait_seconds)
                self._waiting -= 1
            if self._inside >= self.limit:
                return False
            self._inside += 1
            return True

    def leave(self, *, throttled: bool) -> None:
        with self._freed:
            self._inside -= 1
            if throttled:
                # Those in flight together are one event.
                now = time.monotonic()
                if now - self._last_cut > _FIRST_PAUSE_SECONDS:
                    self._last_cut = now
                    self.limit = max(self.limit / 2, min(_FEWEST_IN_FLIGHT, self._most))
            elif self.limit < self._most:
                self.limit = min(self.limit + 1 / self.limit, self._most)
            if self._waiting:
                self._freed.notify()


class _Lateness:
    """How long an answer may take before it is a straggler."""

    def __init__(self, factor: float | None):
        self._factor = factor
        self._seconds: collections.deque[float] = collections.deque(maxlen=256)
        self._count = 0
        self._hedges = 0
        self.after_seconds = float("inf")

    def took(self, seconds: float) -> None:
        self._seconds.append(seconds)
        self._count += 1
        if self._factor is not None and self._count % 64 == 0:
            ordered = sorted(self._seconds)
            usual = ordered[len(ordered) * 95 // 100]
            self.after_seconds = max(self._factor * usual, _HEDGE_SHORTEST_SECONDS)

    def hedge(self) -> bool:
        """Tells whether one more may be sent, and counts it."""
        if (self._hedges + 1) * _HEDGE_EVERY > self._count:
            return False
        self._hedges += 1
        return True


class RangeFetcher:
    """Reads ranges of objects. Safe to share by threads, not across a fork.

    Args:
        options: How.
    """

    def __init__(self, options: ReadOptions | None = None):
        self.options = options or ReadOptions()
        self.counts = ReadCounts()
        self._reads = ObjectReads()
        self._busy = threading.local()
        self._gate = _Gate(self.options.in_flight)
        self._lateness = _Lateness(self.options.hedge_factor)

    def fetch(
        self, ranges: Sequence[ByteRange], take: Callable[[int, bytes], None]
    ) -> None:
        """Reads ranges, all at once, and hands over each when it arrives.

        Args:
            ranges: What to read. Each answer has its length, and its version.
            take: Called with the number of a range, and its bytes. It must not fetch
                itself: what is in flight keeps its places meanwhile.

        Raises:
            StorageError: A range cannot be read. It names object, range and cause.
            StorageChangedError: An object was deleted or written again.
            RuntimeError: `take` fetches.
        """
        if getattr(self._busy, "fetching", False):
            # With all places taken it would wait for itself.
            raise RuntimeError("a fetch in the middle of another one, of one thread")
        self._busy.fetching = True
        try:
            _Call(self, ranges, take).run()
        finally:
            self._busy.fetching = False

    def fetch_one(self, wanted: ByteRange) -> bytes:
        """Reads one range; see `fetch`."""
        found: list[bytes] = []
        self.fetch([wanted], lambda _, data: found.append(data))
        return found[0]


class _Flight(NamedTuple):
    """A request that was sent: for which range, when, and what reads it."""

    number: int
    begun: float
    read: ObjectRead


class _Call:
    """One call of `fetch`."""

    def __init__(
        self,
        fetcher: RangeFetcher,
        ranges: Sequence[ByteRange],
        take: Callable[[int, bytes], None],
    ):
        self._fetcher, self._ranges, self._take = fetcher, ranges, take
        self._options = fetcher.options
        # Oldest first.
        self._flying: collections.deque[_Flight] = collections.deque()
        self._done: collections.deque[_Flight] = collections.deque()
        self._looked_at = 0.0
        self._waiting = collections.deque(range(len(ranges)))
        # (time, number, whether to try again or to look whether it is late)
        self._agenda: list[tuple[float, int, bool]] = []
        self._open = set(range(len(ranges)))
        self._begun: dict[int, float] = {}
        self._failed: collections.Counter[int] = collections.Counter()
        self._wrong: collections.Counter[int] = collections.Counter()
        self._told: dict[int, str] = {}

    def run(self) -> None:
        gate, counts = self._fetcher._gate, self._fetcher.counts
        try:
            while self._open:
                self._follow_agenda(time.monotonic())
                self._start_waiting()
                if self._flying:  # Otherwise others have all the places.
                    self._look()
                while self._done:
                    number, begun, read = self._done.popleft()
                    outcome = read.outcome()
                    throttled = (
                        isinstance(outcome, Failure) and outcome.status in _THROTTLED
                    )
                    gate.leave(throttled=throttled)
                    self._start_waiting()
                    if number not in self._open:
                        continue  # Its other request was faster.
                    if isinstance(outcome, bytes):
                        self._open.remove(number)
                        self._fetcher._lateness.took(time.monotonic() - begun)
                        counts.received_bytes += len(outcome)
                        self._take(number, outcome)
                    else:
                        self._after(number, outcome)
        finally:
            for flight in itertools.chain(self._flying, self._done):
                flight.read.give_up()
                gate.leave(throttled=False)
            self._flying.clear()
            self._done.clear()

    def _look(self) -> None:
        """Waits for answers, not for long, and takes those that are there."""
        flying, done = self._flying, self._done
        flying[0].read.wait(min(self._patience(), _GLANCE_SECONDS))
        while flying and flying[0].read.done():
            done.append(flying.popleft())
        now = time.monotonic()
        if now - self._looked_at >= _GLANCE_SECONDS:
            # The oldest may be a straggler.
            self._looked_at = now
            self._flying = collections.deque()
            for flight in flying:
                (done if flight.read.done() else self._flying).append(flight)

    def _start_waiting(self) -> None:
        while self._waiting:
            # Whoever has nothing in flight has nothing else to wait for.
            wait_seconds = 0.0 if self._flying or self._done else 0.1
            if not self._fetcher._gate.enter(wait_seconds=wait_seconds):
                return
            self._start(self._waiting.popleft())

    def _start(self, number: int) -> None:
        now = time.monotonic()
        self._begun.setdefault(number, now)
        fetcher, wanted = self._fetcher, self._ranges[number]
        fetcher.counts.requests += 1
        try:
            read = fetcher._reads.start(wanted)
        except BaseException:
            fetcher._gate.leave(throttled=False)
            raise
        self._flying.append(_Flight(number, now, read))
        late = min(fetcher._lateness.after_seconds, self._timeout_seconds(wanted))
        heapq.heappush(self._agenda, (now + late, number, False))

    def _timeout_seconds(self, wanted: ByteRange) -> float:
        size = 0 if wanted.end is None else wanted.end - wanted.begin
        return self._options.timeout_seconds + size / _SLOWEST_BYTES_PER_SECOND

    def _patience(self) -> float:
        """Returns how long to wait for an answer."""
        if not self._agenda:
            return self._options.timeout_seconds
        return max(self._agenda[0][0] - time.monotonic(), 0.001)

    def _follow_agenda(self, now: float) -> None:
        while self._agenda and self._agenda[0][0] <= now:
            _, number, again = heapq.heappop(self._agenda)
            if number not in self._open:
                continue
            if again:
                self._waiting.appendleft(number)
            else:
                self._late(number, now)

    def _late(self, number: int, now: float) -> None:
        """Sends a second request for a straggler, or for one that is given up."""
        timeout = self._timeout_seconds(self._ranges[number])
        waited = now - self._begun[number]
        counts = self._fetcher.counts
        if waited >= self._options.deadline_seconds:
            text = f"no answer in {timeout:,.1f} seconds"
            self._give_up(number, self._told.get(number, text))
        if waited >= timeout * (self._failed[number] + 1):
            self._failed[number] += 1
            counts.retries += 1
            self._waiting.appendleft(number)
        elif self._fetcher._lateness.hedge():
            counts.hedges += 1
            self._waiting.appendleft(number)
        else:
            due = self._begun[number] + timeout * (self._failed[number] + 1)
            heapq.heappush(self._agenda, (max(due, now + 0.001), number, False))

    def _after(self, number: int, outcome: Failure | Changed) -> None:
        """Says when to try again, or that there is no use in it."""
        wanted, now = self._ranges[number], time.monotonic()
        if isinstance(outcome, Changed):
            raise _changed(wanted, outcome.got)
        self._told[number] = outcome.text
        if outcome.status in _THROTTLED:
            self._fetcher.counts.throttled += 1
        if outcome.wrong or outcome.status not in _PASSING:
            self._wrong[number] += 1
            if not outcome.wrong or self._wrong[number] == _WRONG_ANSWERS:
                self._refuse(wanted, outcome)
        if now - self._begun[number] >= self._options.deadline_seconds:
            self._give_up(number, outcome.text)
        pause = _FIRST_PAUSE_SECONDS * 2 ** min(self._failed[number], 10)
        pause = min(pause, _LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1.0)
        last = self._begun[number] + self._options.deadline_seconds
        self._failed[number] += 1
        self._fetcher.counts.retries += 1
        heapq.heappush(self._agenda, (min(now + pause, max(last, now)), number, True))

    def _refuse(self, wanted: ByteRange, failure: Failure) -> NoReturn:
        cure = "run the same again; then look at the object"
        if failure.status == 401:
            cure = (
                "run `gcloud auth application-default login`, or let "
                "GOOGLE_APPLICATION_CREDENTIALS name a key file"
            )
        elif failure.status == 403:
            cure = "give this account the role roles/storage.objectViewer on the bucket"
        elif failure.wrong and wanted.version is not None:
            # A shorter object than the one that is meant cannot answer either.
            found = storage_for(wanted.path).stat(wanted.path)
            if found is None or found.version != wanted.version:
                got = "no object" if found is None else f"version {found.version}"
                raise _changed(wanted, got)
        raise _error(wanted, failure.text, cure)

    def _give_up(self, number: int, text: str) -> NoReturn:
        tries = self._failed[number] + 1
        raise _error(
            self._ranges[number],
            f"no success in {self._options.deadline_seconds:,.0f} seconds and "
            f"{tries:,} tries; last: {text}",
            "check network and service status, then run the same again",
        )


def _changed(wanted: ByteRange, got: str) -> StorageChangedError:
    return StorageChangedError(
        "object was deleted or written again while it was in use",
        where=str(wanted),
        expected=f"version {wanted.version}" if wanted.version else "an object",
        got=got,
        cure="open the dataset again, if it was converted again; otherwise restore "
        "the object from a copy",
    )


def _error(wanted: ByteRange, got: str, cure: str) -> StorageError:
    return StorageError("cannot read the object", where=str(wanted), got=got, cure=cure)
