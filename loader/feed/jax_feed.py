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
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Sharding

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.base.system import limits_named
from gristmill.loader.base.indices import IntArray, checked_count
from gristmill.loader.feed.feed import RootIterator
from gristmill.loader.feed.stats import FeedStats, span
from gristmill.loader.order.hosts import rows_held


class RowsRead(NamedTuple):
    """Which rows of a global batch a process reads, and how many the batch has."""

    read: IntArray
    batch_size: int


def global_arrays(batch: Any, sharding: Any, rows: RowsRead | None) -> Any:
    """Starts the transfer of a batch, and returns its global arrays.

    Args:
        batch: A pytree of numpy arrays with this process's rows along the first axis.
        sharding: A sharding, or a pytree of shardings that is a prefix of the batch's.
        rows: The rows of the batch. None if they follow each other in the order of the
            processes, equally many for each.
    """
    named, tree = jax.tree_util.tree_flatten_with_path(batch)
    shardings = _spread(sharding, batch)
    leaves, shapes = [], []
    for (path, leaf), one in zip(named, shardings, strict=True):
        where = f"batch{jax.tree_util.keystr(path)}"
        rows = rows or _rows_in_turn(leaf)
        shapes.append(_global_shape(leaf, one, rows, where))
        leaves.append(leaf)
    if jax.process_count() == 1:
        # One call for all takes half of the time.
        arrays = jax.device_put(leaves, shardings)
    else:
        arrays = [
            jax.make_array_from_process_local_data(one, leaf, shape)
            for one, leaf, shape in zip(shardings, leaves, shapes, strict=True)
        ]
    return jax.tree.unflatten(tree, arrays)


def _rows_in_turn(array: Any) -> RowsRead:
    """Returns the array's rows if processes have equally many, one after the other."""
    count = len(array) if np.ndim(array) else 0
    first = jax.process_index() * count
    read = np.arange(first, first + count, dtype=np.int64)
    return RowsRead(read, jax.process_count() * count)


def _spread(sharding: Any, batch: Any) -> list[Any]:
    """Returns a sharding for each leaf of the batch."""
    if isinstance(sharding, Sharding):
        return [sharding] * len(jax.tree.leaves(batch))
    try:
        spread = jax.tree.map(
            lambda one, part: jax.tree.map(lambda _: one, part), sharding, batch
        )
    except (TypeError, ValueError) as e:
        raise InputError(
            "the tree of shardings does not match the batch",
            expected=f"one sharding, or a tree like {jax.tree.structure(batch)}",
            got=jax.tree.structure(sharding),
            cure="give one sharding for all leaves, or a tree of them as the batch "
            "is one",
        ) from e
    return jax.tree.leaves(spread)


def _global_shape(
    array: Any, sharding: Any, rows: RowsRead, where: str
) -> tuple[int, ...]:
    """Returns the shape of the global array of a leaf, which is checked."""
    _check_array(array, len(rows.read), where)
    if not isinstance(sharding, Sharding):
        raise InputError(
            "not a sharding",
            where=where,
            expected="a jax.sharding.Sharding, such as NamedSharding(mesh, spec)",
            got=repr(sharding),
            cure="give one sharding for all leaves, or a tree of them as the batch "
            "is one",
        )
    shape: tuple[int, ...] = (rows.batch_size, *array.shape[1:])
    held = rows_held(sharding, shape, where)
    if not np.array_equal(held, rows.read):
        raise InputError(
            "the feed reads other rows of the global batch than the devices of this "
            "process hold",
            where=f"{where}, process {jax.process_index()} of {jax.process_count()}",
            expected=f"rows {_rows_text(held)}",
            got=f"rows {_rows_text(rows.read)}",
            cure="let the feed read the rows that the devices hold: "
            "feed(host=sharding)",
        )
    return shape


def _check_array(array: Any, rows: int, where: str) -> None:
    """Refuses arrays that would arrive on the devices with other values."""
    numeric = isinstance(array, np.ndarray) and (
        array.dtype == np.bool_ or jax.numpy.issubdtype(array.dtype, np.number)
    )
    if not numeric:
        kind = type(array).__name__
        if isinstance(array, np.ndarray):
            kind = f"an array of {array.dtype}"
        raise InputError(
            "the batch has a leaf that cannot be sent to a device",
            where=where,
            expected="a numpy array of numbers",
            got=kind,
            cure="give the feed a decode that returns arrays",
        )
    if array.ndim == 0 or len(array) != rows:
        raise InputError(
            "an array of the batch does not have one row for each record",
            where=where,
            expected=f"{rows:,} rows, the first axis",
            got=f"shape {array.shape}",
            cure="let decode return arrays with the records along the first axis; drop "
            "a last batch that is not full: drop_remainder=True",
        )
    narrow = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.dtype.kind in "iu" and narrow != array.dtype and array.size:
        least, most = int(array.min()), int(array.max())
        limits = np.iinfo(narrow)
        if least < limits.min or most > limits.max:
            raise InputError(
                f"JAX converts {array.dtype} to {narrow}, which is too narrow",
                where=where,
                expected=f"{limits.min} to {limits.max}",
                got=f"{least} to {most}",
                cure="set jax_enable_x64, or let decode return smaller numbers",
            )


def _rows_text(rows: IntArray) -> str:
    """Returns the rows as text: as a range if they are one."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return f"[{rows[0]:,}, {rows[-1] + 1:,})"
    listed = ", ".join(str(row) for row in rows[:8].tolist())
    return f"{listed}{', ...' if len(rows) > 8 else ''} ({len(rows):,} in all)"


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


class JaxFeed(RootIterator):
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
            rows = _rows_read(self._feed)
            batch = next(self._feed, _END)
            state, stats = self._feed_state(), self._feed_stats()
            if batch is not _END:
                with span("gristmill.send", batch=self._loaded):
                    arrays = global_arrays(batch, self._sharding, rows)
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
        size = batches.schedule.batch_size(feed.get_state()["step"])
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
            expected=f"batches of {batches.schedule.batch_size(last):,} rows",
            got=f"{rows:,} rows in step {last:,}",
            cure="leave it out with drop_remainder=True, fill it up with "
            'feed(mask="mask"), or choose a batch_size that divides the records of all '
            "epochs",
        )
