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

from gristmill.dataset.base.errors import (
    GristmillError,
    InputError,
    StorageError,
    StorageMissingError,
)
from gristmill.dataset.base.system import daemon_call
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.gcs_session import (
    GcsSession,
    describe,
    emulator_url,
)
from gristmill.dataset.storage.paths import split_path
from gristmill.dataset.storage.prefetch_reader import Piece

_SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([^'\")\]]+)")
_NO_BUCKET = "The specified bucket does not exist"
_NO_OBJECT = "No such object"
_AGAIN = "run the same command again"
# Refusals that no role cures, by words of the service's message.
_CURES = {
    "retention": "wait until then, or choose another output: this bucket keeps its "
    "objects by a retention policy",
    " hold": "release the hold, or choose another output: the object is held",
    "requester pays": "let GOOGLE_CLOUD_QUOTA_PROJECT name the project that pays",
    "billing": "enable billing for the project of the bucket",
}


# Reasons in bodies that are not JSON, or not Google's JSON.
_NO_MESSAGE = (ValueError, AttributeError, TypeError, LookupError, RecursionError)


def names_bucket(error: Exception) -> bool | None:
    """Returns whether a 404 is about a bucket, not an object; None if it is unclear."""
    text = _plain(error)
    if _NO_BUCKET in text:
        return True
    return False if _NO_OBJECT in text else None


def _plain(cause: BaseException) -> str:
    """Returns the message of the server or the network, without its wrapping."""
    text = str(cause)
    response = getattr(cause, "response", None)
    status = getattr(response, "status_code", None) or getattr(cause, "code", None)
    if response is not None:
        with contextlib.suppress(*_NO_MESSAGE):
            text = str(response.json()["error"]["message"])
    elif match := _SYSTEM_ERROR.search(text):
        text = match[1]
    if status is not None and str(int(status)) not in text:
        text = f"{int(status)} {text}"
    return text or type(cause).__name__


def diagnosis(
    error: Exception, deadline_seconds: float, *, no_bucket: bool, kept: str
) -> tuple[str, str]:
    """Returns the cause of an error, and its cure.

    Args:
        error: Error of the client library, or of requests.
        deadline_seconds: How long the request was retried.
        no_bucket: Whether the bucket is missing.
        kept: A note about work already done, after "run the same command again".
    """
    cause: BaseException = error
    if isinstance(error, api.RetryError) and error.cause is not None:
        cause = error.cause
    got, again = _plain(cause), f"{_AGAIN}{kept}"
    if isinstance(cause, api.NotFound):
        if no_bucket:
            return got, "check the bucket's name, or create it"
        return "no such object", "check the path"
    if isinstance(cause, api.Forbidden | api.BadRequest):
        for part, cure in _CURES.items():
            if part in got:
                return got, cure
    if isinstance(cause, api.Forbidden):
        return got, (
            "give this account the role roles/storage.objectUser on the bucket "
            "(roles/storage.objectViewer is enough to read)"
        )
    if isinstance(cause, TransportError):  # Errors of credentials.
        return got, f"check network and service status, then {again}"
    if isinstance(cause, api.Unauthorized | GoogleAuthError):
        return got, (
            "run `gcloud auth application-default login`, or let "
            "GOOGLE_APPLICATION_CREDENTIALS name a key file"
        )
    if cause is not error:
        return f"no success in {deadline_seconds:,.4g} seconds; last: {got}", (
            f"check network and service status, then {again}"
        )
    return got, again


_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
_GIVEN_UP_SECONDS = 10.0
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_HASH = re.compile(r"crc32c=([A-Za-z0-9+/=]+)")


class GcsConnection:
    """The client of Google's library, and a session like its own for reading ranges.

    Ranges are read over the same session, but not through the client: it hides the
    response's headers (`Content-Range`, the generation) and accepts short responses.

    Safe to share by threads, but not with a forked process.

    Args:
        timeout_seconds: Time limit of a request; see `GcsSession`.
        deadline_seconds: How long to retry after transient failures.

    Attributes:
        session: Sends the requests.
        client: The library's client.

    Raises:
        StorageError: Credentials are missing.
    """

    def __init__(self, *, timeout_seconds: float, deadline_seconds: float):
        self._deadline_seconds = deadline_seconds
        # An emulator takes no credentials.
        server = emulator_url()
        if server is not None:
            credentials: Any = AnonymousCredentials()  # type: ignore[no-untyped-call]
        else:
            with self.explained("find credentials", "Google Cloud Storage"):
                credentials = self._find_credentials()
        # By default the library requests the bucket's metadata for every missing
        # object. Nothing uses the answers.
        os.environ.setdefault("DISABLE_GCS_PYTHON_CLIENT_OTEL_BUCKET_METADATA", "true")
        self.session = GcsSession(credentials, timeout_seconds=timeout_seconds)
        self.client = Client(
            project=None,
            credentials=credentials,
            client_options={"api_endpoint": server} if server else None,
            _http=self.session,
        )
        self._retry = DEFAULT_RETRY.with_delay(0.2, maximum=8.0, multiplier=2.0)
        self._given_up = False

    def _find_credentials(self) -> Any:
        def find() -> Any:
            credentials, _ = google.auth.default(scopes=_SCOPES)
            # The client needs it, and would ask a server for it on Google's machines.
            getattr(credentials, "universe_domain", None)
            return credentials

        # The library asks servers and programs, without an overall time limit.
        found = daemon_call(find, thread_name="gristmill-credentials")
        try:
            return found.result(self._deadline_seconds)
        except TimeoutError as e:
            text = f"nothing found in {self._deadline_seconds:,.4g} seconds"
            raise TransportError(text) from e  # type: ignore[no-untyped-call]

    @property
    def retry(self) -> Any:
        """The retries of calls.

        After a call has reached its deadline, later calls get a shorter one until one
        succeeds: otherwise many calls in sequence would each wait that long.
        """
        deadline = self._deadline_seconds
        if self._given_up:
            deadline = min(deadline, _GIVEN_UP_SECONDS)
        return self._retry.with_timeout(deadline)

    @contextlib.contextmanager
    def explained(
        self, action: str, path: str, *, writes: bool = False
    ) -> Iterator[None]:
        """Turns errors of the client into `StorageError`: "cannot ACTION".

        Args:
            action: What failed, such as "read the object".
            path: The path of the object.
            writes: Whether the action writes: then some shards may be finished.
        """
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
            no_bucket = isinstance(e, api.NotFound) and self.lacks_bucket(e, path)
            got, cure = diagnosis(
                e,
                self._deadline_seconds,
                no_bucket=no_bucket,
                kept=": finished shards are kept" if writes else "",
            )
            missing = isinstance(e, api.NotFound) and not no_bucket
            kind = StorageMissingError if missing else StorageError
            raise kind(f"cannot {action}", where=path, got=got, cure=cure) from e

    def authorization(self, *, refused: str = "") -> dict[str, str]:
        """Returns the headers that authorize requests; see `GcsSession`."""
        with self.explained("get a token", "Google Cloud Storage"):
            headers: dict[str, str] = self.retry(self.session.authorization)(
                refused=refused
            )
        return headers

    def lacks_bucket(self, error: Exception, path: str) -> bool:
        """Returns whether a 404 means that the bucket of a path is missing.

        The service gives the same reason for objects. Its words decide; if they are
        unfamiliar, a listing does, which is refused only if there is no bucket.
        """
        told = names_bucket(error)
        if told is not None:
            return told
        url = f"{self.client.api_endpoint}/storage/v1/b/{split_path(path)[0]}/o"
        with contextlib.suppress(requests.RequestException, api.GoogleAPIError):
            asked = {"maxResults": "1", "fields": "kind"}
            return self.session.get(url, params=asked).status_code == 404
        return False

    def blob(self, path: str) -> Any:
        """Returns the client library's object for a path.

        Raises InputError if the path names a bucket alone.
        """
        bucket, name = split_path(path)
        if not name:
            raise InputError(
                "path names a bucket, and no object in it",
                where=path,
                expected="gs://BUCKET/NAME",
                cure="add the name of a file",
            )
        return self.client.bucket(bucket).blob(name)

    def fetch(
        self, path: str, begin: int, end: int | None, version: str | None
    ) -> Piece:
        """Reads a half-open range of one version of an object, or of the current one.

        `begin` must be in the object; without `end`, it ends with the object. Raises
        GoogleAPICallError if the server refuses.
        """
        bucket, name = split_path(path)
        objects = f"{self.client.api_endpoint}/download/storage/v1/b/{bucket}/o"
        url = f"{objects}/{urllib.parse.quote(name, safe='')}?alt=media"
        if version is not None:
            url += f"&generation={version}"
        last = "" if end is None else end - 1
        headers = {"Range": f"bytes={begin}-{last}"}

        def attempt() -> Piece:
            response = self.session.get(url, headers=headers)
            if response.status_code >= 400:
                raise api.from_http_response(response)  # type: ignore[no-untyped-call]
            return _checked(response, begin, end, version)

        call: Callable[[], Piece] = self.retry(attempt)
        return call()


def _checked(
    response: requests.Response, begin: int, end: int | None, version: str | None
) -> Piece:
    """Checks a response against the request and its own headers.

    Raises ConnectionError on a mismatch: a retry may help.
    """
    headers = response.headers
    match = _RANGE.fullmatch(headers.get("Content-Range", ""))
    if match is None:
        raise ConnectionError(describe(response))
    data = response.content
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
    """Decodes a checksum in the form of the API."""
    return int.from_bytes(base64.b64decode(text, validate=True), "big")


def encode_crc32c(crc32c: int) -> str:
    """Encodes a checksum in the form of the API."""
    return base64.b64encode(crc32c.to_bytes(4, "big")).decode()


def blob_info(blob: Any) -> FileInfo:
    """Returns an object's metadata, as sent by the server.

    Raises StorageError if that describes no object.
    """
    path, about = f"gs://{blob.bucket.name}/{blob.name}", blob._properties
    try:
        text, size = about.get("crc32c"), about.get("size")
        crc32c = None if text is None else decode_crc32c(text)
        # Some servers leave out a size of 0: then this is the checksum of nothing.
        size_bytes = 0 if size is None and crc32c == 0 else int(size)
        return FileInfo(path, size_bytes, str(int(about["generation"])), crc32c)
    except (AttributeError, LookupError, TypeError, ValueError) as e:
        expected = "numbers for size and generation, base64 for crc32c"
        raise odd_answer(path, expected, str(e)) from e


def odd_answer(path: str, expected: str, got: str) -> StorageError:
    """Returns the error for an answer that is not one of Cloud Storage."""
    return StorageError(
        "the server's answer does not describe objects",
        where=path,
        expected=expected,
        got=got,
        cure="check that the server is Cloud Storage, then run the same command again",
    )
