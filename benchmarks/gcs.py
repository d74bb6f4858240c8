"""Random records from a bucket: gristmill and Grain."""

from __future__ import annotations

import functools
import json
import pathlib
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator

import numpy as np

from benchmarks import c4_like
from benchmarks.bucket_server import BUCKET, serve
from benchmarks.contest import (
    Contest,
    Contestant,
    Option,
    Peer,
    main,
    make,
    size,
    tree_cpu_seconds,
)

_FILES = 8
# Kind and group size, and how many records are read for each of a batch.
_CASES = {
    "text of 2 KB": ("text", 1),
    "text of 2 KB, 16 a chunk": ("text", 16),
    "noise of 100 KB": ("noise", 1),
}
_ANY_GROUP = ("gristmill_global", "gristmill_block")
_BATCH = {"text": 1024, "noise": 64}
_STEPS = 12


class Gcs(Contest):
    """See `about`."""

    name = "gcs"
    title = "Reading from a bucket in random order"
    about = (
        "One process reads batches from a server on loopback with 20 ms before the "
        "first byte, 100 MB/s a connection and 1.25 GB/s in all, without TLS. Reader "
        "and server share the processors. What opens the dataset and reads the first "
        "batch does not count; with a block shuffle, the second epoch counts."
    )
    unit = "thousand records"
    reference = ("grain", "client")
    contestants = {
        "gristmill_global": Contestant("gristmill, global shuffle"),
        "gristmill_block": Contestant("gristmill, block shuffle"),
        "client": Contestant("gristmill's client alone, bytes only", bound=True),
        "grain": Contestant("Grain on gs://, 64 threads", ("grain", "array_record")),
    }
    columns = {"requests": "requests a record", "sent": "bytes a record"}
    options = {
        "bytes": Option(size, 300_000_000, 8_000_000, "of each kind of records"),
        "latency_ms": Option(float, 20.0, 2.0, "before the first byte of an answer"),
    }
    packages = ("array-record", "grain", "numpy", "zstandard")
    peers = (
        Peer(
            "Grain's `ArrayRecordDataSource`",
            "grain",
            "a global shuffle of 2 KB records in a bucket, 20 ms",
            "gristmill_global",
            "grain",
            "text of 2 KB",
        ),
    )

    def __init__(self, args, work):
        super().__init__(args, work)
        self._bucket = work / "bucket"

    def cases(self):
        """Makes the datasets."""
        for case, (kind, group) in _CASES.items():
            make_dataset(self._bucket / f"{kind}-{group}", kind, group, self.args.bytes)
            yield case, [k for k in self.contestants if group == 1 or k in _ANY_GROUP]

    def measure(self, case, key):
        """Reads in a process of its own."""
        return self.read(case, key)

    def read(self, case, *program):
        """Runs a reader of a case beside the server."""
        kind, group = _CASES[case]
        local = self._bucket / f"{kind}-{group}"
        with serve(self._bucket, self.args.latency_ms) as url:
            variables = {
                "STORAGE_EMULATOR_HOST": url,
                "CLOUD_STORAGE_EMULATOR_ENDPOINT": url,
            }
            key, *more = program
            return self.run(
                self.program(key, url, local, _BATCH[kind], *more),
                variables=variables,
                timeout_seconds=300,
            )


def make_dataset(output, kind, group, size_bytes):
    """Converts generated records."""
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        c4_like.write_dataset(folder, size_bytes=size_bytes, files=_FILES, records=kind)
        how = ("--match-shards", "--compression=zstd:3", f"--group-size={group}")
        make("convert", f"{work}/*.tfrecord-*", output, *how, "--name=c4")


# Each opens, yields 0, and then the number of records that came.
Reader = Callable[[pathlib.Path, int], Iterator[int]]


def _ours(local, batch, *, shuffle):
    from gristmill import loader

    with tempfile.TemporaryDirectory() as cache_dir:
        dataset = loader.open(f"gs://{BUCKET}/{local.name}", cache_dir=cache_dir)
        # More epochs follow, so that as much is read ahead at the end as before.
        batches = loader.global_batches(
            dataset, batch_size=batch, seed=1, shuffle=shuffle, epochs=4
        )
        yield 0
        epoch = len(dataset) // batch
        # A block shuffle pays by the window.
        first = epoch if shuffle == "block" else 1
        with batches.feed(host=(0, 1)) as feed:
            yield sum(len(next(feed)) for _ in range(first))
            for _ in range(min(_STEPS, epoch) if first == 1 else epoch):
                yield len(next(feed))


def _client(local, batch):
    from gristmill.dataset.metadata.layout import index_path
    from gristmill.dataset.metadata.shard_index import map_index
    from gristmill.loader.remote.object_reads import ByteRange
    from gristmill.loader.remote.range_fetcher import RangeFetcher

    ranges = []
    for path in local.glob("*.array_record-*"):
        index = map_index(str(local / index_path(path.name)))
        name = f"gs://{BUCKET}/{local.name}/{path.name}"
        places = index.place_records(np.arange(index.records))
        ranges += [ByteRange(name, *place) for place in places[:, 1:3].tolist()]
    order = np.random.default_rng(1).permutation(len(ranges))
    fetcher = RangeFetcher()
    yield 0
    # All at once, so that it never waits for the last of a batch.
    for begin, end in ((0, batch), (batch, (1 + _STEPS) * batch)):
        numbers = order[np.arange(begin, end) % len(order)].tolist()
        arrived = []
        fetcher.fetch(
            [ranges[n] for n in numbers],
            lambda _, data, arrived=arrived: arrived.append(data),
        )
        yield len(arrived)


def _grain(local, batch):
    import grain

    names = sorted(path.name for path in local.glob("*.array_record-*"))
    paths = [f"gs://{BUCKET}/{local.name}/{name}" for name in names]
    source = grain.sources.ArrayRecordDataSource(paths)
    yield 0
    options = grain.ReadOptions(num_threads=64, prefetch_buffer_size=500)
    shuffled = grain.MapDataset.source(source).shuffle(seed=1).repeat()
    records = iter(shuffled.to_iter_dataset(options))
    for _ in range(_STEPS // 3):
        yield sum(bool(next(records)) for _ in range(batch))


READERS = {
    "gristmill_global": functools.partial(_ours, shuffle="global"),
    "gristmill_block": functools.partial(_ours, shuffle="block"),
    "client": _client,
    "grain": _grain,
}


def counters(url):
    """Returns the counters of the server."""
    with urllib.request.urlopen(f"{url}/counters") as answer:
        found = json.load(answer)
    return found


def read(key, url, local, batch):
    """Measures a reader once its first batch is there."""
    reader = READERS[key](pathlib.Path(local), int(batch))
    next(reader)
    next(reader)
    before, cpu, begin = counters(url), tree_cpu_seconds(), time.perf_counter()
    records = sum(reader)
    wall, cpu = time.perf_counter() - begin, tree_cpu_seconds() - cpu
    after = counters(url)
    return {
        "work": records / 1000,
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        "peak_bytes": None,
        "requests": (after["requests"] - before["requests"]) / records,
        "sent": (after["sent_bytes"] - before["sent_bytes"]) / records,
    }


PROGRAMS = {key: functools.partial(read, key) for key in READERS}

if __name__ == "__main__":
    sys.exit(main(Gcs, PROGRAMS))
