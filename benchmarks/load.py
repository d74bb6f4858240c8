"""Local shards in random order: gristmill, Grain, array_record and tf.data."""

from __future__ import annotations

import functools
import glob
import itertools
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks import c4_like
from benchmarks.contest import (
    Contest,
    Contestant,
    Option,
    Peer,
    expect,
    main,
    make,
    size,
    steadily,
)

_FILES = 4
_BATCHES = {"text": 1024, "noise": 64}
# What Grain's threads of one process hold by default, or are reading.
_GRAIN_AHEAD = 516
_CHECKED_RECORDS = 32
_SHUFFLE_BUFFER_BYTES = 40_000_000
_CASES = {
    f"{label}, {group} a chunk": (kind, group)
    for kind, label in (("text", "text of 2.2 KB"), ("noise", "noise of 100 KB"))
    for group in (1, 16)
}
_FIRST = next(iter(_CASES))
_GRAIN = ("array_record", "grain")
_READ = "`dataset.read` beside `read(indices)`; text, random order"


class Load(Contest):
    """See `about`."""

    name = "load"
    title = "Reading in random order"
    about = (
        "Shards on a local disk, in the page cache, `zstd:3`; readers are measured "
        "once they are warm. gristmill compares the checksum of every record, or of "
        "plain files the hash of every chunk. `tf.data` reads the TFRecords through a "
        "shuffle buffer of 40 MB, in no order that can be repeated."
    )
    unit = "thousand records"
    reference = ("array_record",)
    contestants = {
        "gristmill_read": Contestant("gristmill `dataset.read(indices)`"),
        "gristmill_plain": Contestant("the same, plain files"),
        "gristmill_feed": Contestant("gristmill `batches.feed`", ("grain",)),
        "gristmill_feed_2": Contestant("the same, 2 workers", ("grain",)),
        "array_record": Contestant("`ArrayRecordReader.read`", _GRAIN),
        "grain_getitems": Contestant("Grain's `source.__getitems__(indices)`", _GRAIN),
        "grain_getitem": Contestant("Grain's `source[i]`", _GRAIN),
        "grain_guide": Contestant("the pipeline of Grain's guide", _GRAIN),
        "gristmill_guide": Contestant("the same, gristmill's source", _GRAIN),
        "tf_data": Contestant("`tf.data`", ("tensorflow",)),
    }
    options = {
        "bytes": Option(size, 10**8, 10**6, "of each kind of records"),
        "seconds": Option(float, 0.6, 0.05, "of each measurement"),
    }
    packages = ("array-record", "grain", "tensorflow", "zstandard", "numpy")
    peers = (
        Peer(
            "Grain's `ArrayRecordDataSource`",
            "grain",
            "`batches.feed` beside the pipeline of Grain's guide",
            "gristmill_feed",
            "grain_guide",
            _FIRST,
            True,
        ),
        Peer(
            "Grain's `ArrayRecordDataSource`",
            "grain",
            "`dataset.read` beside `source[i]`; text, random order",
            "gristmill_read",
            "grain_getitem",
            _FIRST,
        ),
        Peer(
            "`ArrayRecordReader`",
            "array-record",
            _READ,
            "gristmill_read",
            "array_record",
            _FIRST,
        ),
        Peer(
            "`ArrayRecordReader`",
            "array-record",
            "the same with 16 records a chunk, which it decodes in 2 threads",
            "gristmill_read",
            "array_record",
            [*_CASES][1],
        ),
        Peer(
            "`tf.data`",
            "tensorflow",
            "`batches.feed` beside TFRecords through a shuffle buffer",
            "gristmill_feed",
            "tf_data",
            _FIRST,
        ),
    )

    def cases(self):
        """Writes TFRecords and converts them."""
        for case, (kind, group) in _CASES.items():
            source = self.work / kind
            if group == 1:
                written = c4_like.write_dataset(
                    source, size_bytes=self.args.bytes, files=_FILES, records=kind
                )
            output = self.work / f"{kind}-{group}"
            how = ("--match-shards", "--compression=zstd:3", f"--group-size={group}")
            make("convert", *written.paths, output, "--workers=1", *how)
            self._checksum = {}
            yield case, [k for k in self.contestants if group == 1 or k != "tf_data"]

    def measure(self, case, key):
        """Reads for a while, in a process of its own."""
        kind, group = _CASES[case]
        place = self.work / f"{kind}-{group}", self.work / kind
        run = self.run(
            self.program(key, *place, _BATCHES[kind], self.args.seconds),
            variables={"GRISTMILL_CACHE_DIR": str(self.work / "cache")},
            timeout_seconds=300,
        )
        if (checksum := run.pop("checksum")) is not None:
            expect(checksum, self._checksum.setdefault("", checksum), "checksum")
        return run


class Shards(NamedTuple):
    """A dataset: its directory and its TFRecords, and how many records a batch has."""

    directory: str
    tfrecords: str
    batch: int

    @property
    def paths(self):
        """The shards, in order."""
        return sorted(glob.glob(f"{self.directory}/*.array_record-*"))


class Reader(NamedTuple):
    """A reader: its next step, what it may have read ahead, and records by number."""

    step: Callable[[], int]
    ahead: int = 0
    records: int = 0
    pick: Callable[[Any], Sequence[bytes]] | None = None


