"""The batches of a feed as global arrays, the next ones already on the way."""

from __future__ import annotations

import copy
import dataclasses
import time
import weakref
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from multiprocessing.util import Finalize
from typing import Any, NamedTuple, NoReturn, Self

import grain
import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.base.system_limits import limits_named
from gristmill.loader.base.indices import checked_count
from gristmill.loader.feed.global_arrays import RowsRead, global_arrays
from gristmill.loader.feed.stats import FeedStats, span

_END = object()
_PATIENCE_SECONDS = 5

# At exit this is closed before the feed that it reads from.
_EXIT_PRIORITY = 200


def to_jax(feed: Iterable[Any], sharding: Any, *, ahead: int = 1) -> JaxFeed:
    """Returns the batches of a feed as global arrays.

    Args:
        feed: The result of `GlobalBatches.feed`, or any iterable of pytrees of numpy
            arrays whose first axes are this process's rows. The rows of another
            iterable are assumed to follow each other in the order of the processes.
        sharding: A sharding for all arrays, or a pytree of shardings that is a prefix
            of the batches' tree.
        ahead: Batches on their way to the devices while the caller works on one. They
            take device memory. 0 reads and sends each batch when it is requested.

    Raises:
        InputError: The feed's last batch will not be full, and it has no mask.
    """
    return JaxFeed(feed, sharding, ahead=ahead)


class _Loaded(NamedTuple):
    """A batch on its way to the devices; the feed's state and stats after it."""

    number: int
    batch: Any
    state: Any
    stats: FeedStats


