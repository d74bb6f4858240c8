"""Objects in Google Cloud Storage as files: `Storage` for gs:// paths."""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import functools
import io
import os
import tempfile
from collections.abc import Iterator
from typing import BinaryIO, cast

import google_crc32c
from google.api_core import exceptions as api
from google.auth.exceptions import GoogleAuthError

from gristmill.dataset.base.errors import (
    InputError,
    StorageChangedError,
    StorageError,
    StorageMissingError,
)
from gristmill.dataset.storage.base import (
    Content,
    FileInfo,
    Storage,
    changed_error,
)
from gristmill.dataset.storage.directory_lock import scratch_directory
from gristmill.dataset.storage.gcs_connection import (
    GcsConnection,
    blob_info,
    emulator_url,
    odd_answer,
)
from gristmill.dataset.storage.paths import (
    compile_pattern,
    has_magic,
    listing_of,
    split_path,
)
from gristmill.dataset.storage.prefetch_reader import BLOCK_BYTES, PrefetchReader

PIECE_BYTES = 8 << 20  # A larger file is sent in pieces. A multiple of 256 KiB.
_UPLOADS = 5  # Attempts to send a file that arrives damaged, or in parts.
_CONTENT_TYPE = "application/octet-stream"
_FIELDS = "items(name,size,generation,crc32c),nextPageToken"
_AT_ONCE = 16
_TIMEOUT_SECONDS = 30.0
_DEADLINE_SECONDS = 120.0


def gcs_storage() -> GcsStorage:
    """Returns this process's storage for the configured server.

    The environment variables `GRISTMILL_GCS_TIMEOUT_SECONDS` and
    `GRISTMILL_GCS_DEADLINE_SECONDS` replace the defaults of `GcsStorage`.

    Raises:
        InputError: One of them is not a number of seconds.
        StorageError: Credentials are missing.
    """
    # Connections must not be shared with a forked process.
    return storage_with(
        os.getpid(),
        emulator_url(),
        _seconds("GRISTMILL_GCS_TIMEOUT_SECONDS", _TIMEOUT_SECONDS),
        _seconds("GRISTMILL_GCS_DEADLINE_SECONDS", _DEADLINE_SECONDS),
    )


def _seconds(variable: str, default: float) -> float:
    text = os.environ.get(variable, "")
    try:
        seconds = float(text or default)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 1e6:
        raise InputError(
            f"{variable} is not a number of seconds",
            expected=f"a positive number, such as {default:g}",
            got=repr(text),
            cure="set it in the environment, or leave it out",
        )
    return seconds


@functools.lru_cache(maxsize=4)
def storage_with(
    process: int, server: str | None, timeout_seconds: float, deadline_seconds: float
) -> GcsStorage:
    """Returns the storage of a process with these settings, the same at each call.

    It keeps its credentials: `storage_with.cache_clear()` has them looked up again.
    """
    return GcsStorage(
        timeout_seconds=timeout_seconds, deadline_seconds=deadline_seconds
    )


