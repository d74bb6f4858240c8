"""The ways to read that `benchmarks.load` compares, each in its own process.

    python -m benchmarks.load_contestants gristmill_read WORK_DIR --seconds 1

prints JSON: for each dataset how many records came in how much wall and CPU time, of
this process and all it started, once it was warm. Imports are made in the functions:
each contestant pays for what it uses.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import psutil

from benchmarks.load_data import Shards, read_shards
from benchmarks.zstd_frames import read_frames

# Reads on, and returns how many records came.
Step = Callable[[], int]

_WARM_SECONDS = 0.3
# What Grain's threads of one process hold by default, or are reading.
_GRAIN_AHEAD_RECORDS = 516
_CHECKED_RECORDS = 32
_SHUFFLE_BUFFER_BYTES = 40_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reader:
    """A dataset, opened for reading by one contestant.

    Attributes:
      step: reads the next records.
      ahead_records: how many it may have read ahead. It is
        warm once they are used up: then it reads as many as it gives.
      pick: reads records by number, to see that they are the right ones; None where
        a contestant cannot.
      close: ends it.
    """

    step: Step
    ahead_records: int = 0
    pick: Callable[[list[int]], Sequence[bytes]] | None = None
    close: Callable[[], object] = lambda: None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contestant:
    """One way to read.

    Attributes:
      label: for people.
      packages: modules that must be there.
      open: makes a reader of shards.
      workers: processes that it starts.
      group_size_matters: whether it reads the shards, and not the TFRecords.
    """

    label: str
    packages: tuple[str, ...]
    open: Callable[[Shards], Reader]
    workers: int = 0
    group_size_matters: bool = True


def _random_batches(shards: Shards) -> Iterator[np.ndarray[Any, Any]]:
    """Yields batches of records in random order, epoch after epoch."""
    chance = np.random.default_rng(0)
    while True:
        order = chance.permutation(shards.records)
        full = len(order) // shards.batch_size * shards.batch_size
        yield from order[:full].reshape(-1, shards.batch_size)


def _by_batches(
    shards: Shards, read: Callable[[np.ndarray[Any, Any]], Sequence[bytes]]
) -> Reader:
    batches = _random_batches(shards)
    return Reader(
        step=lambda: len(read(next(batches))),
        pick=lambda numbers: read(np.array(numbers)),
    )


def _by_records(shards: Shards, dataset: Any, *, ahead_records: int) -> Reader:
    """Consumes an iterable dataset, and ends it with its iterator."""
    held = [iter(dataset)]

    def step() -> int:
        return sum(1 for _ in itertools.islice(held[0], shards.batch_size))

    return Reader(step=step, ahead_records=ahead_records, close=held.clear)


def _gristmill_read(shards: Shards) -> Reader:
    from gristmill import loader

    dataset = loader.open(shards.directory)
    return _by_batches(shards, dataset.read)


def _plain_read(shards: Shards, *, compiled: bool) -> Reader:
    """The same shards without their indexes: the hash of every chunk is compared."""
    from gristmill import loader
    from gristmill.dataset.arrayrecord import chunk_hash

    if compiled and not chunk_hash.is_compiled():
        raise RuntimeError("gristmill was installed without a C compiler")
    part, folder = chunk_hash.compiled_part, tempfile.TemporaryDirectory()
    chunk_hash.compiled_part = part if compiled else None
    # Links, as the index of a shard is looked for beside it.
    for path in shards.paths:
        os.symlink(path, os.path.join(folder.name, os.path.basename(path)))
    dataset = loader.open(f"{folder.name}/*", cache_dir="")

    def close() -> None:
        chunk_hash.compiled_part = part
        folder.cleanup()

    return dataclasses.replace(_by_batches(shards, dataset.read), close=close)


def _official_read(shards: Shards) -> Reader:
    from array_record.python.array_record_module import ArrayRecordReader

    # The options that array_record's own data source reads with.
    readers = [
        ArrayRecordReader(
            path, options="readahead_buffer_size:0", file_reader_buffer_size=32768
        )
        for path in shards.paths
    ]
    ends = np.cumsum([reader.num_records() for reader in readers])

    def read(numbers: np.ndarray[Any, Any]) -> list[bytes]:
        out: list[bytes] = [b""] * len(numbers)
        which = np.searchsorted(ends, numbers, side="right")
        for shard, reader in enumerate(readers):
            places = np.flatnonzero(which == shard)
            if len(places):
                first = int(ends[shard - 1]) if shard else 0
                records = reader.read((numbers[places] - first).tolist())
                for place, record in zip(places.tolist(), records, strict=True):
                    out[place] = record
        return out

    return _by_batches(shards, read)


def _decompression(shards: Shards) -> Reader:
    """Decompresses frames that are in memory, and does nothing else."""
    import zstandard

    frames, chunk_of = read_frames(shards)
    decompress = zstandard.ZstdDecompressor().decompress

    batches = _random_batches(shards)

    def step() -> int:
        numbers = next(batches)
        for chunk in chunk_of[numbers].tolist():
            frame, size = frames[chunk]
            decompress(frame, max_output_size=size)
        return len(numbers)

    return Reader(step=step)


def _grain_source(shards: Shards) -> Any:
    import grain
    from absl import flags

    if not flags.FLAGS.is_parsed():
        flags.FLAGS(sys.argv[:1])  # Without it, mp_prefetch of this source raises.
    return grain.sources.ArrayRecordDataSource(shards.paths)


def _gristmill_source(shards: Shards) -> Any:
    from gristmill import loader

    return loader.ArrayRecordDataSource(shards.paths)


def _grain_getitems(shards: Shards) -> Reader:
    source = _grain_source(shards)
    return _by_batches(shards, lambda numbers: source.__getitems__(numbers.tolist()))


def _grain_getitem(shards: Shards) -> Reader:
    source = _grain_source(shards)
    return _by_batches(
        shards, lambda numbers: [source[number] for number in numbers.tolist()]
    )


def _guide(shards: Shards, *, source: Callable[[Shards], Any], workers: int) -> Reader:
    """The pipeline of Grain's guide; repeated, to be read for as long as it takes."""
    import grain

    dataset = grain.MapDataset.source(source(shards)).shuffle(42).repeat()
    iterable = dataset.to_iter_dataset()
    if workers:
        options = grain.MultiprocessingOptions(num_workers=workers)
        iterable = iterable.mp_prefetch(options)
    ahead_records = _GRAIN_AHEAD_RECORDS * max(workers, 1)
    return _by_records(shards, iterable, ahead_records=ahead_records)