class JaxFeed(grain.DatasetIterator):  # type: ignore[misc]  # Grain has no types.
    """Batches as global arrays, the next ones already on their way to the devices.

    Made by `to_jax`. One thread takes batches from the feed and starts their transfer,
    at most `ahead` batches before the caller. State and stats count what was given to
    the caller: batches that were only read ahead are read again after a restart.

    It is an iterator of Grain, so that Grain and Orbax know how to save it.
    """

    _closed = True  # until there is something to close

    def __init__(self, feed: Iterable[Any], sharding: Any, *, ahead: int):
        self._ahead = checked_count(ahead, what="ahead", least=0)
        self._sharding = sharding
        _check_full(feed)
        self._feed: Any = iter(feed)
        self._rows = _rows_read(feed)
        self._resized = isinstance(getattr(feed, "rows", None), Mapping)
        self._state, self._last = self._feed_state(), self._feed_stats()
        self._stats = FeedStats()
        self._pending: deque[Future[_Loaded | None]] = deque()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="gristmill-to-jax")
        self._stopped = False
        # Batches since the start or set_state; the second is the thread's.
        self._given = self._loaded = 0
        self._in_order = True
        self._at_exit = Finalize(
            None, _close, (weakref.ref(self),), exitpriority=_EXIT_PRIORITY
        )
        super().__init__()

    @property
    def _parent(self) -> NoReturn:
        # Grain asserts that there is one, also where a trainer asks by `hasattr`, as
        # MaxText does when it drops its iterators.
        raise AttributeError(f"{type(self).__name__} has no parent")

    def __repr__(self) -> str:
        # Not of the feed: it is at a later step than the caller.
        batches = getattr(self._feed, "batches", self._feed)
        return f"<JaxFeed of {batches!r}: {self._given:,} given, ahead {self._ahead}>"

    def __next__(self) -> Any:
        """Returns the next batch, a tree like the feed's with global arrays.

        Raises:
            StopIteration: The feed has ended.
            InputError: The batch and the sharding do not match, or the feed is closed.
            Exception: What the feed raised.
        """
        asked_at = time.perf_counter()
        with span("gristmill.wait", batch=self._given):
            loaded = self._next_loaded()
        made = dataclasses.replace(
            loaded.stats - self._last,
            batches=1,
            wait_seconds=time.perf_counter() - asked_at,
        )
        self._stats += made
        self._state, self._last = loaded.state, loaded.stats
        self._given += 1
        return loaded.batch

    def _next_loaded(self) -> _Loaded:
        if not self._in_order:
            self.set_state(self._state)
        self._read_ahead(max(self._ahead, 1))
        # A failure or the end stays in place: the next call gets it again.
        loaded = self._pending[0].result()
        if loaded is None:
            raise StopIteration
        if loaded.number != self._given:
            # Ctrl-C came between a batch and its count: it was not given to the caller.
            self.set_state(self._state)
            return self._next_loaded()
        self._pending.popleft()
        self._read_ahead(self._ahead)
        return loaded

    def start_prefetch(self) -> None:
        """Starts to read ahead; asking for a batch does it too."""
        self._read_ahead(self._ahead)

    def get_state(self) -> Any:
        """Returns the feed's state after the last batch that the caller got."""
        return copy.deepcopy(self._state)

    def set_state(self, state: Any) -> None:
        """Goes to a state of this or of its feed; a refused state changes nothing."""
        if not hasattr(self._feed, "set_state"):
            raise InputError(
                "the iterator that was given to to_jax has no set_state",
                got=type(self._feed).__name__,
                cure="give to_jax a feed of gristmill, or an iterator of Grain",
            )
        # Ctrl-C may come anywhere before the end: then all of this is repeated.
        self._in_order = False
        self._forget_pending()
        refused: Exception | None = None
        try:
            self._feed.set_state(state)
        except Exception as e:
            refused = e
            self._feed.set_state(self._state)
        self._last = self._feed_stats()
        self._state = self._feed_state()
        self._in_order = True
        if refused is not None:
            raise refused

    @property
    def stats(self) -> FeedStats:
        """What was given to the caller, and how long the caller waited for it."""
        return self._stats

    def close(self) -> None:
        """Stops reading ahead and closes the feed. It may be called again."""
        if self._closed:
            return
        self._closed = self._stopped = True
        self._at_exit.cancel()
        # The feed is closed while the thread reads from it only if that takes too long.
        wait(self._pending, timeout=_PATIENCE_SECONDS)
        if hasattr(self._feed, "close"):
            self._feed.close()
        wait(self._pending, timeout=_PATIENCE_SECONDS)
        self._pending.clear()
        self._pool.shutdown(wait=False)  # The thread is idle, or is closing this.

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read_ahead(self, batches: int) -> None:
        if self._closed:
            raise InputError("the feed is closed", cure="make another feed")
        while len(self._pending) < batches:
            with limits_named():
                self._pending.append(self._pool.submit(self._load))

    def _forget_pending(self) -> None:
        self._stopped = True
        # There is one thread: when this is done, so are all calls before it, including
        # those that Ctrl-C kept out of `_pending`.
        self._pool.submit(int).result()
        self._pending.clear()
        self._stopped = False
        self._given = self._loaded = 0

    def _feed_state(self) -> Any:
        return self._feed.get_state() if hasattr(self._feed, "get_state") else None

    def _feed_stats(self) -> FeedStats:
        stats = getattr(self._feed, "stats", None)
        return stats if isinstance(stats, FeedStats) else FeedStats()

    def _load(self) -> _Loaded | None:
        """Takes a batch from the feed, and starts its transfer. Runs in the thread."""
        if self._stopped:
            return None
        try:
            if self._resized:
                self._rows = _rows_read(self._feed)
            batch = next(self._feed, _END)
            state, stats = self._feed_state(), self._feed_stats()
            if batch is not _END:
                with span("gristmill.send", batch=self._loaded):
                    arrays = global_arrays(batch, self._sharding, self._rows)
                # Counted here: Ctrl-C may lose a batch between here and the caller.
                self._loaded += 1
                return _Loaded(self._loaded - 1, arrays, state, stats)
        except BaseException:
            self._stopped = True  # Read nothing after a failure.
            raise
        self._stopped = True
        return None


def _close(feed: weakref.ref[JaxFeed]) -> None:
    found = feed()
    if found is not None:
        found.close()


def _rows_read(feed: Any) -> RowsRead | None:
    """Returns the rows that one of our feeds reads next, None for other iterators."""
    batches, rows = getattr(feed, "batches", None), getattr(feed, "rows", None)
    if batches is None or rows is None:
        return None
    size = batches.batch_size
    if isinstance(rows, Mapping):  # The batch size changes.
        size = batches.batch_size_at(feed.get_state()["step"])
        rows = rows[size]
    return RowsRead(np.arange(size, dtype=np.int64)[rows], size)


def _check_full(feed: Any) -> None:
    """Refuses one of our feeds whose last batch will not be full."""
    batches = getattr(feed, "batches", None)
    masked = getattr(feed, "mask", None) is not None
    if batches is not None and not masked and (rows := batches.schedule.remainder):
        last = batches.steps - 1
        raise InputError(
            "the last batch is not full, so its arrays would have another shape",
            expected=f"batches of {batches.batch_size_at(last):,} rows",
            got=f"{rows:,} rows in step {last:,}",
            cure="leave it out with drop_remainder=True, fill it up with "
            'feed(mask="mask"), or choose a batch_size that divides the records of all '
            "epochs",
        )
