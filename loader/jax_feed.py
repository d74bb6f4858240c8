"""Makes global `jax.Array`s of the rows that each host reads.

Every host reads the rows of the global batch that its own devices hold, and no data
goes between hosts: `rows_of` says which rows these are, and `to_jax` refuses a feed
that reads others. No other module imports JAX.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import time
import weakref
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from multiprocessing.util import Finalize
from typing import Any, NamedTuple, Self

import grain
import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec, Sharding

from gristmill.dataset.errors import InputError
from gristmill.loader.feed_source import ReadBatch
from gristmill.loader.feed_stats import FeedStats, Meter
from gristmill.loader.index_arrays import IntArray, checked_count

_PATIENCE_SECONDS = 5

# At exit this is closed before the feed that it reads from.
_EXIT_PRIORITY = 200


def rows_of(sharding: Sharding, *, batch_size: int) -> IntArray:
    """Returns the rows of a global batch that this process's devices hold.

    They are what the process has to read: `batches.feed(rows=rows_of(...))`. On meshes
    whose devices are in the order of processes these are one process after the other,
    as `topology="jax"` has it; where devices are in another order, or several processes
    hold the same rows (a model axis goes across them), only this is right.

    Args:
        sharding: How the batch lies on the devices; its first axis counts.
        batch_size: Rows of the global batch.

    Returns:
        int64 [rows], sorted.

    Raises:
        InputError: The rows do not divide among the devices, or no device of this
            process takes part.
    """
    batch_size = checked_count(batch_size, what="batch_size")
    if isinstance(sharding, NamedSharding):
        # Of arrays of any rank only the first axis matters.
        spec = PartitionSpec(*sharding.spec[:1])
        sharding = NamedSharding(sharding.mesh, spec)
    return _rows_held(sharding, (batch_size,), "the global batch")


def to_jax(feed: Iterable[Any], sharding: Any, *, ahead: int = 1) -> JaxFeed:
    """Returns the batches of a feed as global arrays.

    Args:
        feed: What `GlobalBatches.feed` returned, or any iterable of pytrees of numpy
            arrays whose first axes are this process's rows; of another iterable the
            rows are taken to follow each other in the order of the processes.
        sharding: A sharding for all arrays, or a pytree of shardings that is a prefix
            of the batches' tree.
        ahead: Batches on their way to the devices while the caller works on one. They
            take device memory. 0 reads and sends each batch when it is asked for.

    Raises:
        InputError: The feed's last batch will not be full.
    """
    return JaxFeed(feed, sharding, ahead=ahead)


class _Rows(NamedTuple):
    """Which rows of a global batch a feed reads, and how many the batch has."""

    read: IntArray
    batch_size: int


class _Loaded(NamedTuple):
    """A batch on its way to the devices; the feed's state and stats behind it."""

    batch: Any
    state: Any
    stats: FeedStats


