"""Reads a range of an object once, with TensorStore's client for object storage.

The client keeps connections alive, works on threads of its own that do not keep a
process from ending, and refuses an answer that is not the requested range. Its own
retries are switched off: `range_fetcher` decides when to retry.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from typing import Any, NamedTuple

from gristmill.dataset.errors import StorageError
from gristmill.dataset.exit_gate import exit_gate
from gristmill.dataset.storage.object_names import split_path

_SETTINGS = {
    "gcs_request_retries": {"max_retries": 0},
    # More than any `request_limit` allows in flight.
    "gcs_request_concurrency": {"limit": 4096},
}
# A connection with less than a byte a second for this long is closed. The requests on
# it were retried long before.
_ABANDON = {
    "TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS": "30",
    "TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES": "1",
}
_HTTP_STATUS = re.compile(r"\[http_response_code='(\d+)'\]")
_NOISE = re.compile(
    r"^[A-Z_]+: (?:All \d+ retry attempts failed: )?|\[http_response_body='.*?'\] ?"
    r"|\[(?:curl_code|http_response_code)='\d+'\] ?",
    re.DOTALL,
)
_open_lock = threading.Lock()


class ByteRange(NamedTuple):
    """Bytes of one version of an object.

    Attributes:
        path: The object.
        begin: First byte.
        end: One past the last; None for the end of the object, and `begin` 0.
        version: The generation to read; None for any.
    """

    path: str
    begin: int = 0
    end: int | None = None
    version: str | None = None

    def __str__(self) -> str:
        if self.end is None:
            return self.path
        return f"{self.path}, bytes [{self.begin:,}, {self.end:,})"


class Failure(NamedTuple):
    """Why a read failed.

    Attributes:
        status: HTTP status; 0 if there was no answer.
        text: What happened, or what was found.
        wrong: Whether the server answered with something else than the range.
        changed: Whether the object was deleted or has another version.
    """

    status: int
    text: str
    wrong: bool = False
    changed: bool = False


class ObjectRead:
    """A read that was started.

    It has no callback: the library's threads would take the interpreter's lock for each
    answer.
    """

    __slots__ = ("_future", "_wanted")

    def __init__(self, wanted: ByteRange, future: Any):
        self._wanted, self._future = wanted, future

    def done(self) -> bool:
        """Returns whether it has an outcome."""
        return bool(self._future.done())

    def wait(self, seconds: float) -> None:
        """Waits until it is done, at most so many seconds."""
        # `outcome` has the error.
        with exit_gate, contextlib.suppress(Exception):
            self._future.result(timeout=seconds)

    def outcome(self) -> bytes | Failure:
        """Returns the outcome of a read that is done; may be called once."""
        with exit_gate:
            outcome = _outcome(self._future, self._wanted)
            # To free the future releases the interpreter's lock: inside the gate.
            self._future = None
            return outcome

    def give_up(self) -> None:
        """Abandons the read, whether it is done or not."""
        with exit_gate:
            self._future = None


class ObjectReads:
    """Starts reads of ranges. Safe to share by threads, not across a fork.

    `STORAGE_EMULATOR_HOST` chooses another server, as for writes. It is read at the
    first read of a bucket.
    """

    def __init__(self) -> None:
        self._buckets: dict[str, Any] = {}
        self._objects: dict[str, tuple[Any, str]] = {}

    def start(self, wanted: ByteRange) -> ObjectRead:
        """Starts to read a range; raises StorageError without the library."""
        part = None if wanted.end is None else slice(wanted.begin, wanted.end)
        with exit_gate:
            store, name = self._objects.get(wanted.path) or self._find(wanted.path)
            return ObjectRead(wanted, store.read(name, byte_range=part))

    def _find(self, path: str) -> tuple[Any, str]:
        bucket, name = split_path(path)
        store = self._buckets.get(bucket) or self._open(bucket)
        self._objects[path] = store, name
        return store, name

    def _open(self, bucket: str) -> Any:
        try:
            import tensorstore
        except ImportError as e:
            raise StorageError(
                "the library that reads object storage is not installed",
                expected="the package tensorstore",
                got=str(e),
                cure="pip install 'gristmill[gcs,loader]'",
            ) from e
        server = os.environ.get("STORAGE_EMULATOR_HOST")
        with _open_lock:
            for name, value in _ABANDON.items():
                os.environ.setdefault(name, value)
            before = os.environ.get("TENSORSTORE_GCS_HTTP_URL")
            if server:
                # The library reads it only while a bucket is opened.
                url = server if "://" in server else f"http://{server}"
                os.environ["TENSORSTORE_GCS_HTTP_URL"] = url
            try:
                spec = {"driver": "gcs", "bucket": bucket, "context": _SETTINGS}
                store = tensorstore.KvStore.open(spec).result()
            finally:
                if server and before is None:
                    del os.environ["TENSORSTORE_GCS_HTTP_URL"]
                elif server and before is not None:
                    os.environ["TENSORSTORE_GCS_HTTP_URL"] = before
            self._buckets[bucket] = store
        return store


def _outcome(future: Any, wanted: ByteRange) -> bytes | Failure:
    try:
        result = future.result()
    except Exception as e:  # The library raises ValueError for all failures.
        text = str(e)
        status = _HTTP_STATUS.search(text)
        text = _NOISE.sub("", text).strip()
        if status is None:
            return Failure(0, text, wrong="was not satisfied" in text)
        return Failure(int(status[1]), f"HTTP {status[1]}: {text}", status[1] == "416")
    if result.state != "value":
        return Failure(0, "no object", changed=True)
    # The library's format is not documented, but has the generation's eight bytes.
    if (
        wanted.version is not None
        and int(wanted.version).to_bytes(8, "little") not in result.stamp.generation
    ):
        return Failure(0, "another version", changed=True)
    data: bytes = result.value
    if wanted.end is not None and len(data) != wanted.end - wanted.begin:
        return Failure(0, f"{len(data):,} bytes arrived", wrong=True)
    return data
