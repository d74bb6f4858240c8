"""An upload in pieces that continues from what the server has kept.

The server may keep a part of a piece, or lose all that it had: then the file is read
again from there. The client library only reads forward, and fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, BinaryIO

import requests
from google.api_core import exceptions as api

from gristmill.dataset.base.errors import StorageChangedError
from gristmill.dataset.storage.gcs_session import GcsSession, describe

PIECE_BYTES = 8 << 20  # One request each. A multiple of 256 KiB.
_KEPT = re.compile(r"bytes=0-(\d+)")
_LOST = (404, 410)


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
