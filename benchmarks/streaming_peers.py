"""MosaicML Streaming as `benchmarks.streaming` runs it, in an environment of its own.

python -m benchmarks.streaming_peers write OUTPUT INPUT... --compression zstd:3
python -m benchmarks.streaming_peers read DIRECTORY --one-by-one 3
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.peers import read_frames_unchecked

if TYPE_CHECKING:
    from streaming import StreamingDataset

_BATCH = 256
_WARM_RECORDS = 8 * _BATCH


def write(
    output: str, inputs: Sequence[str], compression: str | None
) -> dict[str, float]:
    """Writes the records of TFRecord files, as they are, to shards of 64 MiB.

    Compressed shards have a hash, as nothing else would show that one was damaged.

    Returns:
        CPU and wall seconds, without the imports.
    """
    from streaming import MDSWriter

    hashes = ["xxh64"] if compression else None
    cpu, started = time.process_time(), time.perf_counter()
    with MDSWriter(
        columns={"record": "bytes"}, out=output, compression=compression, hashes=hashes
    ) as writer:
        for path in inputs:
            for record in read_frames_unchecked(path):
                writer.write({"record": record})
    return {
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - started,
    }


def read_epoch(directory: str) -> dict[str, Any]:
    """Reads shards for a whole epoch, in the order of the dataset's own shuffle.

    For less than an epoch its threads would have looked up more than was asked for:
    by default they go 256 batches ahead.

    Args:
        directory: Has shards that are not compressed.
    """
    dataset = _open(directory)
    for _ in itertools.islice(dataset, _WARM_RECORDS):
        pass
    return _measure((sample["record"] for sample in dataset), math.inf, len(dataset))


def read_one_by_one(directory: str, seconds: float) -> dict[str, Any]:
    """Reads records by their numbers, at random, for some seconds.

    Args:
        directory: Has shards that are not compressed.
        seconds: How long, once it is warm.
    """
    dataset = _open(directory)

    def records() -> Iterator[bytes]:
        chance = random.Random(0)
        while True:
            for number in chance.sample(range(len(dataset)), len(dataset)):
                yield dataset[number]["record"]

    held = records()
    for _ in itertools.islice(held, _WARM_RECORDS):
        pass
    return _measure(held, seconds, len(dataset))


def _open(directory: str) -> StreamingDataset:
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    return StreamingDataset(local=directory, shuffle=True, batch_size=_BATCH)


def _measure(
    records: Iterator[bytes], seconds: float, dataset_records: int
) -> dict[str, Any]:
    given = size_bytes = 0
    cpu, started = time.process_time(), time.perf_counter()
    while time.perf_counter() - started < seconds:
        batch = list(itertools.islice(records, _BATCH))
        if not batch:
            break
        given, size_bytes = given + len(batch), size_bytes + sum(map(len, batch))
    return {
        "records": given,
        "bytes": size_bytes,
        "dataset_records": dataset_records,
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - started,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.streaming_peers")
    programs = parser.add_subparsers(dest="program", required=True)
    writing = programs.add_parser("write")
    writing.add_argument("output")
    writing.add_argument("inputs", nargs="+")
    writing.add_argument("--compression")
    reading = programs.add_parser("read")
    reading.add_argument("directory")
    reading.add_argument("--one-by-one", type=float, metavar="SECONDS")
    reading.add_argument("--one-processor", action="store_true")
    args = parser.parse_args(argv)
    if args.program == "read" and args.one_processor:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if args.program == "write":
        measured = write(args.output, args.inputs, args.compression)
    elif args.one_by_one is None:
        measured = read_epoch(args.directory)
    else:
        measured = read_one_by_one(args.directory, args.one_by_one)
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
