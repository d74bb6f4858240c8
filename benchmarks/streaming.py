"""Writing shards, and reading them in random order, beside MosaicML Streaming."""

import json
import sys

from benchmarks import c4_like
from benchmarks.contest import (
    Contest,
    Contestant,
    Peer,
    bytes_below,
    expect,
    main,
    open_feed,
    split_in,
)
from benchmarks.cost import steadily, timed
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
    """MosaicML Streaming.

    One process writes the records of the same TFRecord files to shards, or reads
    them in random order; imports do not count. `Writer` reads each finished shard
    again and compares every record. `MDSWriter` compresses whole shards: to read
    one record, all of its shard is decompressed to the local disk, so readers have
    shards that are not compressed. `StreamingDataset` mixes the records of some
    shards at a time, gristmill those of all, and is bound to one processor, where
    it is faster.
    """

    name = "streaming"
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
        # An epoch is more than a reader reads before it counts.
        "bytes": (200_000_000, 8_000_000, "of text"),
        "seconds": (3.0, 0.2, "of each reader, but for an epoch"),
        "streaming": (None, None, "a Python with mosaicml-streaming"),
    }
    packages = ("numpy", "zstandard")
    elsewhere = {"streaming": "mosaicml-streaming"}
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

    def cases(self):
        """Writes the inputs; readers have the shards that were written last."""
        self._paths, counts, self._bytes = c4_like.write_tfrecords(
            self.work / "in", size_bytes=self.args.bytes, files=4
        )
        self._records = sum(counts)
        yield _WRITING, [*_WRITERS, "mds", "mds_zstd"]
        yield _READING, ["gristmill_zstd", "gristmill_plain", "mds", "mds_getitem"]

    def measure(self, case, key):
        """Writes or reads, in a process of its own."""
        return self._write(key) if case == _WRITING else self._read(key)

    def _peer(self, *arguments):
        return self.run([self.args.streaming, "-m", "benchmarks.peers", *arguments])

    def _write(self, key):
        output, inputs = self.fresh(key), self._paths
        if key.startswith("mds"):
            compression = "zstd:3" if key == "mds_zstd" else ""
            run = self._peer("mds_write", compression, output, *inputs)
            shards = json.loads((output / "index.json").read_text())["shards"]
            records = sum(shard["samples"] for shard in shards)
        else:
            run = self.run(self.program("write", key, output, *inputs))
            records = split_in(output)["records"]
        expect(records, self._records, "records")
        stored = bytes_below(output) / self._bytes
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

    def write_all():
        with Writer(output, shard_bytes=_SHARD_BYTES, writer=options) as writer:
            for path in inputs:
                for record in read_frames(path):
                    writer.write(record)

    return timed(write_all)


def feed(path, seconds):
    """Measures a feed of records."""
    from gristmill import loader

    records = open_feed(loader.open(path), _BATCH)
    return steadily(
        lambda: len(next(records)) / 1000,
        warm=8 * _BATCH / 1000,
        seconds=float(seconds),
    )


if __name__ == "__main__":
    sys.exit(main(Streaming))