def _by_batches(shards, records, read):
    def batches():
        chance, batch = np.random.default_rng(0), min(shards.batch, records)
        while True:
            order = chance.permutation(records)
            yield from order[: records // batch * batch].reshape(-1, batch)

    given = batches()
    return Reader(lambda: len(read(next(given))), 0, records, read)


def _gristmill_read(shards):
    from gristmill import loader

    dataset = loader.open(shards.directory)
    return _by_batches(shards, len(dataset), dataset.read)


def _gristmill_plain(shards):
    """The same shards without their indexes: the hash of every chunk is compared."""
    from gristmill import loader

    folder = tempfile.mkdtemp()
    # Links, as the index of a shard is looked for beside it.
    for path in shards.paths:
        os.symlink(path, os.path.join(folder, os.path.basename(path)))
    dataset = loader.open(f"{folder}/*", cache_dir="")
    return _by_batches(shards, len(dataset), dataset.read)


def _gristmill_feed(shards, *, workers=0):
    from gristmill import loader

    dataset = loader.open(shards.directory)
    batch = min(shards.batch, len(dataset))
    batches = loader.global_batches(
        dataset, batch_size=batch, seed=42, shuffle="global", epochs=None
    )
    feed = batches.feed(host=(0, 1), workers=workers)
    return Reader(lambda: len(next(feed)), (4 + 2 * workers) * batch)


def _array_record(shards):
    from array_record.python.array_record_module import ArrayRecordReader

    # The options that array_record's own data source reads with.
    options = {"options": "readahead_buffer_size:0"}
    options["file_reader_buffer_size"] = 32768
    readers = [ArrayRecordReader(path, **options) for path in shards.paths]
    ends = np.cumsum([reader.num_records() for reader in readers])

    def read(numbers):
        out = [b""] * len(numbers)
        which = np.searchsorted(ends, numbers, side="right")
        for shard, reader in enumerate(readers):
            places = np.flatnonzero(which == shard)
            if len(places):
                first = int(ends[shard - 1]) if shard else 0
                records = reader.read((numbers[places] - first).tolist())
                for place, record in zip(places.tolist(), records, strict=True):
                    out[place] = record
        return out

    return _by_batches(shards, int(ends[-1]), read)


def _grain_source(shards):
    import grain

    return grain.sources.ArrayRecordDataSource(shards.paths)


def _gristmill_source(shards):
    from gristmill import loader

    return loader.ArrayRecordDataSource(shards.paths)


def _grain_getitems(shards):
    source = _grain_source(shards)
    read = source.__getitems__
    return _by_batches(shards, len(source), lambda numbers: read(numbers.tolist()))


def _grain_getitem(shards):
    source = _grain_source(shards)
    return _by_batches(
        shards, len(source), lambda numbers: [source[n] for n in numbers.tolist()]
    )


def _guide(shards, *, source):
    """The pipeline of Grain's guide; repeated, to be read for as long as it takes."""
    import grain

    dataset = grain.MapDataset.source(source(shards)).shuffle(42).repeat()
    records = iter(dataset.to_iter_dataset())
    return Reader(
        lambda: sum(1 for _ in itertools.islice(records, shards.batch)), _GRAIN_AHEAD
    )


def _tf_data(shards):
    import tensorflow as tf

    files = sorted(glob.glob(f"{shards.tfrecords}/*.tfrecord-*"))
    bytes_of_batch = 2_200 if shards.batch > 64 else 100_000
    dataset = (
        tf.data.Dataset.from_tensor_slices(files)
        .shuffle(len(files), seed=42)
        .interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
        .repeat()
        .shuffle(_SHUFFLE_BUFFER_BYTES // bytes_of_batch, seed=42)
        .batch(shards.batch)
        .prefetch(tf.data.AUTOTUNE)
    )
    records = dataset.as_numpy_iterator()
    return Reader(lambda: len(next(records)), 4 * shards.batch)


_READERS = {
    "gristmill_read": _gristmill_read,
    "gristmill_plain": _gristmill_plain,
    "gristmill_feed": _gristmill_feed,
    "gristmill_feed_2": functools.partial(_gristmill_feed, workers=2),
    "array_record": _array_record,
    "grain_getitems": _grain_getitems,
    "grain_getitem": _grain_getitem,
    "grain_guide": functools.partial(_guide, source=_grain_source),
    "gristmill_guide": functools.partial(_guide, source=_gristmill_source),
    "tf_data": _tf_data,
}


def read(key, directory, tfrecords, batch, seconds):
    """Measures a reader, and returns a checksum of some records."""
    import google_crc32c

    reader = _READERS[key](Shards(directory, tfrecords, int(batch)))
    run = steadily(
        lambda: reader.step() / 1000,
        warm=(reader.ahead + 4 * int(batch)) / 1000,
        seconds=float(seconds),
    )
    checksum = None
    if reader.pick is not None:
        chance = np.random.default_rng(1)
        numbers = chance.integers(0, reader.records, _CHECKED_RECORDS)
        checksum = google_crc32c.value(b"".join(reader.pick(numbers)))
    return {**run, "checksum": checksum}


PROGRAMS = {key: functools.partial(read, key) for key in _READERS}

if __name__ == "__main__":
    sys.exit(main(Load, PROGRAMS))