class GcsStorage(Storage):
    """Objects in buckets, through the client library google-cloud-storage.

    Reads check the length of every answer against the server's data about the object,
    and stay with one generation. Writes carry the crc32c of the data, so that the
    server refuses damaged data, and check size and crc32c of the object. Transient
    failures are retried. `STORAGE_EMULATOR_HOST` chooses another server, without
    credentials.

    Memory: 16 MiB for each open file and each upload. Local disk: the `temporary`
    files, under `TMPDIR`.

    Args:
        timeout_seconds: Time limit of a request, which restarts with every 256 KiB.
        deadline_seconds: How long to retry after transient failures.

    Attributes:
        connection: For requests that are made without this class.
        block_bytes: Bytes of an open file in one request.

    Raises:
        StorageError: Credentials are missing.
    """

    remote = True
    block_bytes = BLOCK_BYTES

    def __init__(
        self,
        *,
        timeout_seconds: float = _TIMEOUT_SECONDS,
        deadline_seconds: float = _DEADLINE_SECONDS,
    ):
        self.connection = GcsConnection(
            timeout_seconds=timeout_seconds, deadline_seconds=deadline_seconds
        )
        # For concurrent requests. Its threads start when needed.
        self._pool = concurrent.futures.ThreadPoolExecutor(_AT_ONCE)

    def _listing(self, path: str, prefix: str, *, deep: bool) -> Iterator[FileInfo]:
        bucket, _ = split_path(path)
        with self.connection.explained("list objects", path):
            blobs = self.connection.client.list_blobs(
                bucket,
                prefix=prefix,
                delimiter=None if deep else "/",
                fields=_FIELDS,
                retry=self.connection.retry,
            )
            tokens = set()
            for page in blobs.pages:
                # An object whose name ends in "/" stands for a directory.
                files = (blob for blob in page if not blob.name.endswith("/"))
                yield from map(blob_info, files)
                if blobs.next_page_token in tokens:
                    raise odd_answer(path, "another page", "the same page twice")
                tokens.add(blobs.next_page_token)

    def match(self, pattern: str) -> list[FileInfo]:
        bucket, name = split_path(pattern)
        # A plain name wins: objects may have '[' in their names. Runs concurrently.
        plain = self._pool.submit(self.stat, pattern)
        listed = []
        if has_magic(name):
            prefix, deep = listing_of(name)
            matches = compile_pattern(name).fullmatch
            skip = len(f"gs://{bucket}/")
            listed = sorted(
                info
                for info in self._listing(pattern, prefix, deep=deep)
                if matches(info.path[skip:])
            )
        found = plain.result()
        return listed if found is None else [found]

    def scan(
        self,
        directory: str,
        *,
        deep: bool = False,
        prefix: str = "",
        suffixes: tuple[str, ...] = ("",),
    ) -> Iterator[FileInfo]:
        begin = _below(directory) + prefix
        for info in self._listing(directory, begin, deep=deep):
            if info.path.endswith(suffixes):
                yield info

    def stat(self, path: str) -> FileInfo | None:
        if not split_path(path)[1]:
            return None  # A bucket is a directory.
        blob = self.connection.blob(path)
        with self.connection.explained("inspect the object", path):
            try:
                blob.reload(retry=self.connection.retry)
            except api.NotFound as e:
                if self.connection.lacks_bucket(e, path):
                    raise
                return None
        return blob_info(blob)

    def _fetch(
        self, path: str, begin: int, end: int | None, version: str | None
    ) -> Content:
        if not split_path(path)[1]:
            raise StorageMissingError(
                "cannot read the object",
                where=path,
                got="a bucket",
                cure="give the path of a file in it",
            )
        with self.connection.explained("read the object", path):
            try:
                return self.connection.fetch(path, begin, end, version)
            except api.RequestRangeNotSatisfiable:
                found = self._same(path, version)
                if begin < found.size_bytes:
                    raise
                return Content(b"", found.version, found.size_bytes)
            except api.NotFound:
                if version is not None:
                    self._same(path, version)
                raise

    def _same(self, path: str, version: str | None) -> FileInfo:
        """Returns the object if it still has this version."""
        found = self.stat(path)
        if found is None or version not in (None, found.version):
            raise changed_error(
                path,
                expected=version or "any",
                got=found.version if found else "",
                what="object was deleted or written again while it was in use",
                kept="",
            )
        return found

    def open(
        self,
        path: str,
        *,
        offset: int = 0,
        end: int | None = None,
        version: str | None = None,
        wait: bool = True,
    ) -> BinaryIO:
        reader = PrefetchReader(
            functools.partial(self._fetch, path),
            offset=offset,
            end=end,
            version=version,
            wait=wait,
            block_bytes=self.block_bytes,
        )
        return cast(BinaryIO, reader)

    def read(self, path: str, begin: int = 0, end: int | None = None) -> bytes:
        if end is not None and end <= begin:
            return b""
        return self._fetch(path, begin, end, None).data

    def load(self, path: str, begin: int = 0, end: int | None = None) -> Content | None:
        try:
            return self._fetch(path, begin, end, None)
        except StorageMissingError:
            return None

    def write(self, path: str, data: bytes, *, replaces: str | None = None) -> None:
        written = len(data), google_crc32c.value(data)
        self._upload(path, io.BytesIO(data), written, replaces)

    @contextlib.contextmanager
    def temporary(self, directory: str) -> Iterator[str]:
        # An upload needs the size and the checksum of the whole file.
        with contextlib.ExitStack() as stack:
            try:
                folder = stack.enter_context(scratch_directory())
            except OSError as e:
                raise StorageError(
                    "cannot create a local file for a shard",
                    where=tempfile.gettempdir(),
                    got=e.strerror,
                    cure="let TMPDIR name a directory with room for one shard per "
                    "worker",
                ) from e
            yield os.path.join(folder, os.path.basename(directory) or "file")

    def publish(
        self,
        local_path: str,
        path: str,
        *,
        replaces: str | None = None,
        crc32c: int | None = None,
    ) -> None:
        with open(local_path, "rb") as file:
            if crc32c is None:
                crc32c = 0
                while block := file.read(1 << 20):
                    crc32c = google_crc32c.extend(crc32c, block)
                file.seek(0)
            written = os.fstat(file.fileno()).st_size, crc32c
            self._upload(path, file, written, replaces)

    def _upload(
        self, path: str, file: BinaryIO, written: tuple[int, int], replaces: str | None
    ) -> None:
        """Writes an object of a size and crc32c, or finds it written."""
        with self.connection.explained("write the object", path, writes=True):
            try:
                found = self._send(path, file, written, replaces)
            except api.RetryError:
                raise  # The server does not respond, so it cannot be asked.
            except Exception as e:
                # The object may exist: if only the response was lost, the retry fails
                # because the first attempt succeeded.
                found = self._after_failure(path, e, written, replaces)
        if (found.size_bytes, found.crc32c) != written:
            raise StorageError(
                "object does not hold what was written to it",
                where=path,
                expected=f"{written[0]:,} bytes, crc32c {written[1]:#010x}",
                got=f"{found.size_bytes:,} bytes, crc32c {found.crc32c or 0:#010x}",
                cure="run the same command again",
            )

    def _send(
        self, path: str, file: BinaryIO, written: tuple[int, int], replaces: str | None
    ) -> FileInfo:
        """Sends a file; begins again if it arrives damaged, or only in parts."""
        generation = None if replaces is None else int(replaces or 0)
        for left in reversed(range(_UPLOADS)):
            blob = self.connection.blob(path)
            blob.chunk_size = PIECE_BYTES
            # The server checks it before it creates the object.
            blob.crc32c = base64.b64encode(written[1].to_bytes(4, "big")).decode()
            try:
                blob.upload_from_file(
                    file,
                    rewind=True,
                    size=written[0],
                    checksum=None,
                    content_type=_CONTENT_TYPE,
                    if_generation_match=generation,
                    retry=self.connection.retry,
                )
                break
            except GoogleAuthError:
                raise
            except ValueError as e:  # The library does not go back in a file.
                if not left:
                    raise ConnectionError(f"the server keeps parts only: {e}") from e
            except api.GoogleAPICallError as e:
                if not left or not self._was_interrupted(e, path):
                    raise
        return blob_info(blob)

    def _was_interrupted(self, error: api.GoogleAPICallError, path: str) -> bool:
        """Returns whether an upload arrived damaged, or the server has lost it."""
        if error.code == 400:
            return "crc32c" in str(error).lower()
        if error.code == 404:
            return not self.connection.lacks_bucket(error, path)
        return error.code in (308, 410)

    def _after_failure(
        self,
        path: str,
        error: Exception,
        written: tuple[int, int],
        replaces: str | None,
    ) -> FileInfo:
        try:
            found = self.stat(path)
        except StorageError:
            raise error from None
        if found is not None and (found.size_bytes, found.crc32c) == written:
            return found
        if not isinstance(error, api.PreconditionFailed):
            raise error
        if found is None and not replaces:
            raise StorageChangedError(
                "object was written and deleted while this command ran",
                where=path,
                expected="no object",
                got="a refusal (412) as there was one, and none at a second look",
                cure="run one job at a time on these files, and this one again",
            ) from error
        raise changed_error(
            path, expected=replaces or "", got=found.version if found else ""
        ) from error

    def delete(self, path: str, *, version: str | None = None) -> None:
        with self.connection.explained("delete the object", path, writes=True):
            try:
                self.connection.blob(path).delete(
                    if_generation_match=None if version is None else int(version),
                    retry=self.connection.retry,
                )
            except api.NotFound as e:
                if self.connection.lacks_bucket(e, path):
                    raise
            except api.PreconditionFailed as e:
                raise changed_error(
                    path, expected=version or "any", got="another one"
                ) from e


def _below(directory: str) -> str:
    _, name = split_path(directory)
    return f"{name.rstrip('/')}/" if name.strip("/") else ""
