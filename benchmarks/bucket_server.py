"""A bucket on loopback with the latency and the bandwidth of a real one, for reading.

    python -m benchmarks.bucket_server DIRECTORY LATENCY_MS

It serves the files below a directory as objects, in a process of its own, on one
thread that never waits: what it costs is about a tenth of what its clients do. It
counts requests and bytes, knows as much of the JSON and XML APIs as readers ask for,
and injects no faults.
"""

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
import urllib.parse
import urllib.request

import google_crc32c
import numpy as np

BUCKET = "bench"
_CONNECTION_BYTES_PER_SECOND, _TOTAL_BYTES_PER_SECOND = 100e6, 1250e6
_RANGE = re.compile(rb"\r\nrange: *bytes=(\d*)-(\d*)\r\n", re.IGNORECASE)
_JSON_API = re.compile(r"(?:/download)?(?:/storage/v1)?/b/[^/]+/o(?:/(.*))?")
_PIECE_BYTES = 64 << 10
_GENERATION = 1_700_000_000_000_000


class Bucket:
    """Files as objects, and what was asked of them.

    Args:
        directory: Its objects are the files below it.
        latency_seconds: Between a request and the first byte of its answer.
    """

    def __init__(self, directory, latency_seconds):
        self.latency_seconds = latency_seconds
        self.free_at = 0.0
        self.counters = {"requests": 0, "sent": 0}
        self.objects, self.about = {}, {}
        for number, path in enumerate(sorted(directory.rglob("*"))):
            if path.is_file():
                self._add(path.relative_to(directory).as_posix(), path, number)

    def _add(self, name, path, number):
        with path.open("rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        crc32c = google_crc32c.value(np.frombuffer(data, np.uint8)).to_bytes(4, "big")
        self.objects[name] = memoryview(data)
        self.about[name] = {
            "kind": "storage#object",
            "bucket": BUCKET,
            "name": name,
            "size": str(len(data)),
            "generation": str(_GENERATION + number),
            "metageneration": "1",
            "crc32c": base64.b64encode(crc32c).decode(),
            "updated": "2025-11-01T00:00:00Z",
        }

    def answer(self, head):
        """Returns header and body of the answer to a GET request."""
        url = urllib.parse.urlsplit(head.split(b" ", 2)[1].decode())
        if url.path == "/counters":
            return _json(self.counters)
        self.counters["requests"] += 1
        query = dict(urllib.parse.parse_qsl(url.query))
        path = urllib.parse.unquote(url.path)
        api = _JSON_API.fullmatch(path)
        name = api[1] if api else path.removeprefix(f"/{BUCKET}/")
        if not name:
            return _json(self._listing(query))
        if name not in self.objects:
            return _json({"error": {"code": 404, "message": "none"}}, "404 Not Found")
        if api and query.get("alt") != "media":
            return _json(self.about[name])
        return self._media(name, _RANGE.search(head))

    def _media(self, name, wanted):
        data, about = self.objects[name], self.about[name]
        begin, end, status, more = 0, len(data), "200 OK", ""
        if wanted is not None:
            first, last = wanted.groups()
            if not first:  # So many from the end.
                begin = max(0, end - int(last))
            else:
                begin, end = int(first), min(int(last or end) + 1, end)
            status = "206 Partial Content"
            more = f"Content-Range: bytes {begin}-{end - 1}/{len(data)}\r\n"
        header = (
            f"HTTP/1.1 {status}\r\nContent-Length: {end - begin}\r\n{more}"
            "Content-Type: application/octet-stream\r\n"
            f"X-Goog-Generation: {about['generation']}\r\n"
            f"X-Goog-Hash: crc32c={about['crc32c']}\r\n"
            f"X-Goog-Stored-Content-Length: {len(data)}\r\n\r\n"
        )
        return header.encode(), data[begin:end]

    def _listing(self, query):
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter")
        items, prefixes = [], set()
        for name in sorted(self.about):
            if name.startswith(prefix):
                first, between, _ = name[len(prefix) :].partition(delimiter or "\0")
                if between:
                    prefixes.add(prefix + first + between)
                else:
                    items.append(self.about[name])
        return {"items": items, "prefixes": sorted(prefixes)}


def _json(document, status="200 OK"):
    body = json.dumps(document).encode()
    header = (
        f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n"
        "Content-Type: application/json; charset=UTF-8\r\n\r\n"
    )
    return header.encode(), body


class _Connection(asyncio.Protocol):
    """One connection: a request at a time, as HTTP/1.1 clients send them."""

    def __init__(self, bucket):
        self._bucket = bucket
        self._received, self._body = b"", b""
        self._timer, self._paused = None, False

    def connection_made(self, transport):
        self._transport = transport

    def connection_lost(self, error):
        if self._timer is not None:
            self._timer.cancel()
        self._body = b""

    def pause_writing(self):
        self._paused = True

    def resume_writing(self):
        self._paused = False
        if self._body and self._timer is None:
            self._later(0.0, b"")

    def data_received(self, data):
        self._received += data
        if self._timer is None and not self._body:
            self._answer()

    def _answer(self):
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if end:
            self._received = rest
            header, body = self._bucket.answer(head + b"\r\n")
            self._body = memoryview(body)
            self._later(self._bucket.latency_seconds, header)

    def _later(self, seconds, header):
        """Sends the next piece as soon as latency and bandwidth allow."""
        bucket, loop = self._bucket, asyncio.get_running_loop()
        size, now = min(len(self._body), _PIECE_BYTES), loop.time()
        # All bytes leave one after another: the network card of the host.
        bucket.free_at = max(bucket.free_at, now) + size / _TOTAL_BYTES_PER_SECOND
        seconds += size / _CONNECTION_BYTES_PER_SECOND
        when = max(now + seconds, bucket.free_at)
        self._timer = loop.call_at(when, self._send, header, size)

    def _send(self, header, size):
        self._timer = None
        piece, self._body = self._body[:size], self._body[size:]
        # Header and body in one packet, as servers send them.
        self._transport.write(header + piece)
        self._bucket.counters["sent"] += size
        if not self._body:
            self._answer()
        elif not self._paused:
            self._later(0.0, b"")


async def _serve(bucket):
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
def serve(directory, latency_ms):
    """Serves a directory as a bucket, in another process; gives its address."""
    module = "benchmarks.bucket_server"
    with subprocess.Popen(
        [sys.executable, "-m", module, str(directory), str(latency_ms)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        yield server.stdout.readline().strip()
        server.communicate()


def counters(url):
    """Returns how many requests a server got, and how many bytes of objects it sent."""
    with urllib.request.urlopen(f"{url}/counters") as answer:
        return json.load(answer)


if __name__ == "__main__":
    asyncio.run(_serve(Bucket(pathlib.Path(sys.argv[1]), float(sys.argv[2]) / 1e3)))