class JaxFeed(grain.DatasetIterator):  # type: ignore[misc]  # Grain has no types.
    """Batches as global arrays, the next ones already on their way to the devices.

    Made by `to_jax`. One thread takes batches from the feed and starts their transfer,
    at most `ahead` batches before the caller. State and stats are the caller's: what
    was read ahead and not handed out does not count, and is read again after a restart.

    It is an iterator of Grain, so that Grain and Orbax know how to save it.
    """

    _closed = True  # until there is something to close

    def __init__(self, feed: Iterable[Any], sharding: Any, *, ahead: int):
        self._ahead = checked_count(ahead, what="ahead", least=0)
        self._sharding = sharding
        self._rows = _rows_read(feed)
        self._feed: Any = iter(feed)
        self._state, self._last = self._feed_state(), self._feed_stats()
        self._meter = Meter()
        self._pending: deque[Future[_Loaded | None]] = deque()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="gristmill-to-jax")
        self._stopped = False
        self._at_exit = Finalize(
            None, _close, (weakref.ref(self),), exitpriority=_EXIT_PRIORITY
        )
        super().__init__()

    def __next__(self) -> Any:
        """Returns the next batch, a tree like the feed's with global arrays.

        Raises:
            StopIteration: The feed has ended.
            InputError: The batch and the sharding do not go together, or this is
                closed.
            Exception: What the feed raised.
        """
        asked_at = time.perf_counter()
        self._read_ahead(max(self._ahead, 1))
        # A failure or the end stays in place: who asks again gets the same answer.
        loaded = self._pending[0].result()
        if loaded is None:
            raise StopIteration
        self._pending.popleft()
        self._meter.given(_between(self._last, loaded.stats), asked_at=asked_at)
        self._state, self._last = loaded.state, loaded.stats
        self._read_ahead(self._ahead)
        return loaded.batch

    def start_prefetch(self) -> None:
        """Starts to read ahead, which asking for a batch does by itself."""
        self._read_ahead(self._ahead)

    def get_state(self) -> Any:
        """Returns the feed's state behind the last batch that was handed out."""
        return copy.deepcopy(self._state)

    def set_state(self, state: Any) -> None:
        """Goes to a state of this or a bare feed; one it refuses changes nothing."""
        self._forget_pending()
        try:
            self._feed.set_state(state)
        except Exception:
            self._feed.set_state(self._state)
            raise
        finally:
            self._last = self._feed_stats()
            self._meter.restart()
        self._state = self._feed_state()

    @property
    def stats(self) -> FeedStats:
        """What was handed out, and how long the caller waited for it.

        `ready_batches` and `prefetch` are those of the feed and of the devices
        together. Of a feed that is none of ours only batches and waiting are known.
        """
        feed = self._feed_stats()
        ready = sum(future.done() for future in self._pending)
        return dataclasses.replace(
            self._meter.stats,
            ready_batches=feed.ready_batches + ready,
            prefetch=feed.prefetch + self._ahead,
        )

    def close(self) -> None:
        """Stops reading ahead and closes the feed. It may be called again."""
        if self._closed:
            return
        self._closed = self._stopped = True
        self._at_exit.cancel()
        # A feed is closed under its reader only if that one does not come back.
        wait(self._pending, timeout=_PATIENCE_SECONDS)
        if hasattr(self._feed, "close"):
            self._feed.close()
        self._forget_pending()
        self._pool.shutdown(wait=False)  # the thread is idle, or closes this itself

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _read_ahead(self, batches: int) -> None:
        if self._closed:
            raise InputError("the feed is closed", cure="make another one")
        while len(self._pending) < batches:
            self._pending.append(self._pool.submit(self._load))

    def _forget_pending(self) -> None:
        self._stopped = True
        wait(self._pending)
        self._pending.clear()
        self._stopped = False

    def _feed_state(self) -> Any:
        return self._feed.get_state() if hasattr(self._feed, "get_state") else None

    def _feed_stats(self) -> FeedStats:
        stats = getattr(self._feed, "stats", None)
        return stats if isinstance(stats, FeedStats) else FeedStats()

    def _load(self) -> _Loaded | None:
        """Runs in the thread: takes a batch from the feed, starts its transfer."""
        if self._stopped:
            return None
        try:
            batch = next(self._feed)
            state, stats = self._feed_state(), self._feed_stats()
            return _Loaded(_place(batch, self._sharding, self._rows), state, stats)
        except StopIteration:
            self._stopped = True
            return None
        except BaseException:
            self._stopped = True  # nothing is read past a failure
            raise


def _close(feed: weakref.ref[JaxFeed]) -> None:
    found = feed()
    if found is not None:
        found.close()


def _between(before: FeedStats, after: FeedStats) -> ReadBatch:
    """Returns what one batch took: the difference of a feed's stats around it."""
    return ReadBatch(
        batch=None,
        records=after.records - before.records,
        record_bytes=after.record_bytes - before.record_bytes,
        read_seconds=after.read_seconds - before.read_seconds,
        read_cpu_seconds=after.read_cpu_seconds - before.read_cpu_seconds,
        decode_seconds=after.decode_seconds - before.decode_seconds,
    )


def _rows_read(feed: Any) -> _Rows | None:
    """Returns the rows of a feed of ours; of another only its batches tell them."""
    batches, rows = getattr(feed, "batches", None), getattr(feed, "rows", None)
    if batches is None or rows is None:
        return None
    schedule = batches.schedule
    if not schedule.drop_remainder and schedule.stop % schedule.batch_size:
        raise InputError(
            "the last batch is not full: it cannot be an array like the others",
            expected=f"batches of {schedule.batch_size:,} rows",
            got=f"{schedule.stop % schedule.batch_size:,} rows in step "
            f"{schedule.steps - 1:,}",
            cure="leave it out with drop_remainder=True, or make it full with a "
            "batch_size that divides the records of all epochs",
        )
    size = batches.batch_size
    return _Rows(np.arange(size, dtype=np.int64)[rows], size)


