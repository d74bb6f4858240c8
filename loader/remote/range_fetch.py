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
from typing import NoReturn

from gristmill.dataset.errors import (
    InputError,
    StorageChangedError,
    StorageError,
)
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.remote.object_reads import (
    ByteRange,
    Changed,
    Failure,
    ObjectRead,
    ObjectReads,
)
from gristmill.loader.remote.request_limit import Lateness, Places

_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 8.0
# A slow line is not a dead one: so much more time for each byte.
_SLOWEST_BYTES_PER_SECOND = 1 << 20
# Wrong answers of a server that answers: worth another try, but not a deadline of them.
_WRONG_ANSWERS = 4
# How long to wait for the oldest request before looking whether others are done.
_GLANCE_SECONDS = 0.002
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
        self._places = Places(self.options.in_flight)
        self._lateness = Lateness(self.options.hedge_factor)

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
        self.check_process()
        if getattr(self._busy, "fetching", False):
            # With all places taken it would wait for itself.
            raise RuntimeError("a fetch in the middle of another one, of one thread")
        self._busy.fetching = True
        try:
            _Call(self, ranges, take).run()
        finally:
            self._busy.fetching = False

    def check_process(self) -> None:
        """Raises StorageError in a forked process: the threads are its parent's."""
        self._reads.check_process()

    def fetch_one(self, wanted: ByteRange) -> bytes:
        """Reads one range; see `fetch`."""
        found: list[bytes] = []
        self.fetch([wanted], lambda _, data: found.append(data))
        return found[0]


@dataclasses.dataclass(slots=True, eq=False)
class _Flight:
    """A request that was sent.

    Attributes:
        number: Of its range.
        begun: When.
        read: What reads it.
        holds_place: Whether it counts as in flight. It does so until it is overdue.
        landed: Whether something came of it.
    """

    number: int
    begun: float
    read: ObjectRead
    holds_place: bool = True
    landed: bool = False


