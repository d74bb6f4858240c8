"""Feeds from a bucket by other clients in place of gristmill's own.

    python -m benchmarks.clients [--rounds 5]

Each client fetches the ranges that the loader asks for, with 256 in flight at 20 ms and
retries above it; all else is the loader's. A client would replace gristmill's with 0.7
of its records/s in a global shuffle and 0.9 in a block shuffle.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import json
import os
import pathlib
import queue
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from benchmarks import gcs
from benchmarks.contest import say
from benchmarks.gcs_readers import Setting, measure
from benchmarks.rounds import take_turns
from gristmill.dataset.base.errors import StorageError
from gristmill.dataset.storage.paths import split_path
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetcher import RangeFetcher

_SHUFFLES = "gristmill_global", "gristmill_block"
_RECORDS = {2_000: (12_288, 65_536), 100_000: (4_096, 8_192)}
_TRIES = 5
Take = Callable[[int, bytes], None]
Get = Callable[[str, str, int, int | None], Any]
Read = Callable[[ByteRange], bytes]


def _checked(wanted: ByteRange, data: bytes) -> bytes:
    if wanted.end is not None and len(data) != wanted.end - wanted.begin:
        raise StorageError("wrong length", where=str(wanted))
    return data


class _InThreads(RangeFetcher):
    """Each read in a thread of a pool."""

    connect: Callable[[], Get]
    threads = 64

    def fetch(self, ranges: Sequence[ByteRange], take: Take) -> None:
        if not hasattr(self, "_pool"):
            self._pool = concurrent.futures.ThreadPoolExecutor(self.threads)
            self._get = type(self).connect()
        numbers = {self._pool.submit(self._one, r): n for n, r in enumerate(ranges)}
        for done in concurrent.futures.as_completed(numbers):
            take(numbers[done], done.result())

    def _one(self, wanted: ByteRange) -> bytes:
        for tries in range(_TRIES):
            try:
                place = split_path(wanted.path)
                return _checked(wanted, self._get(*place, wanted.begin, wanted.end))
            except Exception:
                if tries + 1 == _TRIES:
                    raise
                time.sleep(0.1 * 2**tries)
        raise AssertionError


class _InLoop(RangeFetcher):
    """All reads in one thread of asyncio."""

    connect: Callable[[], Get]

    def fetch(self, ranges: Sequence[ByteRange], take: Take) -> None:
        if not hasattr(self, "_loop"):
            self._loop = asyncio.new_event_loop()
            self._slots = asyncio.Semaphore(self.options.in_flight)
            threading.Thread(target=self._loop.run_forever, daemon=True).start()
            self._get = type(self).connect()
        done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        work = self._all(ranges, done)
        asyncio.run_coroutine_threadsafe(work, self._loop)
        for _ in ranges:
            number, found = done.get()
            if isinstance(found, Exception):
                raise found
            take(number, found)

    async def _all(
        self, ranges: Sequence[ByteRange], done: queue.SimpleQueue[tuple[int, Any]]
    ) -> None:
        async def one(number: int, wanted: ByteRange) -> None:
            for tries in range(_TRIES):
                try:
                    async with self._slots:
                        place = split_path(wanted.path)
                        data = await self._get(*place, wanted.begin, wanted.end)
                    found: Any = _checked(wanted, data)
                    break
                except Exception as e:
                    found = e
                await asyncio.sleep(0.1 * 2**tries)
            done.put((number, found))

        await asyncio.gather(*(one(*item) for item in enumerate(ranges)))


def _obstore_stores() -> Callable[[str], Any]:
    from obstore.store import GCSStore

    stores: dict[str, Any] = {}

    def store(bucket: str) -> Any:
        if bucket not in stores:
            stores[bucket] = GCSStore(
                bucket,
                base_url=os.environ["STORAGE_EMULATOR_HOST"],
                skip_signature=True,
                client_options={"allow_http": True},
            )
        return stores[bucket]

    return store


def _obstore_async() -> Get:
    import obstore

    store = _obstore_stores()

    async def get(bucket: str, name: str, begin: int, end: int | None) -> bytes:
        if end is None:
            answer = await obstore.get_async(store(bucket), name)
            return (await answer.bytes_async()).to_bytes()
        data = await obstore.get_range_async(store(bucket), name, start=begin, end=end)
        return data.to_bytes()

    return get


def _obstore() -> Get:
    import obstore

    store = _obstore_stores()

    def get(bucket: str, name: str, begin: int, end: int | None) -> bytes:
        if end is None:
            return obstore.get(store(bucket), name).bytes().to_bytes()
        return obstore.get_range(store(bucket), name, start=begin, end=end).to_bytes()

    return get


class _ObstoreRanges(_InThreads):
    """One `get_ranges` of obstore for each object."""

    connect = staticmethod(_obstore)

    def fetch(self, ranges: Sequence[ByteRange], take: Take) -> None:
        import obstore

        whole = [wanted for wanted in ranges if wanted.end is None]
        if whole:
            super().fetch(ranges, take)
            return
        numbers: dict[str, list[int]] = {}
        for number, wanted in enumerate(ranges):
            numbers.setdefault(wanted.path, []).append(number)

        def several(item: tuple[str, list[int]]) -> Any:
            bucket, name = split_path(item[0])
            return obstore.get_ranges(
                _obstore_stores()(bucket),
                name,
                starts=[ranges[n].begin for n in item[1]],
                ends=[ranges[n].end or 0 for n in item[1]],
                coalesce=0,
            )

        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            found = list(pool.map(several, numbers.items()))
        for own, pieces in zip(numbers.values(), found, strict=True):
            for number, data in zip(own, pieces, strict=True):
                take(number, data.to_bytes())


def _gcsfs() -> Get:
    os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"
    import gcsfs

    url = os.environ["STORAGE_EMULATOR_HOST"]
    files = gcsfs.GCSFileSystem(
        token="anon", endpoint_url=url, project="p", asynchronous=True
    )

    async def get(bucket: str, name: str, begin: int, end: int | None) -> bytes:
        found: bytes = await files._cat_file(f"{bucket}/{name}", begin, end)
        return found

    return get


def _tensorstore() -> Get:
    os.environ["TENSORSTORE_GCS_HTTP_URL"] = os.environ["STORAGE_EMULATOR_HOST"]
    import tensorstore

    context = {"gcs_request_concurrency": {"limit": 256}}
    stores: dict[str, Any] = {}

    def get(bucket: str, name: str, begin: int, end: int | None) -> Awaitable[bytes]:
        if bucket not in stores:
            spec = {"driver": "gcs", "bucket": bucket, "context": context}
            stores[bucket] = tensorstore.KvStore.open(spec).result()
        return _value(stores[bucket].read(name, byte_range=slice(begin, end)))

    return get


async def _value(read: Any) -> bytes:
    found: bytes = (await read).value
    return found


def _google() -> Get:
    from google.auth.credentials import AnonymousCredentials
    from google.cloud.storage import Client

    client = Client(project="p", credentials=AnonymousCredentials())

    def get(bucket: str, name: str, begin: int, end: int | None) -> bytes:
        blob, last = client.bucket(bucket).blob(name), None if end is None else end - 1
        found: bytes = blob.download_as_bytes(start=begin, end=last, checksum=None)
        return found

    return get


def _urllib3() -> Get:
    import urllib3

    pool = urllib3.PoolManager(maxsize=64, retries=False)
    url = os.environ["STORAGE_EMULATOR_HOST"]

    def get(bucket: str, name: str, begin: int, end: int | None) -> bytes:
        quoted = urllib.parse.quote(name, safe="")
        place = f"{url}/download/storage/v1/b/{bucket}/o/{quoted}?alt=media"
        span = f"bytes={begin}-{'' if end is None else end - 1}"
        return pool.request("GET", place, headers={"Range": span}).data

    return get


def _of(kind: type[RangeFetcher], connect: Callable[[], Get], **more: Any) -> Any:
    return type("Client", (kind,), {"connect": staticmethod(connect), **more})


CLIENTS: dict[str, type[RangeFetcher]] = {
    "gristmill": RangeFetcher,
    "obstore, one thread of asyncio": _of(_InLoop, _obstore_async),
    "obstore, 256 threads": _of(_InThreads, _obstore, threads=256),
    "obstore, get_ranges": _ObstoreRanges,
    "TensorStore": _of(_InLoop, _tensorstore),
    "urllib3, 64 threads": _of(_InThreads, _urllib3),
    "gcsfs": _of(_InLoop, _gcsfs),
    "google-cloud-storage, 32 threads": _of(_InThreads, _google, threads=32),
}


def _run(client: str, shuffle: str, url: str, dataset: pathlib.Path, n: int) -> Any:
    """Returns records a second in a process of its own, or why there are none."""
    command = [sys.executable, "-m", "benchmarks.clients", "--one", client, shuffle]
    command += [url, str(dataset), str(n)]
    env = {**os.environ, "STORAGE_EMULATOR_HOST": url}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=180, check=False, env=env
        )
    except subprocess.TimeoutExpired:
        return "no end"
    if done.returncode:
        return f"exit status {done.returncode}: {done.stderr[-300:]}"
    run = json.loads(done.stdout.splitlines()[-1])
    return run["records"] / run["wall_seconds"]


def main(argv: Sequence[str] | None = None) -> int:
    """Runs all clients and prints their table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.one:
        import gristmill.loader.reading.remote_shards as seam

        client, shuffle, url, local, records = args.one
        seam.RangeFetcher = CLIENTS[client]  # type: ignore[misc]
        setting = Setting(url, pathlib.Path(local), int(records))
        print(json.dumps(measure(shuffle, setting)), flush=True)
        os._exit(0)  # Reads ahead are not waited for.
    columns = []
    for record_bytes, counts in _RECORDS.items():
        with tempfile.TemporaryDirectory() as folder:
            place = pathlib.Path(folder)
            dataset = gcs.make_dataset(
                place, record_bytes=record_bytes, records=counts[1], group_size=1
            )
            rates: dict[str, dict[str, list[float]]] = {s: {} for s in _SHUFFLES}
            with gcs.serve(place / "bucket", 20, 0) as url:
                for _, client in take_turns(args.clients, args.rounds):
                    for shuffle, count in zip(_SHUFFLES, counts, strict=True):
                        rate = _run(client, shuffle, url, dataset, count)
                        say(f"{record_bytes} {shuffle} {client}: {rate}")
                        if isinstance(rate, float):
                            rates[shuffle].setdefault(client, []).append(rate)
            for shuffle, found in rates.items():
                kind = shuffle.removeprefix("gristmill_")
                columns.append((f"{kind}, {record_bytes // 1000} KB", found))
    lines = ["| client | " + " | ".join(name for name, _ in columns) + " |"]
    lines.append("| --- |" + " ---: |" * len(columns))
    for client in args.clients:
        cells = []
        for _, found in columns:
            middle = statistics.median(found.get(client, [0.0]))
            ours = statistics.median(found.get("gristmill", [1.0]))
            cells.append(f"{middle:,.0f} ({middle / ours:.2f})")
        lines.append(" | ".join([f"| {client}", *cells]) + " |")
    say("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
