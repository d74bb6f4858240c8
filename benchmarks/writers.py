"""The cost of writing ArrayRecord files, beside others and compression alone.

    python -m benchmarks.writers --rounds 5

Records are written by the official writer and by gristmill's, and only compressed, in
turns. CPU time is that of the process, all threads counted; each figure is the median
of the rounds, and its range. Two threads and two processes write as many records each,
and are compared by the time that passes; the machine needs two idle cores for that.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence

import zstandard
from array_record.python import array_record_module

from benchmarks.c4_like import generate_binary, generate_records
from gristmill.dataset.arrayrecord.chunk_hash import is_compiled
from gristmill.dataset.arrayrecord.compression import WriterOptions
from gristmill.dataset.arrayrecord.file_writer import ArrayRecordWriter

_BATCH_RECORDS = 256  # As many as a conversion reads at a time, more or less.
_LEVEL = 3


def text(count: int) -> list[bytes]:
    """Returns `tf.train.Example`s with text like C4's, 2.2 KB on average."""
    return list(itertools.islice(generate_records(seed=0), count))


def binary(count: int) -> list[bytes]:
    """Returns records of 100 KB of token ids."""
    return list(itertools.islice(generate_binary(seed=0), count))


class OfficialWriter:
    """Writes a file with `array_record`, as `ArrayRecordWriter` does with gristmill."""

    def __init__(self, path: str, options: WriterOptions):
        text = f"group_size:{options.group_size},{options.compression}"
        self._writer = array_record_module.ArrayRecordWriter(
            path, f"{text},max_parallelism:1"
        )

    def write(self, records: Sequence[bytes]) -> None:
        """Appends records."""
        for record in records:
            self._writer.write(record)

    def finish(self) -> None:
        """Closes the file."""
        self._writer.close()


def write(
    writer: type[ArrayRecordWriter | OfficialWriter],
    records: Sequence[bytes],
    group_size: int,
) -> None:
    """Writes a file, and deletes it."""
    options = WriterOptions(group_size=group_size, compression=f"zstd:{_LEVEL}")
    with tempfile.TemporaryDirectory() as folder:
        file = writer(os.path.join(folder, "file"), options)
        for begin in range(0, len(records), _BATCH_RECORDS):
            file.write(records[begin : begin + _BATCH_RECORDS])
        file.finish()


def compress(records: Sequence[bytes], group_size: int) -> None:
    """Compresses what a file holds, with one context for all of it."""
    codec = zstandard.ZstdCompressor(level=_LEVEL)
    for begin in range(0, len(records), group_size):
        codec.compress(b"".join(records[begin : begin + group_size]))


def measure(
    records: Sequence[bytes], group_size: int, *, rounds: int
) -> dict[str, list[float]]:
    """Returns microseconds of CPU a record of each round, by name."""
    contestants: dict[str, Callable[[], None]] = {
        "compression alone": lambda: compress(records, group_size),
        "official writer": lambda: write(OfficialWriter, records, group_size),
        "gristmill": lambda: write(ArrayRecordWriter, records, group_size),
    }
    found: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, contestant in contestants.items():
            begin = time.process_time()
            contestant()
            spent = time.process_time() - begin
            found[name].append(spent / len(records) * 1e6)
    return found


_shared: list[bytes] = []  # What threads and processes write, inherited by a fork.


def _write_shared(records: int, group_size: int) -> None:
    write(ArrayRecordWriter, _shared[:records], group_size)


def _wall_seconds(pool: concurrent.futures.Executor, group_size: int) -> float:
    for records in (10, len(_shared)):  # The first time, workers start.
        begin = time.perf_counter()
        tasks = [pool.submit(_write_shared, records, group_size) for _ in range(2)]
        for task in tasks:
            task.result()
    return time.perf_counter() - begin


def threads_and_processes(
    records: Sequence[bytes], group_size: int, *, rounds: int
) -> list[float]:
    """Returns of each round how much of two processes' speed two threads reach."""
    ratios = []
    _shared[:] = records
    context = multiprocessing.get_context("fork")
    for _ in range(rounds):
        with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
            processes = _wall_seconds(pool, group_size)
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            ratios.append(processes / _wall_seconds(threads, group_size))
    return ratios


def shown(values: Sequence[float]) -> str:
    """Returns the median and the range."""
    middle = statistics.median(values)
    return f"{middle:.2f} ({min(values):.2f}..{max(values):.2f})"


def main(argv: Sequence[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--records", type=int, default=20_000)
    arguments = parser.parse_args(argv)
    print(f"compiled hash: {'yes' if is_compiled() else 'no'}")
    data = text(arguments.records)
    for name, records, group_size in (
        ("text of 2.2 KB", data, 1),
        ("text of 2.2 KB", data, 16),
        ("binary of 100 KB", binary(arguments.records // 40), 1),
    ):
        found = measure(records, group_size, rounds=arguments.rounds)
        print(f"{name}, group size {group_size}: CPU us a record")
        for contestant, spent in found.items():
            print(f"  {contestant:18} {shown(spent)}")
        own = found["gristmill"]
        for other in ("compression alone", "official writer"):
            ratios = [a / b for a, b in zip(own, found[other], strict=True)]
            print(f"  gristmill over {other:18} {shown(ratios)}")
    for group_size in (1, 16):
        ratios = threads_and_processes(data, group_size, rounds=arguments.rounds)
        print(f"two threads over two processes, group size {group_size}: ", end="")
        print(shown(ratios))


if __name__ == "__main__":
    main()