def _guide_batched(shards: Shards, *, source: Callable[[Shards], Any]) -> Reader:
    """The same with batches: a thread of Grain reads all records of one."""
    import grain

    dataset = grain.MapDataset.source(source(shards)).shuffle(42).repeat()
    batched = dataset.batch(shards.batch_size, batch_fn=list)
    # The default would read 500 batches ahead.
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=2)
    iterator = iter(batched.to_iter_dataset(options))
    return Reader(step=lambda: len(next(iterator)), ahead_records=4 * shards.batch_size)


def _feed(shards: Shards, *, workers: int) -> Reader:
    from gristmill import loader

    batches = loader.global_batches(
        loader.open(shards.directory),
        batch_size=shards.batch_size,
        seed=42,
        shuffle="global",
        epochs=None,
    )
    feed = batches.feed(host=(0, 1), workers=workers)
    return Reader(
        step=lambda: len(next(feed)),
        ahead_records=(4 + 2 * workers) * shards.batch_size,
        close=feed.close,
    )


def _tf_data(shards: Shards) -> Reader:
    """The TFRecords, a shuffle buffer and batches: no order that can be repeated."""
    import tensorflow as tf

    buffer_records = max(64, int(_SHUFFLE_BUFFER_BYTES / shards.record_bytes))
    dataset = (
        tf.data.Dataset.from_tensor_slices(list(shards.tfrecords))
        .shuffle(len(shards.tfrecords), seed=42)
        .interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
        .repeat()
        .shuffle(buffer_records, seed=42)
        .batch(shards.batch_size)
        .prefetch(tf.data.AUTOTUNE)
    )
    iterator = dataset.as_numpy_iterator()
    return Reader(step=lambda: len(next(iterator)), ahead_records=4 * shards.batch_size)


_ARRAY_RECORD = ("array_record",)
_GRAIN = ("array_record", "grain")

CONTESTANTS = {
    "decompression": Contestant(
        label="decompression alone, frames in memory",
        packages=_ARRAY_RECORD,
        open=_decompression,
    ),
    "gristmill_read": Contestant(
        label="gristmill `dataset.read(indices)`",
        packages=_ARRAY_RECORD,
        open=_gristmill_read,
    ),
    "plain_read": Contestant(
        label="gristmill on plain files, `dataset.read(indices)`",
        packages=_ARRAY_RECORD,
        open=functools.partial(_plain_read, compiled=True),
    ),
    "plain_read_numpy": Contestant(
        label="the same, installed without a C compiler",
        packages=_ARRAY_RECORD,
        open=functools.partial(_plain_read, compiled=False),
    ),
    "official_read": Contestant(
        label="`ArrayRecordReader.read(indices)`",
        packages=_ARRAY_RECORD,
        open=_official_read,
    ),
    "grain_getitems": Contestant(
        label="Grain's `source.__getitems__(indices)`",
        packages=_GRAIN,
        open=_grain_getitems,
    ),
    "grain_getitem": Contestant(
        label="Grain's `source[i]`", packages=_GRAIN, open=_grain_getitem
    ),
    **{
        f"guide_{name}_{workers}": Contestant(
            label=f"guide's pipeline, {whose} source, "
            + (f"{workers} workers" if workers else "16 threads"),
            packages=_GRAIN,
            open=functools.partial(_guide, source=source, workers=workers),
            workers=workers,
        )
        for name, whose, source in (
            ("grain", "Grain's", _grain_source),
            ("gristmill", "gristmill's", _gristmill_source),
        )
        for workers in (0, 2, 4)
    },
    **{
        f"guide_batched_{name}": Contestant(
            label=f"the same with batches, {whose} source, 2 threads",
            packages=_GRAIN,
            open=functools.partial(_guide_batched, source=source),
        )
        for name, whose, source in (
            ("grain", "Grain's", _grain_source),
            ("gristmill", "gristmill's", _gristmill_source),
        )
    },
    **{
        f"feed_{workers}": Contestant(
            label="gristmill `batches.feed`, "
            + (f"{workers} workers" if workers else "threads"),
            packages=("grain",),
            open=functools.partial(_feed, workers=workers),
            workers=workers,
        )
        for workers in (0, 2)
    },
    "tf_data": Contestant(
        label="`tf.data` on the TFRecords, shuffle buffer of 40 MB",
        packages=("tensorflow",),
        open=_tf_data,
        group_size_matters=False,
    ),
}


