"""A connection to Google Cloud Storage: credentials, retries, clear errors."""

from __future__ import annotations

import base64
import contextlib
import os
import re
import urllib.parse
from collections.abc import Callable, Iterator
from typing import Any

import google.auth
import google_crc32c
import requests
from google.api_core import exceptions as api
from google.auth.credentials import AnonymousCredentials
from google.auth.exceptions import GoogleAuthError, TransportError
from google.cloud.storage import Client
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY

from gristmill.dataset.daemon_call import daemon_call
from gristmill.dataset.errors import (
    GristmillError,
    StorageError,
    StorageMissingError,
)
from gristmill.dataset.storage.gcs_session import GcsSession, describe
from gristmill.dataset.storage.object_names import split_path
from gristmill.dataset.storage.prefetch_reader import Piece
from gristmill.dataset.storage.regular_file import check_size

_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
_GIVEN_UP_SECONDS = 10.0
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_HASH = re.compile(r"crc32c=([A-Za-z0-9+/=]+)")
_SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([^'\")\]]+)")
_NO_BUCKET = "bucket does not exist"
_AGAIN = "run the same command again: finished shards are kept"


class GcsConnection:
    """The client library's client, and a session of its kind for reading ranges.

    Ranges are read over the same session, but not through the client: it hides the
    response's headers (`Content-Range`, the generation) and accepts short responses.

    Safe to share by threads, but not with a forked process.

    Args:
        timeout_seconds: How long a request may take; see `TimedAdapter`.
        deadline_seconds: How long to retry after transient failures.

    Raises:
        StorageError: Credentials are missing.
    """

    def __init__(self, *, timeout_seconds: float, deadline_seconds: float):
        self._deadline_seconds = deadline_seconds
        # An emulator takes no credentials.
        if os.environ.get("STORAGE_EMULATOR_HOST"):
            credentials: Any = AnonymousCredentials()  # type: ignore[no-untyped-call]
        else:
            with self.explained("find credentials", "Google Cloud Storage"):
                credentials = self._find_credentials()
        # By default the library requests the bucket's metadata for every object that is
        # missing. Nothing uses the answers.
        os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        session = GcsSession(credentials, timeout_seconds=timeout_seconds)
        self._session = session
        self.client = Client(project=None, credentials=credentials, _http=session)
        self._retry = DEFAULT_RETRY.with_delay(initial=0.2, maximum=8.0, multiplier=2.0)
        self._given_up = False

    def _find_credentials(self) -> Any:
        def find() -> Any:
            credentials, _ = google.auth.default(scopes=_SCOPES)
            # The client needs it: on a machine of Google's a server is asked for it.
            getattr(credentials, "universe_domain", None)
            return credentials

        # The library asks servers and programs, without a limit for all of it.
        found = daemon_call(find, thread_name="gristmill-credentials")
        try:
            return found.result(self._deadline_seconds)
        except TimeoutError as e:
            text = f"nothing found in {self._deadline_seconds:,.4g} seconds"
            raise TransportError(text) from e  # type: ignore[no-untyped-call]

    @property
    def retry(self) -> Any:
        """How calls are retried.

        After a call reached its deadline, later calls get a shorter one until one
        succeeds: many calls in sequence would each wait as long.
        """
        deadline = self._deadline_seconds
        if self._given_up:
            deadline = min(deadline, _GIVEN_UP_SECONDS)
        return self._retry.with_timeout(deadline)

    @contextlib.contextmanager
    def explained(self, action: str, path: str) -> Iterator[None]:
        """Turns errors of the client into `StorageError`: "cannot ACTION"."""
        try:
            yield
            self._given_up = False
        except GristmillError:
            raise
        except (
            api.GoogleAPIError,
            GoogleAuthError,
            InvalidResponse,
            DataCorruption,
            requests.RequestException,
            ConnectionError,
        ) as e:
            self._given_up = isinstance(e, api.RetryError)
            got, cure = _diagnosis(e, self._deadline_seconds)
            missing = isinstance(e, api.NotFound) and not is_missing_bucket(e)
            kind = StorageMissingError if missing else StorageError
            raise kind(f"cannot {action}", where=path, got=got, cure=cure) from e

    def fetch(
        self, path: str, begin: int, end: int | None, version: str | None
    ) -> Piece:
        """Reads a half-open range of one version of an object, or of the current one.

        `begin` must be in the object; no `end` means that of the object. Raises
        GoogleAPICallError if the server refuses.
        """
        bucket, name = split_path(path)
        url = (
            f"{self.client.api_endpoint}/download/storage/v1/b/{bucket}/o/"
            f"{urllib.parse.quote(name, safe='')}?alt=media"
        )
        if version is not None:
            url += f"&generation={version}"
        last = "" if end is None else end - 1
        # With gzip accepted, an object stored with Content-Encoding: gzip comes as it
        # is stored, and ranges mean stored bytes.
        headers = {"Range": f"bytes={begin}-{last}", "Accept-Encoding": "gzip"}

        def attempt() -> Piece:
            response = self._session.get(url, headers=headers, stream=True)
            if response.status_code >= 400:
                raise api.from_http_response(response)  # type: ignore[no-untyped-call]
            sizes = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
            if sizes is not None and end is None:
                check_size(path, int(sizes[3]) - begin)
            return _checked(response, begin, end, version)

        call: Callable[[], Piece] = self.retry(attempt)
        return call()


def _checked(
    response: requests.Response, begin: int, end: int | None, version: str | None
) -> Piece:
    """Checks a response against the request and its own headers.

    Raises ConnectionError if they do not fit: a retry may help.
    """
    headers = response.headers
    match = _RANGE.fullmatch(headers.get("Content-Range", ""))
    if match is None:
        raise ConnectionError(describe(response))
    data = response.raw.read(decode_content=False)
    first, last, total = map(int, match.groups())
    expected = (total if end is None else min(end, total)) - begin
    if first != begin or last + 1 - first != expected or len(data) != expected:
        raise ConnectionError(
            f"asked for {expected:,} bytes from {begin:,}, got {len(data):,} of "
            f"{match[0]}"
        )
    found = headers.get("X-Goog-Generation", "")
    if version is not None and found != version:
        raise ConnectionError(f"asked for generation {version}, got {found}")
    crc32c = _HASH.search(headers.get("X-Goog-Hash", ""))
    if crc32c is not None and expected == total:
        got = google_crc32c.value(data)
        if got != decode_crc32c(crc32c[1]):
            raise ConnectionError(
                f"crc32c of the object is {decode_crc32c(crc32c[1]):#010x}, of the "
                f"received bytes {got:#010x}"
            )
    return Piece(data, total, found)


def decode_crc32c(text: str) -> int:
    """Decodes a checksum as the API writes it."""
    return int.from_bytes(base64.b64decode(text, validate=True), "big")


def encode_crc32c(crc32c: int) -> str:
    """Encodes a checksum as the API writes it."""
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()


def is_bad_checksum(error: Exception) -> bool:
    """Returns whether the server says that the data arrived damaged."""
    return getattr(error, "code", None) == 400 and "crc32c" in str(error).lower()


def is_missing_bucket(error: Exception) -> bool:
    """Returns whether the server says that there is no such bucket."""
    return _NO_BUCKET in str(error)


def _plain(cause: BaseException) -> str:
    """Returns the message of the server or the network, without its wrapping."""
    text = str(cause)
    response = getattr(cause, "response", None)
    status = getattr(response, "status_code", None) or getattr(cause, "code", None)
    if response is not None:
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            text = str(response.json()["error"]["message"])
    elif match := _SYSTEM_ERROR.search(text):
        text = match[1]
    if status is not None and str(int(status)) not in text:
        text = f"{int(status)} {text}"
    return text or type(cause).__name__


def _diagnosis(error: Exception, deadline_seconds: float) -> tuple[str, str]:
    """Returns what went wrong, and what to do about it."""
    cause: BaseException = error
    if isinstance(error, api.RetryError) and error.cause is not None:
        cause = error.cause
    got = _plain(cause)
    if isinstance(cause, api.NotFound):
        if is_missing_bucket(cause):
            return got, "check the bucket's name, or create it"
        return "no such object", "check the path"
    if isinstance(cause, api.Forbidden):
        return got, (
            "give this account the role roles/storage.objectUser on the bucket "
            "(roles/storage.objectViewer is enough to read)"
        )
    if isinstance(cause, TransportError):  # Of credentials.
        return got, f"check network and service status, then {_AGAIN}"
    if isinstance(cause, api.Unauthorized | GoogleAuthError):
        return got, (
            "run `gcloud auth application-default login`, or let "
            "GOOGLE_APPLICATION_CREDENTIALS name a key file"
        )
    if cause is not error:
        return f"no success in {deadline_seconds:,.4g} seconds; last: {got}", (
            f"check network and service status, then {_AGAIN}"
        )
    return got, _AGAIN