def _place(batch: Any, sharding: Any, rows: _Rows | None) -> Any:
    """Starts the transfer of a batch, and returns its global arrays."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(batch)
    shardings = _spread(sharding, batch)
    arrays = []
    for (path, leaf), one in zip(leaves, shardings, strict=True):
        where = f"batch{jax.tree_util.keystr(path)}"
        rows = rows or _rows_in_turn(leaf)
        arrays.append(_global_array(leaf, one, rows, where))
    return jax.tree.unflatten(tree, arrays)


def _rows_in_turn(array: Any) -> _Rows:
    """The rows of as many as the array has on each process, one after the other."""
    count = len(array) if np.ndim(array) else 0
    first = jax.process_index() * count
    read = np.arange(first, first + count, dtype=np.int64)
    return _Rows(read, jax.process_count() * count)


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
            "the shardings do not go with the batch",
            expected=f"one sharding, or a tree like {jax.tree.structure(batch)}",
            got=jax.tree.structure(sharding),
        ) from e
    return jax.tree.leaves(spread)


def _global_array(array: Any, sharding: Any, rows: _Rows, where: str) -> jax.Array:
    _check_array(array, len(rows.read), where)
    if not isinstance(sharding, Sharding):
        raise InputError(
            "not a sharding",
            where=where,
            expected="a jax.sharding.Sharding, such as NamedSharding(mesh, spec)",
            got=repr(sharding),
        )
    shape = (rows.batch_size, *array.shape[1:])
    held = _rows_held(sharding, shape, where)
    if not np.array_equal(held, rows.read):
        raise InputError(
            "the feed reads other rows of the global batch than the devices of this "
            "process hold",
            where=f"{where}, process {jax.process_index()} of {jax.process_count()}",
            expected=f"rows {_in_words(held)}",
            got=f"rows {_in_words(rows.read)}",
            cure="let the feed read what the devices hold: "
            "feed(rows=loader.rows_of(sharding, batch_size=...))",
        )
    out: jax.Array = jax.make_array_from_process_local_data(sharding, array, shape)
    return out


def _check_array(array: Any, rows: int, where: str) -> None:
    """Refuses what would not arrive on the devices as it is."""
    numeric = isinstance(array, np.ndarray) and (
        array.dtype == np.bool_ or jax.numpy.issubdtype(array.dtype, np.number)
    )
    if not numeric:
        kind = type(array).__name__
        if isinstance(array, np.ndarray):
            kind = f"an array of {array.dtype}"
        raise InputError(
            "the batch holds what cannot go to a device",
            where=where,
            expected="a numpy array of numbers",
            got=kind,
            cure="give the feed a decode that makes arrays of the records",
        )
    if array.ndim == 0 or len(array) != rows:
        raise InputError(
            "an array of the batch has not a row for each record",
            where=where,
            expected=f"{rows:,} rows, the first axis",
            got=f"shape {array.shape}",
            cure="let decode return arrays with the records along the first axis; if "
            "this is a last batch that is not full, leave it out: drop_remainder=True",
        )
    narrow = jax.dtypes.canonicalize_dtype(array.dtype)
    if array.dtype.kind in "iu" and narrow != array.dtype and array.size:
        least, most = int(array.min()), int(array.max())
        limits = np.iinfo(narrow)
        if least < limits.min or most > limits.max:
            raise InputError(
                f"JAX makes {narrow} of {array.dtype}, and that is too narrow",
                where=where,
                expected=f"{limits.min} to {limits.max}",
                got=f"{least} to {most}",
                cure="set jax_enable_x64, or let decode return smaller numbers",
            )


@functools.lru_cache(maxsize=256)
def _rows_held(sharding: Sharding, shape: tuple[int, ...], where: str) -> IntArray:
    """Returns the rows of a global array that this process's devices hold, sorted."""
    try:
        slices = sharding.addressable_devices_indices_map(shape).values()
    except (IndexError, ValueError) as e:  # JAX's, for an axis that is not there
        raise InputError(
            "the array does not divide among the devices as its sharding says",
            where=where,
            expected=str(sharding),
            got=f"global shape {shape}: {e}",
            cure="choose a batch_size that the devices along the batch axis divide, "
            "and no more axes in the sharding than the array has",
        ) from e
    if not slices:
        raise InputError(
            "the sharding has no device of this process",
            where=f"{where}, process {jax.process_index()}",
            cure="make the mesh of devices of every process that reads",
        )
    spans = {index[0].indices(shape[0]) for index in slices if index is not None}
    held = np.unique(np.concatenate([np.arange(*span) for span in spans]))
    held.flags.writeable = False  # it is shared by all who ask
    return held.astype(np.int64, copy=False)


def _in_words(rows: IntArray) -> str:
    """Says which rows these are: as a range if they are one."""
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows):
        return f"[{rows[0]:,}, {rows[-1] + 1:,})"
    listed = ", ".join(str(row) for row in rows[:8].tolist())
    return f"{listed}{', ...' if len(rows) > 8 else ''} ({len(rows):,} in all)"
