"""Uploads and copies of objects in Cloud Storage: whole, or with an error.

A large file is sent in pieces. The server may keep a part of a piece, or lose all that
it had: then the file is read again from there. The client library only reads forward,
and fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, BinaryIO

import requests
from google.api_core import exceptions as api

from gristmill.dataset.base.errors import StorageChangedError, StorageError
from gristmill.dataset.storage.base import FileInfo, changed_error
from gristmill.dataset.storage.gcs_connection import (
    CONTENT_TYPE,
    GcsConnection,
    blob_info,
    described_object,
    encode_crc32c,
)
from gristmill.dataset.storage.gcs_diagnosis import is_bad_checksum
from gristmill.dataset.storage.gcs_session import GcsSession, describe
from gristmill.dataset.storage.paths import split_path

PIECE_BYTES = 8 << 20  # One request each. A multiple of 256 KiB.
_KEPT = re.compile(r"bytes=0-(\d+)")
_LOST = (404, 410)
_UPLOADS = 3  # Attempts to send a file that arrives damaged.


class ResumableUpload:
    """One object being uploaded.

    Args:
        session: Sends requests.
        url: Address for uploads to the bucket, with preconditions.
        about: Metadata of the object.
        file: Its content.
        size_bytes: Size of the content.
    """

    def __init__(
        self,
        session: GcsSession,
        url: str,
        about: dict[str, Any],
        *,
        file: BinaryIO,
        size_bytes: int,
    ):
        self._session, self._begin_url, self._about = session, url, about
        self._file, self._size_bytes = file, size_bytes
        self._forget()
        self._furthest_bytes = 0
        self._resource: dict[str, Any] | None = None

    def run(self, retry: Callable[[], Callable[..., Any]]) -> dict[str, Any]:
        """Sends the file, and returns the server's description of the object.

        Args:
            retry: Creates retries with a deadline, which restarts whenever more of the
                file has arrived.

        Raises:
            GoogleAPIError: The server refuses, or makes no progress in time.
        """
        while self._resource is None:
            retry()(self._get_further)()
        return self._resource

    def _get_further(self) -> None:
        before = self._furthest_bytes
        while self._resource is None and self._furthest_bytes <= before:
            if not self._url:
                self._begin()
            elif not self._sure:
                self._ask()
            else:
                self._send()

    def _forget(self) -> None:
        """Abandons the upload session on the server, if there is one."""
        self._url = ""
        self._kept_bytes = self._sent_bytes = 0
        self._sure = True  # Of what the server has kept.

    def _begin(self) -> None:
        response = self._session.post(
            self._begin_url,
            json=self._about,
            headers={
                "X-Upload-Content-Type": self._about["contentType"],
                "X-Upload-Content-Length": str(self._size_bytes),
            },
        )
        if response.status_code >= 300:
            raise api.from_http_response(response)  # type: ignore[no-untyped-call]
        self._url = response.headers.get("Location", "")
        if not self._url:
            raise ConnectionError(describe(response))

    def _ask(self) -> None:
        """Asks how much the server has kept, which may be less than before."""
        self._take(self._put(b"", f"bytes */{self._size_bytes}"))

    def _send(self) -> None:
        begin = self._kept_bytes
        self._file.seek(begin)
        piece = self._file.read(min(PIECE_BYTES, self._size_bytes - begin))
        end = begin + len(piece)
        if not piece:
            raise StorageChangedError(
                "local file ended early while it was sent",
                expected=f"{self._size_bytes:,} bytes",
                got=f"{begin:,} bytes",
                cure="run one job at a time on these files, and this one again",
            )
        self._sent_bytes = max(self._sent_bytes, end)
        status = self._take(
            self._put(piece, f"bytes {begin}-{end - 1}/{self._size_bytes}")
        )
        if self._resource is None and self._kept_bytes <= begin:
            raise ConnectionError(
                f"status {status}, and nothing kept of the piece from byte {begin:,}"
            )

    def _put(self, data: bytes, content_range: str) -> requests.Response:
        self._sure = False
        headers = {"Content-Range": content_range}
        response: requests.Response = self._session.put(
            self._url, data=data, headers=headers
        )
        return response

    def _take(self, response: requests.Response) -> int:
        """Records from an answer how much has arrived; returns its status."""
        status = response.status_code
        if status in (200, 201):
            self._resource = response.json()
        elif status == 308:
            kept = _KEPT.fullmatch(response.headers.get("Range", ""))
            kept_bytes = int(kept[1]) + 1 if kept else 0
            whole = kept_bytes == self._size_bytes  # The upload would be complete.
            if 0 < kept_bytes <= self._sent_bytes and not whole:
                self._kept_bytes, self._sure = kept_bytes, True
                self._furthest_bytes = max(self._furthest_bytes, kept_bytes)
            else:
                self._forget()
        elif status in _LOST:
            self._forget()
        else:
            raise api.from_http_response(response)  # type: ignore[no-untyped-call]
        return status


class ObjectWrites:
    """Objects written whole: uploads and copies, confirmed by size and crc32c.

    After a failure the object is looked at: it may have been written all the same.

    Args:
        connection: To Cloud Storage.
        stat: Returns the metadata of an object, None if there is none.
    """

    def __init__(
        self, connection: GcsConnection, stat: Callable[[str], FileInfo | None]
    ):
        self._connection, self._stat = connection, stat

    def upload(
        self,
        path: str,
        file: BinaryIO,
        size_bytes: int,
        crc32c: int,
        replaces: str | None,
    ) -> None:
        """Uploads a file; after a failure, checks whether it arrived anyway.

        Args:
            path: The path of the object.
            file: Its content, read more than once after a failure.
            size_bytes: Size of the content.
            crc32c: Checksum of the content.
            replaces: Version of the object that it replaces, "" for none, None for any.

        Raises:
            StorageChangedError: There is another object than `replaces` says.
            StorageError: The object is not written, or not as it was sent.
        """
        written = (size_bytes, crc32c)
        with self._connection.explained("write the object", path, writes=True):
            try:
                found = self._send(path, file, written, replaces)
            except api.RetryError:
                raise  # The server does not respond, so it cannot be asked.
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
        self,
        path: str,
        file: BinaryIO,
        written: tuple[int, int],
        replaces: str | None,
    ) -> FileInfo:
        """Sends a file, and repeats that if it arrives damaged."""
        send = self._send_whole if written[0] <= PIECE_BYTES else self._send_pieces
        generation = None if replaces is None else int(replaces or 0)
        for _ in range(_UPLOADS - 1):
            try:
                return send(path, file, written, generation)
            except Exception as e:
                if not is_bad_checksum(e):
                    raise
        return send(path, file, written, generation)

    def _send_whole(
        self, path: str, file: BinaryIO, written: tuple[int, int], replaces: int | None
    ) -> FileInfo:
        blob = self._connection.blob(path)
        # The server checks it before it creates the object.
        blob.crc32c = encode_crc32c(written[1])
        blob.upload_from_file(
            file,
            rewind=True,
            size=written[0],
            checksum=None,
            content_type=CONTENT_TYPE,
            if_generation_match=replaces,
            retry=self._connection.retry,
        )
        return blob_info(blob)

    def _send_pieces(
        self, path: str, file: BinaryIO, written: tuple[int, int], replaces: int | None
    ) -> FileInfo:
        bucket, name = split_path(path)
        url = (
            f"{self._connection.client.api_endpoint}/upload/storage/v1/b/{bucket}/o"
            "?uploadType=resumable"
        )
        if replaces is not None:
            url += f"&ifGenerationMatch={replaces}"
        about = {
            "name": name,
            "crc32c": encode_crc32c(written[1]),
            "contentType": CONTENT_TYPE,
        }
        session, size_bytes = self._connection.session, written[0]
        pieces = ResumableUpload(session, url, about, file=file, size_bytes=size_bytes)
        found = pieces.run(lambda: self._connection.retry)
        return described_object(path, found)

    def _after_failure(
        self,
        path: str,
        error: Exception,
        written: tuple[int, int],
        replaces: str | None,
    ) -> FileInfo:
        try:
            found = self._stat(path)
        except StorageError:
            raise error from None
        if found is not None and (found.size_bytes, found.crc32c) == written:
            return found
        if isinstance(error, api.PreconditionFailed):
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
        raise error
