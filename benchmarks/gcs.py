"""Random records from a bucket: gristmill and Grain."""

import functools
import itertools
import pathlib
import sys

import numpy as np

from benchmarks.bucket_server import BUCKET, counters, serve
from benchmarks.contest import (
    Contest,
    Contestant,
    Peer,
    main,
    make_shards,
    open_feed,
)
from benchmarks.cost import timed

# Kind and group size, and how many records are read for each of a batch.
_CASES = {
    "text of 2 KB": ("text", 1),
    "text of 2 KB, 16 a chunk": ("text", 16),
    "noise of 100 KB": ("noise", 1),
}
_BATCH = {"text": 1024, "noise": 64}
_STEPS = 12


class Gcs(Contest):
    """Reading from a bucket in random order.

    One process reads batches from a server on loopback with 20 ms before the first
    byte, 100 MB/s a connection and 1.25 GB/s in all, without TLS. Reader and server
    share the processors. What opens the dataset and reads the first batch does not
    count; with a block shuffle, the second epoch counts.
    """

    name = "gcs"
    unit = "thousand records"
    reference = ("grain", "client")
    contestants = {
        "gristmill_global": Contestant("gristmill, global shuffle"),
        "gristmill_block": Contestant("gristmill, block shuffle"),
        "client": Contestant("gristmill's client alone, bytes only", bound=True),
        "grain": Contestant("Grain on gs://, 64 threads"),
    }
    columns = {"requests": "requests a record", "sent": "bytes a record"}
    options = {
        "bytes": (300_000_000, 8_000_000, "of each kind of records"),
        "latency_ms": (20.0, 2.0, "before the first byte of an answer"),
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

    def cases(self):
        """Makes the datasets."""
        for case, (kind, group) in _CASES.items():
            self._local = make_shards(self.work, kind, group, self.args.bytes)
            self._batch = _BATCH[kind]
            ours = [key for key in self.contestants if key.startswith("gristmill")]
            yield case, [*self.contestants] if group == 1 else ours

    def measure(self, case, key):
        """Reads in a process of its own, beside the server."""
        with serve(self._local.parent, self.args.latency_ms) as url:
            variables = {
                "STORAGE_EMULATOR_HOST": url,
                "CLOUD_STORAGE_EMULATOR_ENDPOINT": url,
            }
            command = self.program("read", key, url, self._local, self._batch)
            return self.run(command, variables)


# Each returns a step, how often it is taken before it counts, and how often it counts.
def _ours(local, batch, *, shuffle):
    from gristmill import loader

    dataset = loader.open(f"gs://{BUCKET}/{local.name}")
    epoch = len(dataset) // batch
    feed = open_feed(dataset, batch, shuffle=shuffle)
    # A block shuffle pays by the window.
    counted = (epoch, epoch) if shuffle == "block" else (1, min(_STEPS, epoch))
    return lambda: len(next(feed)), *counted


def _shards(local):
    """Yields each shard on the disk, and in the bucket."""
    for path in sorted(local.glob("*.array_record-*")):
        yield path, f"gs://{BUCKET}/{local.name}/{path.name}"


def _client(local, batch):
    from gristmill.dataset.metadata.layout import index_path
    from gristmill.dataset.metadata.shard_index import map_index
    from gristmill.loader.remote.object_reads import ByteRange
    from gristmill.loader.remote.range_fetcher import RangeFetcher

    ranges = []
    for path, url in _shards(local):
        index = map_index(str(local / index_path(path.name)))
        places = index.place_records(np.arange(index.records))
        ranges += [ByteRange(url, *place) for place in places[:, 1:3].tolist()]
    order = itertools.cycle(np.random.default_rng(1).permutation(len(ranges)))
    fetcher = RangeFetcher()
    # All at once, so that it never waits for the last of a batch.
    sizes = iter((batch, _STEPS * batch))

    def step():
        numbers, arrived = itertools.islice(order, next(sizes)), []
        wanted = [ranges[number] for number in numbers]
        fetcher.fetch(wanted, lambda _, data: arrived.append(data))
        return len(arrived)

    return step, 1, 1


def _grain(local, batch):
    import grain

    source = grain.sources.ArrayRecordDataSource([url for _, url in _shards(local)])
    options = grain.ReadOptions(num_threads=64, prefetch_buffer_size=500)
    shuffled = grain.MapDataset.source(source).shuffle(seed=1).repeat()
    records = iter(shuffled.to_iter_dataset(options))
    return lambda: sum(bool(next(records)) for _ in range(batch)), 1, _STEPS // 4


_READERS = {
    "gristmill_global": functools.partial(_ours, shuffle="global"),
    "gristmill_block": functools.partial(_ours, shuffle="block"),
    "client": _client,
    "grain": _grain,
}


def read(key, url, local, batch):
    """Measures a reader once its first batch is there."""
    step, warm, counted = _READERS[key](pathlib.Path(local), int(batch))
    for _ in range(warm):
        step()
    before = counters(url)
    run = timed(lambda: sum(step() for _ in range(counted)))
    records = run["work"]
    used = {
        name: (after - before[name]) / records for name, after in counters(url).items()
    }
    return {**run, **used, "work": records / 1000, "peak_bytes": None}


if __name__ == "__main__":
    sys.exit(main(Gcs))
