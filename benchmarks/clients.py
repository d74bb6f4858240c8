"""Feeds from a bucket by other clients in place of gristmill's own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import os
import queue
import sys
import threading
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from benchmarks import gcs
from benchmarks.contest import Contestant, main
from gristmill.dataset.base.errors import StorageError
from gristmill.dataset.storage.paths import split_path
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetcher import RangeFetcher

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
    "obstore_async": _of(_InLoop, _obstore_async),
    "obstore": _of(_InThreads, _obstore, threads=256),
    "tensorstore": _of(_InLoop, _tensorstore),
    "urllib3": _of(_InThreads, _urllib3),
    "gcsfs": _of(_InLoop, _gcsfs),
    "google": _of(_InThreads, _google, threads=32),
}


class Clients(gcs.Gcs):
    """See `about`."""

    name = "clients"
    title = "Feeds from a bucket by other clients"
    about = (
        "Each client fetches the ranges that gristmill's loader asks for, with up to "
        "256 in flight at 20 ms, and retries above it; all else is the loader's. A "
        "client would replace gristmill's with 0.7 of its records/s in a global "
        "shuffle and 0.9 in a block shuffle."
    )
    reference = ("gristmill",)
    contestants = {
        "gristmill": Contestant("gristmill's own"),
        "obstore_async": Contestant("obstore, one thread of asyncio", ("obstore",)),
        "obstore": Contestant("obstore, 256 threads", ("obstore",)),
        "tensorstore": Contestant("TensorStore", ("tensorstore",)),
        "urllib3": Contestant("urllib3, 64 threads", ("urllib3",)),
        "gcsfs": Contestant("gcsfs", ("gcsfs",)),
        "google": Contestant("google-cloud-storage, 32 threads"),
    }
    packages = ("obstore", "tensorstore", "urllib3", "gcsfs", "google-cloud-storage")
    peers = ()

    def cases(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Makes the datasets."""
        for case, _ in super().cases():
            if not case.endswith("chunk"):
                for self._shuffle in ("global", "block"):
                    yield f"{case}, {self._shuffle} shuffle", [*self.contestants]

    def measure(self, case: str, key: str) -> dict[str, Any]:
        """Reads in a process of its own."""
        return self.read(case.partition(",")[0], key, self._shuffle)


def read(key: str, url: str, local: str, batch: str, shuffle: str) -> dict[str, Any]:
    """Measures a feed whose reads a client makes."""
    import gristmill.loader.reading.remote_shards as seam

    seam.RangeFetcher = CLIENTS[key]  # type: ignore[misc]
    return gcs.read(f"gristmill_{shuffle}", url, local, batch)


PROGRAMS = {key: functools.partial(read, key) for key in CLIENTS}

if __name__ == "__main__":
    sys.exit(main(Clients, PROGRAMS))