class _Call:
    """One call of `fetch`."""

    def __init__(
        self,
        fetcher: RangeFetcher,
        ranges: Sequence[ByteRange],
        take: Callable[[int, bytes], None],
    ):
        self._fetcher, self._ranges, self._take = fetcher, ranges, take
        self._options, self._counts = fetcher.options, fetcher.counts
        self._claim = fetcher._places.claim()
        # Oldest first.
        self._flying: collections.deque[_Flight] = collections.deque()
        self._done: collections.deque[_Flight] = collections.deque()
        self._looked_at = 0.0
        self._waiting = collections.deque(range(len(ranges)))
        # When to try a range again, or to look whether a flight is late; the second
        # number makes entries comparable.
        self._agenda: list[tuple[float, int, int | _Flight]] = []
        self._entries = itertools.count()
        self._open = set(range(len(ranges)))
        self._begun: dict[int, float] = {}
        self._latest: dict[int, _Flight] = {}
        self._failed: collections.Counter[int] = collections.Counter()
        self._wrong: collections.Counter[int] = collections.Counter()
        self._told: dict[int, str] = {}

    def run(self) -> None:
        try:
            while self._open:
                self._follow_agenda(time.monotonic())
                self._start_waiting()
                if self._flying:
                    self._look()
                elif not self._waiting:  # All that is left will be tried again.
                    time.sleep(self._patience())
                while self._done:
                    self._land(self._done.popleft())
        finally:
            self._claim.give_back_all()
            for flight in itertools.chain(self._flying, self._done):
                flight.read.give_up()

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

    def _land(self, flight: _Flight) -> None:
        outcome = flight.read.outcome()
        flight.landed = True
        if flight.holds_place:
            refused = isinstance(outcome, Failure) and outcome.status in _THROTTLED
            self._claim.give_back(throttled=refused)
            self._start_waiting()
        if flight.number not in self._open:
            return  # Its other request was faster.
        if isinstance(outcome, bytes):
            self._open.remove(flight.number)
            self._fetcher._lateness.took(time.monotonic() - flight.begun)
            self._counts.received_bytes += len(outcome)
            self._take(flight.number, outcome)
        else:
            self._after(flight, outcome)

    def _start_waiting(self) -> None:
        while self._waiting:
            if self._waiting[0] not in self._open:
                self._waiting.popleft()  # What was late has come after all.
                continue
            # Whoever has nothing in flight has nothing else to wait for.
            wait_seconds = 0.0 if self._flying or self._done else 0.1
            if not self._claim.take(wait_seconds=wait_seconds):
                return
            self._start(self._waiting.popleft())

    def _start(self, number: int) -> None:
        now = time.monotonic()
        self._begun.setdefault(number, now)
        fetcher, wanted = self._fetcher, self._ranges[number]
        self._counts.requests += 1
        flight = _Flight(number, now, fetcher._reads.start(wanted))
        self._flying.append(flight)
        self._latest[number] = flight
        late = now + fetcher._lateness.after_seconds
        self._enter(min(late, self._due(flight)), flight)

    def _due(self, flight: _Flight) -> float:
        """Returns when an answer is given up, or the range."""
        number = flight.number
        return min(
            flight.begun + self._timeout_seconds(number),
            self._begun[number] + self._options.deadline_seconds,
        )

    def _timeout_seconds(self, number: int) -> float:
        wanted = self._ranges[number]
        size = 0 if wanted.end is None else wanted.end - wanted.begin
        return self._options.timeout_seconds + size / _SLOWEST_BYTES_PER_SECOND

    def _enter(self, due: float, what: int | _Flight) -> None:
        heapq.heappush(self._agenda, (due, next(self._entries), what))

    def _patience(self) -> float:
        """Returns how long nothing is to be done, unless an answer comes."""
        if not self._agenda:
            return self._options.timeout_seconds
        return max(self._agenda[0][0] - time.monotonic(), 0.001)

    def _follow_agenda(self, now: float) -> None:
        while self._agenda and self._agenda[0][0] <= now:
            what = heapq.heappop(self._agenda)[2]
            if isinstance(what, _Flight):
                if not what.landed and what.number in self._open:
                    self._late(what, now)
            elif what in self._open:
                self._waiting.appendleft(what)

    def _late(self, flight: _Flight, now: float) -> None:
        """Sends a second request for a straggler, or for one that is given up."""
        number = flight.number
        silence = f"no answer in {self._timeout_seconds(number):,.1f} seconds"
        if now - self._begun[number] >= self._options.deadline_seconds:
            self._give_up(number, self._told.get(number, silence))
        latest = self._latest[number] is flight
        if now >= self._due(flight):
            # Its answer is welcome if it comes, but others need the place.
            flight.holds_place = False
            self._told[number] = silence
            self._claim.give_back(answered=False)
            if latest:
                self._failed[number] += 1
                self._counts.retries += 1
                self._waiting.appendleft(number)
            return
        if latest and self._fetcher._lateness.hedge():
            self._counts.hedges += 1
            self._waiting.appendleft(number)
        self._enter(self._due(flight), flight)

    def _after(self, flight: _Flight, outcome: Failure | Changed) -> None:
        """Says when to try again, or that there is no use in it."""
        number = flight.number
        wanted, now = self._ranges[number], time.monotonic()
        if isinstance(outcome, Changed):
            raise _changed(wanted, outcome.got)
        self._told[number] = outcome.text
        if outcome.status in _THROTTLED:
            self._counts.throttled += 1
        if outcome.wrong or outcome.status not in _PASSING:
            self._wrong[number] += 1
            if not outcome.wrong or self._wrong[number] == _WRONG_ANSWERS:
                self._refuse(wanted, outcome)
        if now - self._begun[number] >= self._options.deadline_seconds:
            self._give_up(number, outcome.text)
        if self._latest[number] is not flight or not flight.holds_place:
            return  # Another request is on its way.
        pause = _FIRST_PAUSE_SECONDS * 2 ** min(self._failed[number], 10)
        pause = min(pause, _LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1.0)
        last = self._begun[number] + self._options.deadline_seconds
        self._failed[number] += 1
        self._counts.retries += 1
        self._enter(min(now + pause, max(last, now)), number)

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
