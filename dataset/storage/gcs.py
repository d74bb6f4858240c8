"""Objects in Google Cloud Storage as files: `Storage` for gs:// paths."""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import io
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, BinaryIO, cast

import google_crc32c
from google.api_core.exceptions import (
    NotFound,
    PreconditionFailed,
    RequestRangeNotSatisfiable,
    RetryError,
)

from gristmill.dataset.errors import InputError, StorageError, StorageMissingError
from gristmill.dataset.storage.base import (
    Content,
    FileInfo,
    Move,
    changed_error,
    for_all,
)
from gristmill.dataset.storage.gcs_connection import (
    GcsConnection,
    decode_crc32c,
    encode_crc32c,
    is_bad_checksum,
    is_missing_bucket,
)
from gristmill.dataset.storage.object_names import (
    compile_pattern,
    has_magic,
    listing_of,
    split_path,
)
from gristmill.dataset.storage.prefetch_reader import BLOCK_BYTES, Piece, PrefetchReader
from gristmill.dataset.storage.scratch import scratch_directory

_FIELDS = "items(name,size,generation,crc32c),nextPageToken"
_CHUNK_BYTES = 8 << 20  # Of an upload: one request each.
_AT_ONCE = 16
_CHANGES_AT_ONCE = 64  # Copies and deletions.
_CONTENT_TYPE = "application/octet-stream"
_TIMEOUT_SECONDS = 30.0
_DEADLINE_SECONDS = 120.0
_UPLOADS = 3  # Attempts for a file that arrives damaged.


def gcs_storage() -> GcsStorage:
    """Returns the storage of this process for the server that is configured.

    The environment variables `GRISTMILL_GCS_TIMEOUT_SECONDS` and
    `GRISTMILL_GCS_DEADLINE_SECONDS` replace the defaults of `GcsStorage`.

    Raises:
        InputError: One of them is no number of seconds.
        StorageError: Credentials are missing.
    """
    # Connections must not be shared with a forked process.
    return _storage(
        os.getpid(),
        os.environ.get("STORAGE_EMULATOR_HOST"),
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
            f"{variable} is no number of seconds",
            expected=f"a positive number, such as {default:g}",
            got=repr(text),
            cure="set it in the environment, or leave it out",
        )
    return seconds


@functools.lru_cache(maxsize=4)
def _storage(
    process: int, server: str | None, timeout_seconds: float, deadline_seconds: float
) -> GcsStorage:
    return GcsStorage(
        timeout_seconds=timeout_seconds, deadline_seconds=deadline_seconds
    )