def _cpu_seconds() -> float:
    """Returns the CPU time of this process and of those below it that live."""
    total = time.process_time()
    for child in psutil.Process().children(recursive=True):
        times = child.cpu_times()
        total += times.user + times.system
    return total


def measure(
    contestant: Contestant, shards: Shards, *, seconds: float
) -> dict[str, Any]:
    """Reads for a while.

    Args:
      contestant: who.
      shards: what.
      seconds: how long to measure; it is warmed up before.

    Returns:
      `records` in `wall_seconds` and `cpu_seconds`, the `first_seconds` until the
      first records were there, what maps of the index cost (`index`), and the
      `checksum` of some records.
    """
    import google_crc32c

    begin = time.perf_counter()
    reader = contestant.open(shards)
    try:
        reader.step()
        first_seconds = time.perf_counter() - begin
        warm_until = time.perf_counter() + min(_WARM_SECONDS, seconds)
        warm = 0
        while time.perf_counter() < warm_until or warm < reader.ahead_records:
            warm += reader.step()
        cpu = _cpu_seconds()
        records, wall = 0, time.perf_counter()
        while not records or time.perf_counter() < wall + seconds:
            records += reader.step()
        wall, cpu = time.perf_counter() - wall, _cpu_seconds() - cpu
        checksum = None
        if reader.pick is not None:
            chance = np.random.default_rng(1)
            numbers = chance.integers(0, shards.records, _CHECKED_RECORDS).tolist()
            checksum = google_crc32c.value(b"".join(reader.pick(numbers)))
        index = _index_memory(shards)
    finally:
        reader.close()
    return {
        "dataset": shards.name,
        "records": records,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "first_seconds": first_seconds,
        "checksum": checksum,
        "index": index,
    }


_MAP = re.compile(
    r"^[0-9a-f]+-.*\.index\n(?:\w+: .*\n)*?Rss: +(\d+) kB\nPss: +(\d+) kB\n"
    r"(?:\w+: .*\n)*?Private_Dirty: +(\d+) kB\n",
    re.MULTILINE,
)


def _index_memory(shards: Shards) -> dict[str, int]:
    """Returns the memory of index maps in this process and those below it.

    Returns:
      `file_bytes` of all indexes; the sums over processes of their resident pages
      (`rss_bytes`), of each process's share of them (`pss_bytes`), and of pages that
      one alone has (`private_dirty_bytes`); how many `processes` have maps.
    """
    rss = pss = dirty = processes = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        maps = pathlib.Path(f"/proc/{process.pid}/smaps").read_text()
        found = [tuple(map(int, item)) for item in _MAP.findall(maps)]
        processes += bool(found)
        rss += 1024 * sum(item[0] for item in found)
        pss += 1024 * sum(item[1] for item in found)
        dirty += 1024 * sum(item[2] for item in found)
    files = pathlib.Path(shards.directory, "index").glob("*.index")
    return {
        "file_bytes": sum(file.stat().st_size for file in files),
        "rss_bytes": rss,
        "pss_bytes": pss,
        "private_dirty_bytes": dirty,
        "processes": processes,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measures a contestant on all datasets, and prints what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("contestant", choices=CONTESTANTS)
    parser.add_argument("work_dir", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=1.0)
    args = parser.parse_args(argv)
    contestant = CONTESTANTS[args.contestant]
    for shards in read_shards(args.work_dir):
        if contestant.group_size_matters or shards.name.endswith("_g1"):
            measured = measure(contestant, shards, seconds=args.seconds)
            print(json.dumps(measured), flush=True)
    # What libraries still read ahead, in threads and processes, is not awaited.
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(0)


if __name__ == "__main__":
    main()
