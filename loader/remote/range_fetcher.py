"""A fetcher of many ranges of objects: retried until a deadline, sent twice where late.

Answers come in any order. A temporary failure is retried after growing pauses, until a
deadline. A request that takes much longer than others gets a second one (a hedge).
While a server throttles, fewer requests are in flight, over all threads.
"""

from __future__ import annotations

import collections
import dataclasses
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
        self.taken = 0
        self._last_cut = 0.0
        # The lock is entered directly and not through the condition, whose methods are
        # written in Python: Ctrl-C inside them could leave it locked.
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)

    def take(self, *, wait_seconds: float) -> bool:
        """Takes a slot; returns False if none was free in that time."""
        with self._lock:
            if self.taken >= self.limit and wait_seconds:
                self._freed.wait(wait_seconds)
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
# Each request for a range waits twice as long as the one before, up to this often.
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


@dataclasses.dataclass(slots=True, eq=False)
class _Range:
    """A range that is read, and what became of its requests so far.

    Attributes:
        number: Its number, for the caller.
        wanted: The range.
        begun_at: When the first request was sent.
        latest: The last request that was sent.
        failed: Failed requests.
        wrong: Answers with other bytes.
        error: The last error.
        done: Whether its bytes are here.
    """

    number: int
    wanted: ByteRange
    begun_at: float | None = None
    latest: Read | None = None
    failed: int = 0
    wrong: int = 0
    error: str = ""
    done: bool = False


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
        self._take, self._fetcher = take, fetcher
        self._options, self._counts = fetcher.options, fetcher.counts
        self._reads = ReadsInFlight(fetcher.reads)
        self._in_flight: dict[Read, _Range] = {}
        self._waiting = collections.deque(map(_Range, itertools.count(), ranges))
        self._left = len(ranges)
        # A heap of (when, serial number, range, request): the range is to be asked for
        # again, or its request to be checked. Serial numbers make entries comparable.
        self._timers: list[tuple[float, int, _Range, Read | None]] = []
        self._serials = itertools.count()

    def run(self) -> None:
        """Sends them, and hands over the bytes of all ranges.

        Raises:
            StorageError: A range cannot be read. It names object, range and cause.
            StorageChangedError: An object was deleted or written again.
        """
        try:
            while self._left:
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
                self._fetcher.limit.give_back(answered=False)
            self._reads.close()

    def _finish(self, request: Read, outcome: bytes | Failure) -> None:
        one = self._in_flight.pop(request)
        refused = isinstance(outcome, Failure) and outcome.status in _THROTTLED
        self._fetcher.limit.give_back(throttled=refused)
        self._send_waiting()
        if one.done:
            return  # The range's other request was faster.
        if isinstance(outcome, bytes):
            one.done, self._left = True, self._left - 1
            self._fetcher.hedging.add_answer(time.monotonic() - request.sent_at)
            self._counts.received_bytes += len(outcome)
            self._take(one.number, outcome)
        else:
            self._retry_later(one, request, outcome)

    def _send_waiting(self) -> None:
        while self._waiting:
            if self._waiting[0].done:
                self._waiting.popleft()  # A late answer has arrived meanwhile.
                continue
            # With nothing in flight there is nothing else to wait for.
            wait_seconds = 0.0 if self._in_flight else 0.1
            if not self._fetcher.limit.take(wait_seconds=wait_seconds):
                return
            self._send(self._waiting.popleft())

    def _send(self, one: _Range) -> None:
        self._counts.requests += 1
        try:
            request = self._reads.start(one.wanted)
        except BaseException:
            self._fetcher.limit.give_back(answered=False)
            raise
        if one.begun_at is None:
            one.begun_at = request.sent_at
        self._in_flight[request] = one
        one.latest = request
        late = request.sent_at + self._fetcher.hedging.late_after_seconds
        self._set_timer(min(late, self._times_out_at(one, request)), one, request)

    def _ends_at(self, one: _Range) -> float:
        """Returns the time when a range is given up."""
        return (one.begun_at or 0.0) + self._options.deadline_seconds

    def _times_out_at(self, one: _Range, request: Read) -> float:
        """Returns the time when a request, or its range, is given up."""
        return min(request.sent_at + self._timeout_seconds(one), self._ends_at(one))

    def _timeout_seconds(self, one: _Range) -> float:
        wanted = one.wanted
        size = 0 if wanted.end is None else wanted.end - wanted.begin
        seconds = self._options.timeout_seconds + size / _SLOWEST_BYTES_PER_SECOND
        patience: int = 1 << min(one.failed, _MOST_DOUBLINGS)
        return seconds * patience

    def _set_timer(self, due: float, one: _Range, request: Read | None = None) -> None:
        heapq.heappush(self._timers, (due, next(self._serials), one, request))

    def _idle_seconds(self) -> float:
        """Returns how long to wait for answers."""
        if not self._timers:
            return self._options.timeout_seconds
        return max(self._timers[0][0] - time.monotonic(), 0.001)

    def _run_timers(self, now: float) -> None:
        while self._timers and self._timers[0][0] <= now:
            _, _, one, request = heapq.heappop(self._timers)
            if one.done:
                continue
            if request is None:
                self._waiting.appendleft(one)
            elif request in self._in_flight:
                self._handle_late(one, request, now)

    def _handle_late(self, one: _Range, request: Read, now: float) -> None:
        """Sends a second request for one that is late or has timed out."""
        silence = f"no answer in {self._timeout_seconds(one):,.1f} seconds"
        if now >= self._ends_at(one):
            self._give_up(one, one.error or silence)
        latest = one.latest is request
        if now >= self._times_out_at(one, request):
            del self._in_flight[request]
            self._reads.give_up(request)
            self._fetcher.limit.give_back(answered=False)
            one.error = silence
            if latest:
                one.failed += 1
                self._counts.retries += 1
                self._waiting.appendleft(one)
            return
        if latest and self._fetcher.hedging.take_hedge():
            self._counts.hedges += 1
            self._waiting.appendleft(one)
        self._set_timer(self._times_out_at(one, request), one, request)

    def _retry_later(self, one: _Range, request: Read, outcome: Failure) -> None:
        """Schedules a retry after a failure, or raises if that is useless."""
        now, last = time.monotonic(), self._ends_at(one)
        one.error = outcome.text
        if outcome.status in _THROTTLED:
            self._counts.throttled += 1
        if outcome.kind is not Kind.TEMPORARY:
            one.wrong += 1
            if outcome.kind is Kind.REFUSED or one.wrong == _WRONG_ANSWERS:
                _refuse(one.wanted, outcome)
        if outcome.kind is Kind.DOUBTFUL:
            _look_again(one.wanted)
        elif outcome.kind is Kind.UNAUTHORIZED:
            self._fetcher.reads.token(refused=outcome.token)
        if now >= last:
            self._give_up(one, outcome.text)
        if one.latest is not request:
            return  # Another request is on its way.
        pause = _FIRST_PAUSE_SECONDS * 2 ** min(one.failed, 10)
        pause = min(pause, _LONGEST_PAUSE_SECONDS) * random.uniform(0.5, 1.0)
        # If a server asks for more time than is left, the try is before the deadline.
        share = _LAST_TRY_SHARE * self._options.deadline_seconds
        margin = min(_LAST_TRY_SECONDS, share)
        pause = max(pause, min(outcome.pause_seconds, last - margin - now))
        one.failed += 1
        self._counts.retries += 1
        self._set_timer(min(now + pause, max(last, now)), one)

    def _give_up(self, one: _Range, text: str) -> NoReturn:
        raise _error(
            one.wanted,
            f"no success in {self._options.deadline_seconds:,.0f} seconds and "
            f"{one.failed + 1:,} tries; last: {text}",
            "check the network and the status of Cloud Storage, then run again",
        )


def _refuse(wanted: ByteRange, failure: Failure) -> NoReturn:
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

    Attributes:
        options: Options of reading.
        counts: Counts of requests so far.
        limit: Limit of requests in flight, over all calls.
        reads: The connections.
        hedging: When a late request gets a second one.
    """

    def __init__(self, options: ReadOptions | None = None):
        self.options = options or ReadOptions()
        self.counts = ReadCounts()
        self.reads = ObjectReads(timeout_seconds=self.options.timeout_seconds)
        self._process = os.getpid()
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
        HedgedRequests(ranges, take, self).run()

    def check_process(self) -> None:
        """Raises StorageError in a process that was forked after this was made."""
        if os.getpid() != self._process:
            raise StorageError(
                "cannot read object storage in a process that was forked after the "
                "first read: it would share connections with the first",
                cure="start worker processes with the method 'spawn', or open the "
                "dataset in the worker",
            )
