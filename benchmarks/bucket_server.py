"""A bucket on loopback with the latency and the bandwidth of a real one, for reading.

    python -m benchmarks.bucket_server DIRECTORY --latency-ms 20

It serves the files below a directory as objects, in a process of its own, on one
thread that never waits: what it costs is about a tenth of what its clients do, and it
counts requests, connections, bytes and its own CPU (GET /counters). It knows as much
of the JSON and XML APIs as readers ask for, and injects no faults.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import mmap
import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

import google_crc32c
import numpy as np

BUCKET = "bench"
_CONNECTION_BYTES_PER_SECOND, _TOTAL_BYTES_PER_SECOND = 100e6, 1250e6
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d*)-(\d*)\r\n", re.IGNORECASE)
_JSON_API = re.compile(r"(?:/download)?(?:/storage/v1)?/b/([^/]+)/o(?:/(.*))?")
_PIECE_BYTES = 64 << 10
_MODIFIED = "Sat, 01 Nov 2025 00:00:00 GMT"


class Bucket:
    """Files as objects, and what was asked of them.

    Args:
        directory: Its objects are the files below it.
        latency_seconds: Between a request and the first byte of its answer.
    """

    def __init__(self, directory: pathlib.Path, latency_seconds: float):
        self.latency_seconds = latency_seconds
        self.free_at = 0.0
        self.counters = {"requests": 0, "connections": 0, "sent_bytes": 0}
        self.objects: dict[str, memoryview] = {}
        self.about: dict[str, dict[str, str]] = {}
        for number, path in enumerate(sorted(directory.rglob("*"))):
            if path.is_file():
                self._add(path.relative_to(directory).as_posix(), path, number)

    def _add(self, name: str, path: pathlib.Path, number: int) -> None:
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        crc32c = google_crc32c.value(np.frombuffer(data, np.uint8)).to_bytes(4, "big")
        self.objects[name] = memoryview(data)
        self.about[name] = {
            "kind": "storage#object",
            "id": f"{BUCKET}/{name}",
            "bucket": BUCKET,
            "name": name,
            "size": str(len(data)),
            "generation": str(1_700_000_000_000_000 + number),
            "metageneration": "1",
            "crc32c": base64.b64encode(crc32c).decode(),
            "etag": str(number),
            "contentType": "application/octet-stream",
            "timeCreated": "2025-11-01T00:00:00Z",
            "updated": "2025-11-01T00:00:00Z",
        }

    def answer(self, head: bytes) -> tuple[bytes, memoryview | bytes]:
        """Returns header and body of the answer to a GET or HEAD request."""
        method, target, _ = head.split(b" ", 2)
        url = urllib.parse.urlsplit(target.decode())
        if url.path == "/counters":
            return _json(self.counters | {"cpu_seconds": time.process_time()})
        self.counters["requests"] += 1
        query = urllib.parse.parse_qs(url.query)
        api = _JSON_API.fullmatch(url.path)
        if api is not None:
            name = urllib.parse.unquote(api[2] or "")
            if not name:
                return _json(self._listing(query))
            if name not in self.objects:
                return _error(404, "No such object")
            if query.get("alt") != ["media"]:
                return _json(self.about[name])
        else:
            name = urllib.parse.unquote(url.path).removeprefix(f"/{BUCKET}/")
            if name not in self.objects:
                return _error(404, "No such object")
        header, body = self._media(name, _RANGE.search(head))
        return header, b"" if method == b"HEAD" else body

    def _media(
        self, name: str, wanted: re.Match[bytes] | None
    ) -> tuple[bytes, memoryview]:
        data, about = self.objects[name], self.about[name]
        size = len(data)
        begin, end, status = 0, size, "200 OK"
        more = ""
        if wanted is not None and (wanted[1] or wanted[2]):
            if not wanted[1]:
                begin = max(size - int(wanted[2]), 0)
            else:
                begin = int(wanted[1])
                end = min(int(wanted[2]) + 1, size) if wanted[2] else size
            if begin >= size:
                return _error(416, "Requested range not satisfiable")
            status = "206 Partial Content"
            more = f"Content-Range: bytes {begin}-{end - 1}/{size}\r\n"
        header = (
            f"HTTP/1.1 {status}\r\nContent-Length: {end - begin}\r\n{more}"
            f"Content-Type: application/octet-stream\r\nAccept-Ranges: bytes\r\n"
            f'ETag: "{about["etag"]}"\r\nLast-Modified: {_MODIFIED}\r\n'
            f"X-Goog-Generation: {about['generation']}\r\nX-Goog-Metageneration: 1\r\n"
            f"X-Goog-Hash: crc32c={about['crc32c']}\r\n"
            f"X-Goog-Stored-Content-Length: {size}\r\n\r\n"
        )
        return header.encode(), data[begin:end]

    def _listing(self, query: dict[str, list[str]]) -> dict[str, Any]:
        def one(name: str) -> str:
            return query.get(name, [""])[0]

        prefix, delimiter = one("prefix"), one("delimiter")
        items, prefixes = [], set()
        for name in sorted(self.objects):
            after = not one("startOffset") or name >= one("startOffset")
            before = not one("endOffset") or name < one("endOffset")
            if name.startswith(prefix) and after and before:
                rest = name[len(prefix) :]
                if delimiter and delimiter in rest:
                    prefixes.add(prefix + rest.split(delimiter)[0] + delimiter)
                else:
                    items.append(self.about[name])
        return {"items": items, "prefixes": sorted(prefixes)}


def _json(document: dict[str, Any], status: str = "200 OK") -> tuple[bytes, memoryview]:
    body = json.dumps(document).encode()
    header = (
        f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n"
        "Content-Type: application/json; charset=UTF-8\r\n\r\n"
    )
    return header.encode(), memoryview(body)


def _error(status: int, message: str) -> tuple[bytes, memoryview]:
    error = {"code": status, "message": message, "errors": [{"message": message}]}
    return _json({"error": error}, f"{status} {message}")


class _Connection(asyncio.Protocol):
    """One connection: a request at a time, as HTTP/1.1 clients send them."""

    def __init__(self, bucket: Bucket):
        self._bucket = bucket
        self._received = b""
        self._timer: asyncio.TimerHandle | None = None
        self._body = memoryview(b"")
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._bucket.counters["connections"] += 1

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._body = memoryview(b"")

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if self._body and self._timer is None:
            self._later(0.0, b"")

    def data_received(self, data: bytes) -> None:
        self._received += data
        if self._timer is None and not self._body:
            self._answer()

    def _answer(self) -> None:
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if end:
            self._received = rest
            header, body = self._bucket.answer(head + b"\r\n")
            self._body = memoryview(body)
            seconds = self._bucket.latency_seconds
            self._later(seconds, header)

    def _later(self, seconds: float, header: bytes) -> None:
        """Sends the next piece as soon as latency and bandwidth allow."""
        bucket, loop = self._bucket, asyncio.get_running_loop()
        size, now = min(len(self._body), _PIECE_BYTES), loop.time()
        # All bytes leave one after another: the network card of the host.
        bucket.free_at = max(bucket.free_at, now) + size / _TOTAL_BYTES_PER_SECOND
        seconds += size / _CONNECTION_BYTES_PER_SECOND
        when = max(now + seconds, bucket.free_at)
        self._timer = loop.call_at(when, self._send, header, size)

    def _send(self, header: bytes, size: int) -> None:
        self._timer = None
        piece, self._body = self._body[:size], self._body[size:]
        # Header and body in one packet, as servers send them.
        self._transport.write(header + piece)
        self._bucket.counters["sent_bytes"] += size
        if not self._body:
            self._answer()
        elif not self._paused:
            self._later(0.0, b"")


async def _serve(bucket: Bucket) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: _Connection(bucket), "127.0.0.1", 0, backlog=1024
    )
    port = server.sockets[0].getsockname()[1]
    print(f"http://127.0.0.1:{port}", flush=True)
    # Ends with the process that started it, which holds the other end.
    await loop.run_in_executor(None, sys.stdin.read)
    os._exit(0)


@contextlib.contextmanager
def serve(directory: pathlib.Path, latency_ms: float) -> Iterator[str]:
    """Serves a directory as a bucket, in another process; gives its address."""
    command = [sys.executable, "-m", "benchmarks.bucket_server", str(directory)]
    with subprocess.Popen(
        [*command, f"--latency-ms={latency_ms}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.communicate()


def main() -> None:
    """Serves until standard input ends; prints its address first."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bucket_server")
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--latency-ms", type=float, default=20)
    args = parser.parse_args()
    asyncio.run(_serve(Bucket(args.directory, args.latency_ms / 1e3)))


if __name__ == "__main__":
    main()
