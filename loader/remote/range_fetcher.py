"""A fetcher of many ranges of objects in parallel."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence

from gristmill.dataset.base.errors import StorageError
from gristmill.loader.remote.hedged_requests import HedgedRequests, HedgePolicy
from gristmill.loader.remote.object_reads import ByteRange, ObjectReads
from gristmill.loader.remote.read_options import ReadOptions
from gristmill.loader.remote.request_limits import (
    ReadCounts,
    RequestLimit,
    RequestSlots,
)


class RangeFetcher:
    """Fetches ranges of objects. Safe to share by threads, not across a fork.

    Args:
        options: Options of reading; by default, those of `ReadOptions`.
        reads: The connections to use; by default, new ones.

    Attributes:
        options: Options of reading.
        counts: Counts of requests so far.
        limit: Limit of requests in flight, over all calls.
    """

    def __init__(
        self, options: ReadOptions | None = None, reads: ObjectReads | None = None
    ):
        self.options = options or ReadOptions()
        self.counts = ReadCounts()
        self._reads = reads or ObjectReads(timeout_seconds=self.options.timeout_seconds)
        self._process = os.getpid()
        self._busy = threading.local()
        self.limit = RequestLimit(self.options.in_flight)
        self._hedging = HedgePolicy(self.options.hedge_factor)

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
            HedgedRequests(
                ranges,
                take,
                options=self.options,
                counts=self.counts,
                slots=RequestSlots(self.limit),
                policy=self._hedging,
                reads=self._reads,
            ).run()
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
