"""A fetcher of many ranges of objects: retried until a deadline, sent twice where late.

Answers come in any order. A temporary failure is retried after growing pauses, until a
deadline. A request that takes much longer than others gets a second one (a hedge).
While a server throttles, fewer requests are in flight, over all threads.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from gristmill.dataset.base.errors import StorageChangedError, StorageError
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.remote.object_reads import (
    ByteRange,
    Failure,
    Kind,
    ObjectReads,
    Read,
    ReadsInFlight,
)
from gristmill.loader.remote.read_options import ReadCounts, ReadOptions

# Requests in flight together are throttled together: that is one event.
_ONE_EVENT_SECONDS = 0.1
_FEWEST_REQUESTS = 4


class RequestLimit:
    """A limit on requests in flight, which drops while a server throttles.

    Args:
        most: Maximum requests in flight.

    Attributes:
        limit: Current limit.
        taken: Number of slots taken.
    """

    def __init__(self, most: int):
        self._most, self.limit = most, float(most)
        self.taken = self._waiting = 0
        self._last_cut = 0.0
        # The lock is entered directly and not through the condition, whose methods are
        # written in Python: Ctrl-C inside them could leave it locked.
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)

    def take(self, *, wait_seconds: float) -> bool:
        """Takes a slot; returns False if none was free in that time."""
        with self._lock:
            if self.taken >= self.limit and wait_seconds:
                self._waiting += 1
                try:
                    self._freed.wait(wait_seconds)
                finally:
                    self._waiting -= 1
            if self.taken >= self.limit:
                return False
            self.taken += 1
            return True

    def give_back(self, *, answered: bool = True, throttled: bool = False) -> None:
        """Gives a slot back after an answer, which may report an overload."""
        with self._lock:
            self.taken -= 1
            now = time.monotonic()
            if throttled and now - self._last_cut > _ONE_EVENT_SECONDS:
                self._last_cut = now
                self.limit = max(self.limit / 2, min(_FEWEST_REQUESTS, self._most))
            elif answered and not throttled and self.limit < self._most:
                self.limit = min(self.limit + 1 / self.limit, self._most)
            if self._waiting:
                self._freed.notify()


# At most one request in this many is a second one for a late answer.
_HEDGE_EVERY = 100
_HEDGE_SHORTEST_SECONDS = 0.05
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 8.0
# A slow connection is not dead: it gets more time for each byte.
_SLOWEST_BYTES_PER_SECOND = 1 << 20
# After this many wrong answers to a range, it fails before its deadline.
_WRONG_ANSWERS = 4
# Each request for a range waits twice as long as the one before, so often at most.
_MOST_DOUBLINGS = 3
# Maximum share of the deadline kept for a try after a server asked for more time.
_LAST_TRY_SECONDS = 2.0
_LAST_TRY_SHARE = 0.25
_SLOTS_SECONDS = 0.01
_THROTTLED = (429, 503)


class HedgePolicy:
    """The rule by which a late request gets a second one.

    Args:
        factor: A request is late after this multiple of the 95th percentile of others;
            None for never.

    Attributes:
        late_after_seconds: Time after which a request is late.
    """

    def __init__(self, factor: float | None):
        self._factor = factor
        self._seconds: collections.deque[float] = collections.deque(maxlen=256)
        self._answers = 0
        self._hedges = 0
        self.late_after_seconds = float("inf")

    def add_answer(self, seconds: float) -> None:
        """Counts an answer, and how long it took."""
        self._seconds.append(seconds)
        self._answers += 1
        if self._factor is not None and self._answers % 64 == 0:
            ordered = sorted(self._seconds)
            usual = ordered[len(ordered) * 95 // 100]
            self.late_after_seconds = max(self._factor * usual, _HEDGE_SHORTEST_SECONDS)

    def take_hedge(self) -> bool:
        """Returns whether another second request may be sent, and counts it."""
        if (self._hedges + 1) * _HEDGE_EVERY > self._answers:
            return False
        self._hedges += 1
        return True


class HedgedRequests:
    """The requests for the ranges of one call.

    Args:
        ranges: The ranges.
        take: Called with the number of a range and its bytes.
        fetcher: Whose connections, limits and counts they use.
    """

    def __init__(
        self,
        ranges: Sequence[ByteRange],
        take: Callable[[int, bytes], None],
        fetcher: RangeFetcher,
    ):
        self._ranges, self._take = ranges, take
        self._options, self._counts = fetcher.options, fetcher.counts
        self._limit, self._policy = fetcher.limit, fetcher.hedging
        self._connections = fetcher.reads
        self._reads = ReadsInFlight(fetcher.reads)
        self._in_flight: set[Read] = set()
        self._waiting = collections.deque(range(len(ranges)))
        # A heap of (when, serial number, item): a range to retry or a request to check.
        # The serial numbers make entries comparable.
        self._timers: list[tuple[float, int, int | Read]] = []
        self._serials = itertools.count()
        self._open = set(range(len(ranges)))
        self._begun_at: dict[int, float] = {}
        self._latest: dict[int, Read] = {}
        self._failed: collections.Counter[int] = collections.Counter()
        self._wrong: collections.Counter[int] = collections.Counter()
        self._last_errors: dict[int, str] = {}

    def run(self) -> None:
        """Sends them, and hands over the bytes of all ranges.

        Raises:
            StorageError: A range cannot be read. It names object, range and cause.
            StorageChangedError: An object was deleted or written again.
        """
        try:
            while self._open:
                self._run_timers(time.monotonic())
                self._send_waiting()
                if self._in_flight:
                    seconds = self._idle_seconds()
                    if self._waiting:  # For slots that other threads give back.
                        seconds = min(seconds, _SLOTS_SECONDS)
                    for request, outcome in self._reads.wait(seconds):
                        self._finish(request, outcome)
                elif not self._waiting:  # Only retries are left.
                    time.sleep(self._idle_seconds())
        finally:
            for _ in self._in_flight:
                self._limit.give_back(answered=False)
            self._reads.close()

    def _finish(self, request: Read, outcome: bytes | Failure) -> None:
        self._in_flight.discard(request)
        refused = isinstance(outcome, Failure) and outcome.status in _THROTTLED
        self._limit.give_back(throttled=refused)
        self._send_waiting()
        if request.number not in self._open:
            return  # The range's other request was faster.
        if isinstance(outcome, bytes):
            self._open.remove(request.number)
            self._policy.add_answer(time.monotonic() - request.sent_at)
            self._counts.received_bytes += len(outcome)
            self._take(request.number, outcome)
        else:
            self._retry_later(request, outcome)

    def _send_waiting(self) -> None:
        while self._waiting:
            if self._waiting[0] not in self._open:
                self._waiting.popleft()  # A late answer has arrived meanwhile.
                continue
            # With nothing in flight there is nothing else to wait for.
            wait_seconds = 0.0 if self._in_flight else 0.1
            if not self._limit.take(wait_seconds=wait_seconds):
                return
            self._send(self._waiting.popleft())

    def _send(self, number: int) -> None:
        self._counts.requests += 1
        try:
            request = self._reads.start(self._ranges[number], number)
        except BaseException:
            self._limit.give_back(answered=False)
            raise
        self._begun_at.setdefault(number, request.sent_at)
        self._in_flight.add(request)
        self._latest[number] = request
        late = request.sent_at + self._policy.late_after_seconds
        self._set_timer(min(late, self._times_out_at(request)), request)

    def _times_out_at(self, request: Read) -> float:
        """Returns the time when a request, or its range, is given up."""
        number = request.number
        return min(
            request.sent_at + self._timeout_seconds(number),
            self._begun_at[number] + self._options.deadline_seconds,
        )

    def _timeout_seconds(self, number: int) -> float:
        wanted = self._ranges[number]
        size = 0 if wanted.end is None else wanted.end - wanted.begin
        patience = 1 << min(self._failed[number], _MOST_DOUBLINGS)
        seconds = self._options.timeout_seconds + size / _SLOWEST_BYTES_PER_SECOND
        return seconds * patience

    def _set_timer(self, due: float, what: int | Read) -> None:
        heapq.heappush(self._timers, (due, next(self._serials), what))

    def _idle_seconds(self) -> float:
        """Returns how long to wait for answers."""
        if not self._timers:
            return self._options.timeout_seconds
        return max(self._timers[0][0] - time.monotonic(), 0.001)

    def _run_timers(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            what = heapq.heappop(self._timers)[2]
            if isinstance(what, Read):
                if what in self._in_flight and what.number in self._open:
                    self._handle_late(what, now)
            elif what in self._open:
                self._waiting.appendleft(what)

    def _handle_late(self, request: Read, now: float) -> None:
        """Sends a second request for one that is late or has timed out."""
        number = request.number
        silence = f"no answer in {self._timeout_seconds(number):,.1f} seconds"
        if now - self._begun_at[number] >= self._options.deadline_seconds:
            self._give_up(number, self._last_errors.get(number, silence))
        latest = self._latest[number] is request
        if now >= self._times_out_at(request):
            self._in_flight.discard(request)
            self._reads.give_up(request)
            self._limit.give_back(answered=False)
            self._last_errors[number] = silence
            if latest:
                self._failed[number] += 1
                self._counts.retries += 1
                self._waiting.appendleft(number)
            return
        if latest and self._policy.take_hedge():
            self._counts.hedges += 1
            self._waiting.appendleft(number)
        self._set_timer(self._times_out_at(request), request)

    def _retry_later(self, request: Read, outcome: Failure) -> None:
        """Schedules a retry after a failure, or raises if that is useless."""
        number = request.number
        wanted, now = self._ranges[number], time.monotonic()
        self._last_errors[number] = outcome.text
        if outcome.status in _THROTTLED:
            self._counts.throttled += 1
        if outcome.kind is not Kind.TEMPORARY:
            self._wrong[number] += 1
            final = outcome.kind is Kind.REFUSED
            if final or self._wrong[number] == _WRONG_ANSWERS:
                self._refuse(wanted, outcome)
        if outcome.kind is Kind.DOUBTFUL:
            _look_again(wanted)
        elif outcome.kind is Kind.UNAUTHORIZED:
            self._connections.token(refused=outcome.token)
        if now - self._begun_at[number] >= self._options.deadline_seconds:
            self._give_up(number, outcome.text)
        if self._latest[number] is not request:
            return  # Another request is on its way.
        pause = _FIRST_PAUSE_SECONDS * 2 ** min(self._failed[number], 10)
        pause = min(pause, _LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1.0)
        deadline = self._options.deadline_seconds
        last = self._begun_at[number] + deadline
        # If a server asks for more time than is left, the try is before the deadline.
        margin = min(_LAST_TRY_SECONDS, _LAST_TRY_SHARE * deadline)
        pause = max(pause, min(outcome.pause_seconds, last - margin - now))
        self._failed[number] += 1
        self._counts.retries += 1
        self._set_timer(min(now + pause, max(last, now)), number)

    def _refuse(self, wanted: ByteRange, failure: Failure) -> NoReturn:
        cure = "run the same again; if it fails again, look at the object"
        if failure.kind is Kind.UNAUTHORIZED:
            cure = (
                "run `gcloud auth application-default login`, or let "
                "GOOGLE_APPLICATION_CREDENTIALS name a key file"
            )
        elif failure.status == 403:
            cure = "give this account the role roles/storage.objectViewer on the bucket"
        elif not failure.status:
            cure = "let REQUESTS_CA_BUNDLE name the certificates to trust"
        elif failure.kind in (Kind.WRONG, Kind.DOUBTFUL):
            # The object may have been replaced by a shorter one.
            _look_again(wanted)
        raise _error(wanted, failure.text, cure)

    def _give_up(self, number: int, text: str) -> NoReturn:
        tries = self._failed[number] + 1
        raise _error(
            self._ranges[number],
            f"no success in {self._options.deadline_seconds:,.0f} seconds and "
            f"{tries:,} tries; last: {text}",
            "check the network and the status of Cloud Storage, then run again",
        )


def _look_again(wanted: ByteRange) -> None:
    """Asks for the object itself; raises an error if it has changed."""
    found = storage_for(wanted.path).stat(wanted.path)
    if found is not None and wanted.version in (None, found.version):
        return
    got = "no object" if found is None else f"version {found.version}"
    raise StorageChangedError(
        "object was deleted or written again while it was in use",
        where=str(wanted),
        expected=f"version {wanted.version}" if wanted.version else "an object",
        got=got,
        cure="if the dataset was converted again, open it again; otherwise restore "
        "the object from a copy",
    )


def _error(wanted: ByteRange, got: str, cure: str) -> StorageError:
    return StorageError("cannot read the object", where=str(wanted), got=got, cure=cure)


class RangeFetcher:
    """Fetches ranges of objects. Safe to share by threads, not across a fork.

    Args:
        options: Options of reading; by default, those of `ReadOptions`.
        reads: The connections to use; by default, new ones.

    Attributes:
        options: Options of reading.
        counts: Counts of requests so far.
        limit: Limit of requests in flight, over all calls.
        reads: The connections.
        hedging: When a late request gets a second one.
    """

    def __init__(
        self, options: ReadOptions | None = None, reads: ObjectReads | None = None
    ):
        self.options = options or ReadOptions()
        self.counts = ReadCounts()
        self.reads = reads or ObjectReads(timeout_seconds=self.options.timeout_seconds)
        self._process = os.getpid()
        self._busy = threading.local()
        self.limit = RequestLimit(self.options.in_flight)
        self.hedging = HedgePolicy(self.options.hedge_factor)

    def fetch(
        self, ranges: Sequence[ByteRange], take: Callable[[int, bytes], None]
    ) -> None:
        """Fetches all ranges concurrently, and hands over each when it arrives.

        Args:
            ranges: Ranges to fetch. Each answer is checked to have the length and the
                version of its range.
            take: Called with the number of a range and its bytes. It must not fetch:
                requests in flight keep their slots meanwhile.

        Raises:
            StorageError: A range cannot be read. It names object, range and cause.
            StorageChangedError: An object was deleted or written again.
        """
        self.check_process()
        if getattr(self._busy, "fetching", False):
            # With all slots taken it would wait for itself.
            raise RuntimeError("fetch was called inside of another fetch")
        self._busy.fetching = True
        try:
            HedgedRequests(ranges, take, self).run()
        finally:
            self._busy.fetching = False

    def check_process(self) -> None:
        """Raises StorageError in a process that was forked after this was made."""
        if os.getpid() != self._process:
            raise StorageError(
                "cannot read object storage in a process that was forked after the "
                "first read: it would share connections with the first",
                cure="start worker processes with the method 'spawn', or open the "
                "dataset in the worker",
            )
