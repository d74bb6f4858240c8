"""Local shards in random order: gristmill, Grain, array_record and tf.data."""

import functools
import glob
import itertools
import os
import sys
import tempfile

import numpy as np

from benchmarks.contest import (
    Contest,
    Contestant,
    Peer,
    expect,
    main,
    make_shards,
    open_feed,
)
from benchmarks.cost import steadily

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


class Load(Contest):
    """Reading in random order.

    Shards on a local disk, in the page cache, `zstd:3`; readers are measured once
    they are warm. gristmill compares the checksum of every record, or of plain
    files the hash of every chunk. `tf.data` reads the TFRecords through a shuffle
    buffer of 40 MB, in no order that can be repeated.
    """

    name = "load"
    unit = "thousand records"
    reference = ("array_record",)
    contestants = {
        "gristmill_read": Contestant("gristmill `dataset.read(indices)`"),
        "gristmill_plain": Contestant("the same, plain files"),
        "gristmill_feed": Contestant("gristmill `batches.feed`"),
        "gristmill_feed_2": Contestant("the same, 2 workers"),
        "array_record": Contestant("`ArrayRecordReader.read`"),
        "grain_getitems": Contestant("Grain's `source.__getitems__(indices)`"),
        "grain_getitem": Contestant("Grain's `source[i]`"),
        "grain_guide": Contestant("the pipeline of Grain's guide"),
        "gristmill_guide": Contestant("the same, gristmill's source"),
        "tf_data": Contestant("`tf.data`"),
    }
    options = {
        "bytes": (10**8, 10**6, "of each kind of records"),
        "seconds": (0.6, 0.05, "of each measurement"),
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
            "`dataset.read` beside `read(indices)`; text, random order",
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
            shards = make_shards(self.work, kind, group, self.args.bytes)
            self._how = shards, self.work / kind, _BATCHES[kind], self.args.seconds
            self._checksum = None
            yield case, [k for k in self.contestants if group == 1 or k != "tf_data"]

    def measure(self, case, key):
        """Reads for a while, in a process of its own."""
        run = self.run(self.program("read", key, *self._how))
        if checksum := run.pop("checksum", None):
            self._checksum = self._checksum or checksum
            expect(checksum, self._checksum, "checksum")
        return run


class Shards:
    """A dataset, its shards and its TFRecords, and how many records a batch has."""

    def __init__(self, directory, tfrecords, batch):
        self.directory, self.batch = directory, batch
        self.paths = sorted(glob.glob(f"{directory}/*.array_record-*"))
        self.tfrecords = sorted(glob.glob(f"{tfrecords}/*.tfrecord-*"))


# Readers by number return how many records there are, and a function of numbers.


def _gristmill_read(shards):
    from gristmill import loader

    dataset = loader.open(shards.directory)
    return len(dataset), dataset.read


def _gristmill_plain(shards):
    """The same shards without their indexes: the hash of every chunk is compared."""
    from gristmill import loader

    folder = tempfile.mkdtemp()
    # Links, as the index of a shard is looked for beside it.
    for path in shards.paths:
        os.symlink(path, os.path.join(folder, os.path.basename(path)))
    dataset = loader.open(f"{folder}/*", cache_dir="")
    return len(dataset), dataset.read


def _array_record(shards):
    from array_record.python.array_record_module import ArrayRecordReader

    # The options that array_record's own data source reads with.
    options = {
        "options": "readahead_buffer_size:0",
        "file_reader_buffer_size": 32768,
    }
    readers = [ArrayRecordReader(path, **options) for path in shards.paths]
    ends = np.cumsum([reader.num_records() for reader in readers])
    begins = [0, *ends[:-1].tolist()]

    def read(numbers):
        records = np.empty(len(numbers), object)
        which = np.searchsorted(ends, numbers, side="right")
        for shard in np.unique(which).tolist():
            here = which == shard
            places = (numbers[here] - begins[shard]).tolist()
            records[here] = readers[shard].read(places)
        return records.tolist()

    return int(ends[-1]), read


def _grain_source(shards):
    import grain

    return grain.sources.ArrayRecordDataSource(shards.paths)


def _gristmill_source(shards):
    from gristmill import loader

    return loader.ArrayRecordDataSource(shards.paths)


def _grain_getitems(shards):
    source = _grain_source(shards)
    return len(source), lambda numbers: source.__getitems__(numbers.tolist())


def _grain_getitem(shards):
    source = _grain_source(shards)
    return len(source), lambda numbers: [source[n] for n in numbers.tolist()]


# Feeds return their next step, and how many records they may have read ahead.


def _gristmill_feed(shards, *, workers=0):
    from gristmill import loader

    feed = open_feed(loader.open(shards.directory), shards.batch, workers=workers)
    return lambda: len(next(feed)), (4 + 2 * workers) * shards.batch


def _guide(shards, *, source):
    """The pipeline of Grain's guide; repeated, to be read for as long as it takes."""
    import grain

    dataset = grain.MapDataset.source(source(shards)).shuffle(42).repeat()
    records = iter(dataset.to_iter_dataset())

    def step():
        return sum(1 for _ in itertools.islice(records, shards.batch))

    return step, _GRAIN_AHEAD


def _tf_data(shards):
    import tensorflow as tf

    files = shards.tfrecords
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
    return lambda: len(next(records)), 4 * shards.batch


_BY_NUMBER = {
    "gristmill_read": _gristmill_read,
    "gristmill_plain": _gristmill_plain,
    "array_record": _array_record,
    "grain_getitems": _grain_getitems,
    "grain_getitem": _grain_getitem,
}
_FEEDS = {
    "gristmill_feed": _gristmill_feed,
    "gristmill_feed_2": functools.partial(_gristmill_feed, workers=2),
    "grain_guide": functools.partial(_guide, source=_grain_source),
    "gristmill_guide": functools.partial(_guide, source=_gristmill_source),
    "tf_data": _tf_data,
}


def _batches(records, batch):
    """Yields the numbers of batches in random order, without end."""
    chance, batch = np.random.default_rng(0), min(batch, records)
    while True:
        order = chance.permutation(records)
        yield from order[: records // batch * batch].reshape(-1, batch)


def read(key, directory, tfrecords, batch, seconds):
    """Measures a reader; by number, returns a checksum of some records, too."""
    import google_crc32c

    shards = Shards(directory, tfrecords, int(batch))
    if key in _FEEDS:
        step, ahead = _FEEDS[key](shards)
    else:
        records, pick = _BY_NUMBER[key](shards)
        batches = _batches(records, shards.batch)
        step, ahead = (lambda: len(pick(next(batches)))), 0
    run = steadily(
        lambda: step() / 1000,
        warm=(ahead + 4 * shards.batch) / 1000,
        seconds=float(seconds),
    )
    if key in _FEEDS:
        return run
    numbers = np.random.default_rng(1).integers(0, records, _CHECKED_RECORDS)
    return {**run, "checksum": google_crc32c.value(b"".join(pick(numbers)))}


if __name__ == "__main__":
    sys.exit(main(Load))
