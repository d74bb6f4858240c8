"""Random records from a bucket: gristmill and Grain."""

import functools
import pathlib
import sys

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
    reference = ("grain",)
    contestants = {
        "gristmill_global": Contestant("gristmill, global shuffle"),
        "gristmill_block": Contestant("gristmill, block shuffle"),
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
            yield case, [k for k in self.contestants if group == 1 or k != "grain"]

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


def _grain(local, batch):
    import grain

    names = sorted(path.name for path in local.glob("*.array_record-*"))
    paths = [f"gs://{BUCKET}/{local.name}/{name}" for name in names]
    source = grain.sources.ArrayRecordDataSource(paths)
    options = grain.ReadOptions(num_threads=64, prefetch_buffer_size=500)
    shuffled = grain.MapDataset.source(source).shuffle(seed=1).repeat()
    records = iter(shuffled.to_iter_dataset(options))
    return lambda: sum(bool(next(records)) for _ in range(batch)), 1, _STEPS // 4


def read(key, url, local, batch):
    """Measures a reader once its first batch is there."""
    _, _, shuffle = key.partition("_")
    reader = functools.partial(_ours, shuffle=shuffle) if shuffle else _grain
    step, warm, counted = reader(pathlib.Path(local), int(batch))
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
    sys.exit(main(Gcs, read))
