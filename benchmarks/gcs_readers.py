"""The ways to read random records from a bucket that the benchmark compares.

    python -m benchmarks.gcs_readers NAME --url URL --local DIRECTORY --records N

runs one of them against a server and prints what it took. Readers that do not support
ArrayRecord fetch the bytes that the records occupy, and decode nothing.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import itertools
import json
import os
import pathlib
import queue
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

BUCKET = "bench"
_MOST_BATCH = 1024
# (object name, first byte, one past the last) of each record's chunk.
Range = tuple[str, int, int]


class Setting:
    """Where the data is.

    Attributes:
        url: URL of the server.
        local: The dataset's files, which are what the server serves.
        records: How many to read.
        batch: How many at once.
    """

    def __init__(self, url: str, local: pathlib.Path, records: int):
        self.url, self.local, self.records = url, local, records
        self.batch = max(min(_MOST_BATCH, records // 12), 1)

    @property
    def dataset(self) -> str:
        """The dataset in the bucket."""
        return f"gs://{BUCKET}/{self.local.name}"

    def ranges(self) -> list[Range]:
        """Returns the bytes of random records, looked up in the local files."""
        from gristmill import loader

        dataset = loader.open(self.local)
        found: list[Range] = []
        for number in range(dataset.num_shards):
            shard = dataset.shard(number)
            name = f"{self.local.name}/{pathlib.Path(shard.path).name}"
            stop = shard.first_record + shard.records
            offsets = [
                dataset.offset_bytes(record)
                for record in range(shard.first_record, stop)
            ]
            # A chunk ends where the next one begins. The last one of a shard is left
            # out: where it ends is not public.
            starts = sorted(set(offsets))
            ends = dict(itertools.pairwise(starts))
            found += [(name, at, ends[at]) for at in offsets if at in ends]
        order = np.random.default_rng(1).permutation(len(found))[: self.records]
        return [found[place] for place in order.tolist()]


# Each opens, and returns a source of the records, or their number, in portions.
Reader = Callable[[Setting], Iterator[int]]


def _ours(setting: Setting, *, shuffle: str) -> Iterator[int]:
    from gristmill import loader

    with tempfile.TemporaryDirectory() as cache_dir:
        dataset = loader.open(setting.dataset, cache_dir=cache_dir)
        # More epochs follow, so that as much is read ahead at the end as before the
        # first counted batch: with a block shuffle, a window.
        batches = loader.global_batches(
            dataset, batch_size=setting.batch, seed=1, shuffle=shuffle, epochs=3
        )
        yield 0
        with batches.feed(host=(0, 1)) as feed:
            steps = setting.records // setting.batch * (1 + (shuffle == "block"))
            for _ in range(steps):
                yield len(next(feed))


def _grain(setting: Setting, *, threads: int) -> Iterator[int]:
    os.environ["CLOUD_STORAGE_EMULATOR_ENDPOINT"] = setting.url
    import grain

    names = sorted(setting.local.glob("*.array_record-*"))
    paths = [f"{setting.dataset}/{path.name}" for path in names]
    source = grain.sources.ArrayRecordDataSource(paths)
    yield 0
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=500)
    records = iter(
        grain.MapDataset.source(source).shuffle(seed=1).to_iter_dataset(options)
    )
    for _ in range(setting.records):
        assert next(records)
        yield 1


def _checked(ranges: list[Range], data: Any) -> int:
    lengths = [len(piece) for piece in data]
    assert lengths == [end - begin for _, begin, end in ranges]
    return len(lengths)


def _batches(setting: Setting, ranges: list[Range]) -> Iterator[list[Range]]:
    for begin in range(0, len(ranges), setting.batch):
        yield ranges[begin : begin + setting.batch]


def _gcsfs(setting: Setting) -> Iterator[int]:
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    import gcsfs

    ranges = setting.ranges()
    files = gcsfs.GCSFileSystem(token="anon", endpoint_url=setting.url, project="p")
    yield 0
    for part in _batches(setting, ranges):
        names = [f"{BUCKET}/{name}" for name, _, _ in part]
        begins, ends = [b for _, b, _ in part], [e for _, _, e in part]
        yield _checked(part, files.cat_ranges(names, begins, ends, batch_size=256))


def _google(setting: Setting) -> Iterator[int]:
    os.environ["STORAGE_EMULATOR_HOST"] = setting.url
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client

    ranges = setting.ranges()
    bucket = Client(project="p", credentials=AnonymousCredentials()).bucket(BUCKET)
    yield 0

    def read(wanted: Range) -> bytes:
        name, begin, end = wanted
        return bucket.blob(name).download_as_bytes(start=begin, end=end - 1)

    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        for part in _batches(setting, ranges):
            yield _checked(part, pool.map(read, part))


def _client(setting: Setting) -> Iterator[int]:
    from gristmill.loader.remote.object_reads import (
        ByteRange,
        ObjectReads,
        ReadsInFlight,
    )

    ranges = setting.ranges()
    reads: ReadsInFlight[Range] = ReadsInFlight(ObjectReads(timeout_seconds=60))
    yield 0
    for part in _batches(setting, ranges):
        waiting, in_flight, answers = iter(part), 0, []
        while len(answers) < len(part):
            for wanted in itertools.islice(waiting, 256 - in_flight):
                name, begin, end = wanted
                reads.start(ByteRange(f"gs://{BUCKET}/{name}", begin, end), wanted)
                in_flight += 1
            done = reads.wait(60.0)
            in_flight -= len(done)
            answers += done
        yield _checked([tag for tag, _ in answers], [data for _, data in answers])


def _tensorstore(setting: Setting) -> Iterator[int]:
    os.environ["TENSORSTORE_GCS_HTTP_URL"] = setting.url
    import tensorstore

    ranges = setting.ranges()
    context = {"gcs_request_concurrency": {"limit": 256}}
    spec = {"driver": "gcs", "bucket": BUCKET, "context": context}
    store = tensorstore.KvStore.open(spec).result()
    yield 0
    for part in _batches(setting, ranges):
        answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for name, begin, end in part:
            store.read(name, byte_range=slice(begin, end)).add_done_callback(
                answers.put
            )
        yield sum(len(answers.get().result().value) > 0 for _ in part)


def _obstore(setting: Setting) -> Iterator[int]:
    import obstore
    from obstore.store import GCSStore

    ranges = setting.ranges()
    store = GCSStore(
        BUCKET,
        base_url=setting.url,
        skip_signature=True,
        client_options={"allow_http": True},
    )
    yield 0

    def read(wanted: Range) -> bytes:
        name, begin, end = wanted
        answer = obstore.get(store, name, options={"range": (begin, end)})
        return answer.bytes().to_bytes()

    with concurrent.futures.ThreadPoolExecutor(256) as pool:
        for part in _batches(setting, ranges):
            yield _checked(part, pool.map(read, part))


READERS: dict[str, Reader] = {
    "gristmill_global": lambda setting: _ours(setting, shuffle="global"),
    "gristmill_block": lambda setting: _ours(setting, shuffle="block"),
    "grain_16": lambda setting: _grain(setting, threads=16),
    "grain_64": lambda setting: _grain(setting, threads=64),
    "gristmill_client": _client,
    "gcsfs": _gcsfs,
    "google_cloud_storage": _google,
    "tensorstore": _tensorstore,
    "obstore": _obstore,
}


def _counters(url: str) -> collections.Counter[str]:
    with urllib.request.urlopen(f"{url}/counters") as answer:
        return collections.Counter(json.load(answer))


def measure(name: str, setting: Setting) -> dict[str, Any]:
    """Runs a reader and returns its cost.

    Returns:
        Seconds to open and until the first batch; of all that followed records, wall
        and CPU seconds of this process, and what the server counted.
    """
    reader = READERS[name](setting)
    connections = _counters(setting.url)["connections"]
    begin = time.perf_counter()
    next(reader)
    opened = time.perf_counter()
    # Imports, connections, indexes: what a long run pays once.
    warm = 0
    while warm < setting.batch:
        warm += next(reader)
    first_batch_seconds = time.perf_counter() - opened
    # A block shuffle pays by the window: all windows of an epoch come before.
    whole = setting.records // setting.batch * setting.batch
    while name == "gristmill_block" and warm < whole:
        warm += next(reader)
    before, first = _counters(setting.url), time.perf_counter()
    cpu = time.process_time()
    records = sum(reader)
    wall, cpu = time.perf_counter() - first, time.process_time() - cpu
    after = _counters(setting.url)
    return {
        "reader": name,
        "open_seconds": opened - begin,
        "first_batch_seconds": first_batch_seconds,
        "records": records,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        # Less those that asked for the counters.
        "connections": after["connections"] - connections - 2,
        **{
            f"server_{key}": after[key] - before[key]
            for key in ("requests", "sent_bytes", "cpu_seconds")
        },
    }


def main() -> None:
    """Runs one reader; prints its measurements as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gcs_readers")
    parser.add_argument("reader", choices=sorted(READERS))
    parser.add_argument("--url", required=True)
    parser.add_argument("--local", type=pathlib.Path, required=True)
    parser.add_argument("--records", type=int, required=True)
    args = parser.parse_args()
    os.environ["STORAGE_EMULATOR_HOST"] = args.url
    measured = measure(args.reader, Setting(args.url, args.local, args.records))
    print(json.dumps(measured), flush=True)
    os._exit(0)  # Readers ahead are not waited for.


if __name__ == "__main__":
    main()
