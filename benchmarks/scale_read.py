"""Reading, without an output.

As many input files, and a dataset of as many shards: what lists them, and an element
for each, nothing for all. A server in another process answers requests for the listing
of a bucket. Then one TFRecord file of as many ranges, though of no more than the 5 TiB
that an object can have: what was found in its parts, gathered and joined. `gathered` is
that of one file.
"""

from __future__ import annotations

import http.server
import itertools
import json
import multiprocessing
import os
import socket
import tempfile
import urllib.parse
from collections.abc import Iterator
from typing import Any

from benchmarks.scale_steps import Steps, graph_bytes
from benchmarks.scale_verify import make_dataset
from gristmill.transforms import ReadTFRecords
from gristmill.transforms.beam.read_ranges import DEFAULT_RANGE_BYTES, FileRange
from gristmill.transforms.beam.tfrecord_parts import (
    FileWalk,
    by_file,
    cut_walks,
    list_parts,
)
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.shards.shard_list import list_shards
from gristmill.transforms.sources.shards.shard_range import ChunkRange

_FILE_BYTES = 256 << 20
_LARGEST_BYTES = 5 << 40
_PART_RANGES = 16
_FRAME_BYTES = 2_216
_PAGE = 1000  # As Cloud Storage answers.


def measure(shards: int) -> dict[str, float]:
    """Lists so many files and shards, and joins so many ranges."""
    steps = Steps()
    steps.found["job_graph_bytes"] = graph_bytes(ReadTFRecords("gs://bucket/*"))
    with tempfile.TemporaryDirectory() as directory, _Bucket(shards) as url:
        # In a process of its own: its memory is not part of what is measured.
        _in_process(make_dataset, directory, shards)
        os.environ["STORAGE_EMULATOR_HOST"] = url
        steps.timed("list_files", lambda: _list_files(steps, shards))
        steps.timed("list_shards", lambda: _list_shards(steps, directory, shards))
    ranges = min(shards, _LARGEST_BYTES // DEFAULT_RANGE_BYTES)
    walks = list(_walks(ranges))
    group = [by_file(walk, _Now)[1] for walk in walks]
    (_, received) = zip(*steps.sent(group, gathers=True), strict=True)
    cuts = steps.timed("join", lambda: list(cut_walks(received, DEFAULT_RANGE_BYTES)))
    if abs(len(cuts) - ranges) > 2 + ranges // _PART_RANGES:
        raise RuntimeError(f"{len(cuts)} ranges, wanted about {ranges}")
    steps.sent(cuts[-1])
    return steps.found


class _Now:
    micros = -(1 << 62)


def _list_files(steps: Steps, files: int) -> None:
    parts = list_parts(("gs://bucket/raw/*.tfrecord-*",), False, 1 << 30)
    count = 0
    for count, part in enumerate(parts, 1):
        if count == files:
            steps.sent(part)
            file = InputFile(*part.file[:3], "gzip")
            steps.sent(FileWalk(file, 0, ()))
            steps.sent(FileRange(file, 0, -1))
    if count != files:
        raise RuntimeError(f"{count} parts, wanted {files}")


def _list_shards(steps: Steps, dataset: str, shards: int) -> None:
    count = 0
    for count, shard in enumerate(list_shards([dataset], "train"), 1):
        if count == shards:
            steps.sent(ChunkRange(steps.sent(shard), 1000, 2000))
    if count != shards:
        raise RuntimeError(f"{count} shards, wanted {shards}")


def _walks(ranges: int) -> Iterator[FileWalk]:
    """Yields what the parts of a file give whose frames all have one size."""
    size = ranges * DEFAULT_RANGE_BYTES // _FRAME_BYTES * _FRAME_BYTES
    file = InputFile("gs://bucket/raw/all.tfrecord", size, "1700000000000000")
    count = max(ranges // _PART_RANGES, 1)
    edges = [size * part // count for part in range(count + 1)]
    step = -(-DEFAULT_RANGE_BYTES // _FRAME_BYTES) * _FRAME_BYTES
    for begin, end in itertools.pairwise(edges):
        first, last = (-(-at // _FRAME_BYTES) * _FRAME_BYTES for at in (begin, end))
        yield FileWalk(file, begin, ((*range(first, last, step), last),))


class _Bucket:
    """A server whose bucket seems to have so many objects; it tells their names."""

    def __init__(self, objects: int) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(self._socket, objects), daemon=True
        )

    def __enter__(self) -> str:
        self._process.start()
        return f"http://127.0.0.1:{self._socket.getsockname()[1]}"

    def __exit__(self, *error: object) -> None:
        self._process.terminate()
        self._process.join()
        self._socket.close()


def _serve(listening: socket.socket, objects: int) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            url = urllib.parse.urlparse(self.path)
            query = dict(urllib.parse.parse_qsl(url.query))
            listed = url.path.endswith("/o")
            body = json.dumps(_page(objects, query) if listed else {}).encode()
            self.send_response(200 if listed else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    server = http.server.ThreadingHTTPServer(("", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening
    server.serve_forever()


def _page(objects: int, query: dict[str, str]) -> dict[str, Any]:
    begin = int(query.get("pageToken", "0"))
    end = min(begin + _PAGE, objects)
    items = [
        {
            "name": f"raw/c4-train.tfrecord-{number:07d}-of-{objects:07d}",
            "size": str(_FILE_BYTES + number % 65_521),
            "generation": str(1_700_000_000_000_000 + number),
            "crc32c": "AAAAAA==",
            "bucket": "bucket",
        }
        for number in range(begin, end)
    ]
    return {"items": items, **({"nextPageToken": str(end)} if end < objects else {})}


def _in_process(call: Any, *args: Any) -> None:
    process = multiprocessing.get_context("fork").Process(target=call, args=args)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{call.__name__} failed")
