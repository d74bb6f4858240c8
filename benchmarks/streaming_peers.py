"""MosaicML Streaming as `benchmarks.streaming` runs it, in an environment of its own.

python -m benchmarks.streaming_peers write OUTPUT INPUT... --compression zstd:3
python -m benchmarks.streaming_peers read DIRECTORY --seconds 3 --one-by-one
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import time
from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.peers import read_frames_unchecked

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


def read(directory: str, seconds: float, *, one_by_one: bool) -> dict[str, Any]:
    """Reads shards in random order for some seconds.

    Args:
        directory: Has shards that are not compressed.
        seconds: How long, once it is warm.
        one_by_one: Whether records are asked for by their numbers, and not in the
            order of the dataset's own shuffle.
    """
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    dataset = StreamingDataset(local=directory, shuffle=True, batch_size=_BATCH)

    def records() -> Iterator[bytes]:
        chance = random.Random(0)
        while True:
            if one_by_one:
                order = chance.sample(range(len(dataset)), len(dataset))
                yield from (dataset[number]["record"] for number in order)
            else:
                yield from (sample["record"] for sample in dataset)

    held = records()
    for _ in itertools.islice(held, _WARM_RECORDS):
        pass
    given = size_bytes = 0
    cpu, started = time.process_time(), time.perf_counter()
    while time.perf_counter() - started < seconds:
        for record in itertools.islice(held, _BATCH):
            given, size_bytes = given + 1, size_bytes + len(record)
    return {
        "records": given,
        "bytes": size_bytes,
        "dataset_records": len(dataset),
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
    reading.add_argument("--seconds", type=float, required=True)
    reading.add_argument("--one-by-one", action="store_true")
    args = parser.parse_args(argv)
    if args.program == "write":
        measured = write(args.output, args.inputs, args.compression)
    else:
        measured = read(args.directory, args.seconds, one_by_one=args.one_by_one)
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