class GcsStorage:
    """Objects in buckets, by the client library google-cloud-storage.

    Reads compare the length of every answer with what the server says of the object,
    and stay with one generation. Writes carry the crc32c of the data, so that the
    server refuses damaged data, and compare size and crc32c of the object. Transient
    failures are retried. `STORAGE_EMULATOR_HOST` chooses another server, without
    credentials.

    Memory: 16 MiB for each open file and each upload. Local disk: what is
    written to `temporary` files, under `TMPDIR`.

    Args:
        timeout_seconds: How long a request may take, anew with every 256 KiB.
        deadline_seconds: How long to retry after transient failures.

    Attributes:
        block_bytes: How much of an open file one request asks for.

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
        self._connection = GcsConnection(
            timeout_seconds=timeout_seconds, deadline_seconds=deadline_seconds
        )
        # For concurrent requests. Its threads start when needed.
        self._pool = concurrent.futures.ThreadPoolExecutor(_AT_ONCE)

    def _blob(self, path: str) -> Any:
        bucket, name = split_path(path)
        return self._connection.client.bucket(bucket).blob(
            name, chunk_size=_CHUNK_BYTES
        )

    def _listing(self, path: str, prefix: str, *, deep: bool) -> Iterator[FileInfo]:
        bucket, _ = split_path(path)
        with self._connection.explained("list objects", path):
            blobs = self._connection.client.list_blobs(
                bucket,
                prefix=prefix,
                delimiter=None if deep else "/",
                fields=_FIELDS,
                retry=self._connection.retry,
            )
            tokens = set()
            for page in blobs.pages:
                # An object whose name ends in "/" stands for a directory.
                yield from (
                    info for info in map(_info, page) if not info.path.endswith("/")
                )
                if blobs.next_page_token in tokens:
                    raise _odd(path, "another page", "the same page twice")
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

    def list(self, directory: str) -> list[FileInfo]:
        return sorted(self.scan(directory))

    def scan(
        self, directory: str, *, deep: bool = False, prefix: str = ""
    ) -> Iterator[FileInfo]:
        return self._listing(directory, _below(directory) + prefix, deep=deep)

    def stat(self, path: str) -> FileInfo | None:
        blob = self._blob(path)
        with self._connection.explained("inspect the object", path):
            try:
                blob.reload(retry=self._connection.retry)
            except NotFound as e:
                if is_missing_bucket(e):
                    raise
                return None
        return _info(blob)

    def stat_all(self, paths: Sequence[str]) -> Sequence[FileInfo | None]:
        return list(self._pool.map(self.stat, paths))

    def _fetch(
        self, path: str, begin: int, end: int | None, version: str | None
    ) -> Piece:
        with self._connection.explained("read the object", path):
            try:
                return self._connection.fetch(path, begin, end, version)
            except RequestRangeNotSatisfiable:
                found = self._same(path, version)
                if begin < found.size_bytes:
                    raise
                return Piece(b"", found.size_bytes, found.version)
            except NotFound:
                if version is not None:
                    self._same(path, version)
                raise

    def _same(self, path: str, version: str | None) -> FileInfo:
        """Returns the object, if it still has this version."""
        found = self.stat(path)
        if found is None or version not in (None, found.version):
            raise changed_error(
                path,
                expected=version or "any",
                got=found.version if found else "",
                what="object was deleted or written again while it was in use",
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

    def load(self, path: str) -> Content | None:
        try:
            piece = self._fetch(path, 0, None, None)
        except StorageMissingError:
            return None
        return Content(piece.data, piece.version)

    def load_all(self, paths: Sequence[str]) -> Sequence[Content | None]:
        return list(self._pool.map(self.load, paths))

    def write(self, path: str, data: bytes, *, replaces: str | None = None) -> None:
        self._upload(
            path, io.BytesIO(data), len(data), google_crc32c.value(data), replaces
        )

    @contextlib.contextmanager
    def temporary(self, directory: str) -> Iterator[str]:
        # The official writer writes local files only.
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
            size = os.fstat(file.fileno()).st_size
            self._upload(path, file, size, crc32c, replaces)

    def _upload(
        self,
        path: str,
        file: BinaryIO,
        size_bytes: int,
        crc32c: int,
        replaces: str | None,
    ) -> None:
        """Uploads a file; after a failure, checks whether it arrived all the same."""
        blob = self._blob(path)
        # The server compares it before it creates the object.
        blob.crc32c = encode_crc32c(crc32c)
        written = (size_bytes, crc32c)
        with self._connection.explained("write the object", path):
            try:
                self._send(blob, file, size_bytes, replaces)
                found = _info(blob)
            except RetryError:
                raise  # The server does not respond: it cannot be asked either.
            except Exception as e:
                # The object may exist: if only the response was lost, the retry fails
                # because the first attempt succeeded.
                found = self._after_failure(path, e, written, replaces)
        self._check_written(path, found, written)

    def _check_written(
        self, path: str, found: FileInfo, written: tuple[int, int]
    ) -> None:
        if (found.size_bytes, found.crc32c) != written:
            raise StorageError(
                "object does not hold what was written to it",
                where=path,
                expected=f"{written[0]:,} bytes, crc32c {written[1]:#010x}",
                got=f"{found.size_bytes:,} bytes, crc32c {found.crc32c or 0:#010x}",
                cure="run the same command again",
            )

    def _send(
        self, blob: Any, file: BinaryIO, size_bytes: int, replaces: str | None
    ) -> None:
        """Sends a file, again if it arrives damaged."""
        for left in reversed(range(_UPLOADS)):
            try:
                blob.upload_from_file(
                    file,
                    rewind=True,
                    size=size_bytes,
                    checksum=None,
                    content_type=_CONTENT_TYPE,
                    if_generation_match=None
                    if replaces is None
                    else int(replaces or 0),
                    retry=self._connection.retry,
                )
            except Exception as e:
                if not left or not is_bad_checksum(e):
                    raise
            else:
                return

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
        if isinstance(error, PreconditionFailed):
            raise changed_error(
                path, expected=replaces or "", got=found.version if found else ""
            ) from error
        raise error

    def delete(self, path: str, *, version: str | None = None) -> None:
        with self._connection.explained("delete the object", path):
            try:
                self._blob(path).delete(
                    if_generation_match=None if version is None else int(version),
                    retry=self._connection.retry,
                )
            except NotFound as e:
                if is_missing_bucket(e):
                    raise
            except PreconditionFailed as e:
                raise changed_error(
                    path, expected=version or "any", got="another one"
                ) from e

    def delete_all(self, files: Iterable[FileInfo]) -> None:
        def delete(info: FileInfo) -> None:
            self.delete(info.path, version=info.version)

        for_all(delete, files, at_once=_CHANGES_AT_ONCE)

    def delete_unfinished(self, directory: str) -> None:
        pass  # An object is there when all of it has arrived.

    def is_in_use(self, directory: str) -> bool:
        return False  # Temporary files are on the machines that write them.

    def move_all(self, moves: Iterable[Move]) -> None:
        # Readers wait for the end of it, and a copy takes the service a while.
        for_all(self._copy, moves, at_once=_CHANGES_AT_ONCE)

    def _copy(self, move: Move) -> None:
        """Copies an object within its bucket: one request unless it is moved far."""
        source = move.source
        target = self._blob(move.path)
        bucket, name = split_path(source.path)
        version = int(source.version)
        blob = self._connection.client.bucket(bucket).blob(name, generation=version)
        # Otherwise the copy has no type at all.
        target.content_type = _CONTENT_TYPE
        written = (source.size_bytes, source.crc32c or 0)
        with self._connection.explained("copy the object", source.path):
            try:
                token = None
                while True:
                    token, _, _ = target.rewrite(
                        blob,
                        token=token,
                        if_generation_match=int(move.replaces or 0),
                        if_source_generation_match=version,
                        retry=self._connection.retry,
                    )
                    if token is None:
                        break
                found = _info(target)
            except RetryError:
                raise
            except Exception as e:
                # As after an upload: perhaps only the response was lost.
                found = self._after_failure(move.path, e, written, move.replaces)
        self._check_written(move.path, found, written)

    def list_tree(self, directory: str) -> Sequence[FileInfo]:
        return sorted(self.scan(directory, deep=True))

    def delete_tree(
        self, directory: str, *, check: Callable[[], None] | None = None
    ) -> None:
        found = self.list_tree(directory)
        if check is not None:
            check()
        self.delete_all(found)

    @contextlib.contextmanager
    def exclusive(self, directory: str) -> Iterator[None]:
        del directory
        yield

    def free_bytes(self, directory: str) -> int | None:
        del directory
        return None


def _below(directory: str) -> str:
    _, name = split_path(directory)
    return f"{name.rstrip('/')}/" if name.strip("/") else ""


def _info(blob: Any) -> FileInfo:
    """Returns an object's metadata, as the server gave it."""
    path = f"gs://{blob.bucket.name}/{blob.name}"
    try:
        crc32c = None if blob.crc32c is None else decode_crc32c(blob.crc32c)
        return FileInfo(path, int(blob.size), str(int(blob.generation)), crc32c)
    except (TypeError, ValueError) as e:
        expected = "numbers for size and generation, base64 for crc32c"
        raise _odd(path, expected, str(e)) from e


def _odd(path: str, expected: str, got: str) -> StorageError:
    return StorageError(
        "the server's answer does not describe objects",
        where=path,
        expected=expected,
        got=got,
        cure="check that the server is Cloud Storage, then run the same command again",
    )
