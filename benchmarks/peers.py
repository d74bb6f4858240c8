"""The programs that gristmill's conversion is measured against, one process each.

    python -m benchmarks.peers bare OUTPUT INPUT... --reader plain --workers 1
    python -m benchmarks.peers array_record_beam PATTERN PREFIX --num-shards 8

Imports are made in the functions: each program pays for what it uses and no more.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Iterator, Sequence

WRITER_OPTIONS = "group_size:1,zstd:3"


def read_frames_unchecked(path: str) -> Iterator[bytes]:
    """Yields the records of a TFRecord file and looks at no checksum.

    This is as little as a reader in Python can do: it is not a way to read data that
    matters, and the strictest thing to compare with.
    """
    with open(path, "rb", buffering=1 << 20) as file:
        read = file.read
        while header := read(12):
            yield read(int.from_bytes(header[:8], "little"))
            read(4)


def read_frames_tensorflow(path: str) -> Iterator[bytes]:
    """Yields the records of a TFRecord file as TensorFlow reads and checks them."""
    import tensorflow as tf

    yield from tf.compat.v1.io.tf_record_iterator(path)


READERS = {"plain": read_frames_unchecked, "tensorflow": read_frames_tensorflow}


def convert_file(job: tuple[str, str, str]) -> None:
    """Converts one file: job holds the input, the output and the reader's name."""
    from array_record.python.array_record_module import ArrayRecordWriter

    input_path, output_path, reader = job
    writer = ArrayRecordWriter(output_path, WRITER_OPTIONS)
    write = writer.write
    for record in READERS[reader](input_path):
        write(record)
    writer.close()


def run_bare(
    inputs: Sequence[str], output: str, *, reader: str = "plain", workers: int = 1
) -> None:
    """Converts each input into one output with nothing around the loop.

    Args:
      inputs: TFRecord files.
      output: directory; created where missing.
      reader: a name in `READERS`.
      workers: processes; with 1 the loop runs in this one.
    """
    os.makedirs(output, exist_ok=True)
    count = len(inputs)
    jobs = [
        (path, f"{output}/bare.array_record-{index:05}-of-{count:05}", reader)
        for index, path in enumerate(sorted(inputs))
    ]
    if workers == 1:
        for job in jobs:
            convert_file(job)
        return
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.map(convert_file, jobs, chunksize=1)
        pool.close()
        pool.join()


def run_array_record_beam(
    pattern: str, prefix: str, *, num_shards: int, match_shards: bool, workers: int
) -> None:
    """Runs the pipelines of array_record.beam on Beam's own runner.

    Args:
      pattern: of the TFRecord files.
      prefix: of the ArrayRecord files.
      num_shards: output files; without effect with `match_shards`.
      match_shards: run the function that the public guide recommends.
      workers: with 1 in memory, else that many processes.
    """
    # array_record.beam reads the command line when it is imported.
    from apache_beam.options.pipeline_options import PipelineOptions
    from array_record.beam import pipelines

    flags = ["--runner=FnApiRunner"]
    if workers > 1:
        flags += [
            "--direct_running_mode=multi_processing",
            f"--direct_num_workers={workers}",
        ]
    args = {"input": pattern, "output": prefix}
    options = PipelineOptions(flags)
    if match_shards:
        pipeline = pipelines.convert_tf_to_arrayrecord_disk_match_shards(
            args=args, pipeline_options=options
        )
    else:
        pipeline = pipelines.convert_tf_to_arrayrecord_disk(
            num_shards=num_shards, args=args, pipeline_options=options
        )
    pipeline.run().wait_until_finish()


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one peer as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    peers = parser.add_subparsers(dest="peer", required=True)
    bare = peers.add_parser("bare", help="the official writer in a loop")
    bare.add_argument("output")
    bare.add_argument("inputs", nargs="+")
    bare.add_argument("--reader", choices=sorted(READERS), default="plain")
    bare.add_argument("--workers", type=int, default=1)
    beam = peers.add_parser("array_record_beam", help="array_record.beam.pipelines")
    beam.add_argument("pattern")
    beam.add_argument("prefix")
    beam.add_argument("--num-shards", type=int, default=1)
    beam.add_argument("--match-shards", action="store_true")
    beam.add_argument("--workers", type=int, default=1)
    args = parser.parse_args(argv)
    if args.peer == "bare":
        run_bare(args.inputs, args.output, reader=args.reader, workers=args.workers)
    else:
        run_array_record_beam(
            args.pattern,
            args.prefix,
            num_shards=args.num_shards,
            match_shards=args.match_shards,
            workers=args.workers,
        )


if __name__ == "__main__":
    main()
