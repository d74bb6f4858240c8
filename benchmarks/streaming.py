"""Writing shards, and reading them in random order, beside MosaicML Streaming."""

from __future__ import annotations

import functools
import json
import pathlib
import shutil
import sys
import time

from benchmarks import c4_like
from benchmarks.contest import (
    Contest,
    Contestant,
    Option,
    Peer,
    expect,
    main,
    size,
    steadily,
    version_in,
)
from benchmarks.frames import read_frames

_BATCH = 256
_SHARD_BYTES = 64 << 20  # As MDSWriter has.
_WRITING, _READING = "writing", "reading in random order"
_WRITERS = {
    "gristmill_zstd": ("zstd:3", 1),
    "gristmill_zstd_16": ("zstd:3", 16),
    "gristmill_plain": ("uncompressed", 1),
}


class Streaming(Contest):
    """See `about`."""

    name = "streaming"
    title = "MosaicML Streaming"
    about = (
        "One process writes the records of the same TFRecord files to shards, or reads "
        "them in random order; imports do not count. `Writer` reads each finished "
        "shard again and compares every record. `MDSWriter` compresses whole shards: "
        "to read one record, all of its shard is decompressed to the local disk, so "
        "readers have shards that are not compressed. `StreamingDataset` mixes the "
        "records of some shards at a time, gristmill those of all, and is bound to one "
        "processor, where it is faster."
    )
    unit = "thousand records"
    reference = ("mds",)
    contestants = {
        "gristmill_zstd": Contestant("gristmill, `zstd:3`"),
        "gristmill_zstd_16": Contestant("gristmill, `zstd:3`, 16 records a chunk"),
        "gristmill_plain": Contestant("gristmill, not compressed"),
        "mds": Contestant("MosaicML, not compressed", option="streaming"),
        "mds_zstd": Contestant("MosaicML, `zstd:3`", option="streaming"),
        "mds_getitem": Contestant("MosaicML, `dataset[i]`", option="streaming"),
    }
    columns = {"stored": "output / input"}
    options = {
        "bytes": Option(size, 200_000_000, 1_000_000, "of text"),
        "seconds": Option(float, 3.0, 0.2, "of each reader, but for an epoch"),
        "streaming": Option(str, None, None, "a Python with mosaicml-streaming"),
    }
    packages = ("numpy", "zstandard")
    peers = (
        Peer(
            "MosaicML Streaming",
            "mosaicml-streaming",
            "`batches.feed` beside `StreamingDataset` on 1 processor; uncompressed",
            "gristmill_plain",
            "mds",
            _READING,
            True,
        ),
        Peer(
            "MosaicML Streaming",
            "mosaicml-streaming",
            "records to shards with `zstd:3`, `Writer` beside `MDSWriter`; 1 process",
            "gristmill_zstd",
            "mds_zstd",
            _WRITING,
        ),
    )

    def versions(self):
        """Returns that of the peer."""
        python, package = self.args.streaming, "mosaicml-streaming"
        return {package: version_in(python, package)} if python else {}

    def cases(self):
        """Writes the inputs; readers have the shards that were written last."""
        self._written = c4_like.write_dataset(
            self.work / "in", size_bytes=self.args.bytes, files=4
        )
        yield _WRITING, [*_WRITERS, "mds", "mds_zstd"]
        yield _READING, ["gristmill_zstd", "gristmill_plain", "mds", "mds_getitem"]

    def measure(self, case, key):
        """Writes or reads, in a process of its own."""
        return self._write(key) if case == _WRITING else self._read(key)

    def _peer(self, name, *arguments):
        command = [self.args.streaming, "-m", "benchmarks.peers", name, *arguments]
        return self.run([str(word) for word in command])

    def _write(self, key):
        output, inputs = self.work / key, self._written.paths
        shutil.rmtree(output, ignore_errors=True)
        if key.startswith("mds"):
            compression = "zstd:3" if key == "mds_zstd" else ""
            run = self._peer("mds_write", compression, output, *inputs)
            shards = json.loads((output / "index.json").read_text())["shards"]
            records = sum(shard["samples"] for shard in shards)
        else:
            run = self.run(self.program("write", key, output, *inputs))
            records = json.loads((output / "dataset.json").read_text())["records"]
        expect(records, sum(self._written.records), "records")
        stored = sum(f.stat().st_size for f in output.rglob("*") if f.is_file())
        stored /= self._written.size_bytes
        return {**run, "work": records / 1000, "stored": stored}

    def _read(self, key):
        seconds = self.args.seconds
        if key.startswith("mds"):
            held = seconds if key == "mds_getitem" else ""
            return self._peer("mds_read", self.work / "mds", held)
        return self.run(self.program("feed", self.work / key, seconds))


def write(key, output, *inputs):
    """Measures `Writer`."""
    from gristmill.dataset import Writer, WriterOptions

    compression, group_size = _WRITERS[key]
    options = WriterOptions(compression=compression, group_size=group_size)
    cpu, started = time.process_time(), time.perf_counter()
    with Writer(output, shard_bytes=_SHARD_BYTES, writer=options) as writer:
        for path in inputs:
            for record in read_frames(path):
                writer.write(record)
    return {
        "cpu_seconds": time.process_time() - cpu,
        "wall_seconds": time.perf_counter() - started,
    }


def feed(path, seconds):
    """Measures a feed of records."""
    from gristmill import loader

    dataset = loader.open(pathlib.Path(path))
    batch = min(_BATCH, len(dataset))
    batches = loader.global_batches(dataset, batch_size=batch, seed=1)
    with batches.feed(host=(0, 1)) as records:
        step = functools.partial(next, records)
        return steadily(
            lambda: len(step()) / 1000, warm=8 * batch / 1000, seconds=float(seconds)
        )


PROGRAMS = {"write": write, "feed": feed}

if __name__ == "__main__":
    sys.exit(main(Streaming, PROGRAMS))
