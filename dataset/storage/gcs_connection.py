"""A connection to Google Cloud Storage: credentials, deadlines, retries, clear errors.

The timeouts of requests apply to each received piece: a body that comes a byte at a
time never times out. So each request is made in a thread, and given up where it makes
no progress.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import google.auth
import google_crc32c
import requests
from google.api_core import exceptions as api
from google.api_core.retry import Retry
from google.auth.credentials import AnonymousCredentials, TokenState
from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
from google.auth.transport.requests import AuthorizedSession, Request
from google.cloud.storage import Client
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from google.cloud.storage.retry import DEFAULT_RETRY
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError, ReadTimeoutError

from gristmill.dataset.base.errors import (
    GristmillError,
    InputError,
    StorageError,
    StorageMissingError,
)
from gristmill.dataset.base.system import daemon_call
from gristmill.dataset.storage.base import Content, FileInfo
from gristmill.dataset.storage.gcs_answers import (
    content_range,
    retry_after_seconds,
    service_message,
    strange,
)
from gristmill.dataset.storage.paths import split_path

T = TypeVar("T")
_VARIABLE = "STORAGE_EMULATOR_HOST"


def emulator_url() -> str | None:
    """Returns the address in `STORAGE_EMULATOR_HOST`, None if there is none.

    It has a scheme, http by default, and no slash at its end. The server takes no
    credentials.

    Raises:
        InputError: The variable is not the address of a server.
    """
    text = os.environ.get(_VARIABLE, "").strip()
    if not text:
        return None
    url = (text if "://" in text else f"http://{text}").rstrip("/")
    try:
        parts = urllib.parse.urlsplit(url)
        known = bool(parts.hostname) and parts.port != 0
    except ValueError:  # Errors of brackets and ports.
        known = False
    if not known or parts.scheme not in ("http", "https") or {"?", "#"} & {*url}:
        raise InputError(
            f"{_VARIABLE} is not an address of a server",
            expected="http://HOST:PORT, such as http://localhost:4443",
            got=repr(text),
            cure=f"set it to one, or unset {_VARIABLE} to reach Cloud Storage",
        )
    return url


_CONNECTIONS = 128  # Connections to keep: more than threads that use them.
_PIECE_BYTES = 256 << 10  # After this many bytes, the time of a request starts again.
_MOST_BYTES = 8 << 30  # No object that is read at once is larger.
_ANY_URL = "https://storage.googleapis.com/"
_REDIRECTS = 2  # The service sends none; a proxy's leads to a page that can be shown.


class _Progress:
    """The time by which a request has to make progress."""

    def __init__(self, seconds: float, sent_bytes: int):
        self._seconds = seconds
        # Sending cannot be watched; it may take as long as receiving.
        self.due = time.monotonic() + seconds * (1 + sent_bytes // _PIECE_BYTES)

    def result(self, made: Future[T]) -> T:
        """Waits for a result while it makes progress; raises TimeoutError."""
        while True:
            left_seconds = self.due - time.monotonic()
            try:
                return made.result(max(left_seconds, 0))
            except TimeoutError:
                if made.done() or self.due <= time.monotonic():
                    raise

    def body_of(self, response: requests.Response) -> bytes:
        """Receives the body of an answer as it is sent."""
        body = bytearray()
        while piece := response.raw.read(_PIECE_BYTES, decode_content=False):
            self.due = time.monotonic() + self._seconds
            body += piece
            if len(body) > _MOST_BYTES:
                raise requests.ConnectionError(f"an answer of over {len(body):,} bytes")
        return bytes(body)


class GcsSession(AuthorizedSession):
    """The session of the client library; also for requests made without it.

    An answer that does not come from Cloud Storage, such as a proxy's page, is an error
    that a retry may cure. Bodies are as they were sent: encodings are not undone.

    Args:
        credentials: Credentials of google-auth.
        timeout_seconds: Time limit of a request, from asking for a token to the last
            byte. It restarts with every 256 KiB received.
    """

    def __init__(self, credentials: Any, *, timeout_seconds: float):
        tokens = requests.Session()
        super().__init__(  # type: ignore[no-untyped-call]
            credentials, auth_request=Request(tokens)
        )
        self._timeout_seconds = timeout_seconds
        for session in (self, tokens):
            session.max_redirects = _REDIRECTS
            session.mount("https://", HTTPAdapter(pool_maxsize=_CONNECTIONS))
            session.mount("http://", HTTPAdapter(pool_maxsize=_CONNECTIONS))
            session.auth = _as_it_is  # Otherwise a ~/.netrc would replace the token.
        self._token_lock = threading.Lock()

    def request(  # type: ignore[override]
        self, method: str, url: str, **kwargs: Any
    ) -> requests.Response:
        """Sends a request and returns the answer, with all of its body.

        Raises:
            requests.Timeout: The request was not complete in time.
            requests.ConnectionError: The answer does not come from Cloud Storage.
            requests.RequestException: There is no answer.
            GoogleAuthError: There is no token.
        """
        sent = kwargs.get("data") or b""
        progress = _Progress(
            self._timeout_seconds, len(sent) if isinstance(sent, bytes) else 0
        )
        # With gzip accepted, an object stored with Content-Encoding: gzip comes as
        # stored, and ranges mean stored bytes. No other answer is to be encoded.
        media = "alt=media" in url
        coding = {"Accept-Encoding": "gzip" if media else "identity"}
        kwargs["headers"] = {**(kwargs.get("headers") or {}), **coding}
        kwargs.update(stream=True, timeout=self._timeout_seconds)
        make = super().request

        def call() -> requests.Response:
            response: requests.Response = make(method, url, **kwargs)  # type: ignore[no-untyped-call]
            with contextlib.closing(response):
                response._content = progress.body_of(response)
            return response

        response = self._ended(call, progress)
        _check(response)
        return response

    def _ended(self, call: Callable[[], T], progress: _Progress | None = None) -> T:
        """Returns the result of a call that may wait for servers; limits its time."""
        progress = progress or _Progress(self._timeout_seconds, 0)
        try:
            return progress.result(daemon_call(call, thread_name="gristmill-request"))
        except (TimeoutError, requests.Timeout, ReadTimeoutError) as e:
            text = f"no complete answer in {self._timeout_seconds:,.4g} seconds"
            raise requests.ReadTimeout(text) from e
        except (HTTPError, UnicodeError) as e:
            raise requests.ConnectionError(e) from e
        except RefreshError as e:
            # What a retry may cure is not wrapped.
            if e.args and isinstance(e.args[0], TransportError):
                raise e.args[0] from e
            raise

    def authorization(self, *, refused: str = "") -> dict[str, str]:
        """Returns the headers that authorize a request made without this session.

        A token is requested if there is none, if it expires soon, or if it was refused.

        Args:
            refused: The header `authorization` that the service did not accept.

        Raises:
            GoogleAuthError: There is no token.
            StorageError: A header would have several lines.
        """
        credentials: Any = self.credentials
        headers: dict[str, str] = {}
        ask = self._auth_request
        with self._token_lock:
            # Another thread may have replaced this token.
            if refused and refused == f"Bearer {credentials.token}":
                self._ended(lambda: credentials.refresh(ask))
            try:
                self._ended(
                    lambda: credentials.before_request(ask, "GET", _ANY_URL, headers)
                )
            except (TransportError, requests.RequestException):
                if credentials.token_state is not TokenState.STALE:
                    raise
                credentials.apply(headers)  # It is valid for some minutes.
        for name, value in headers.items():
            if not value.isprintable():  # It would end the header, or the request.
                raise StorageError(
                    "credentials hold a line break, or another control character",
                    where=f"the header {name}",
                    cure="take it out of GOOGLE_CLOUD_QUOTA_PROJECT, or of the file "
                    "that GOOGLE_APPLICATION_CREDENTIALS names",
                )
        return headers


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    return request


def _check(response: requests.Response) -> None:
    """Refuses an answer that Cloud Storage never gives."""
    status, request = response.status_code, response.request
    if status >= 400:
        if status == 404 and response.content.lstrip().startswith(b"<"):
            raise _strange(response)  # A web page: real answers are JSON or plain text.
        try:
            str(api.from_http_response(response))  # type: ignore[no-untyped-call]
        except Exception as e:  # The client library would fail on it, too.
            raise api.from_http_status(  # type: ignore[no-untyped-call]
                status, str(_strange(response)), response=response
            ) from e
        return
    if status == 308 and request.method == "PUT":
        return  # A part of an upload arrived.
    if status >= 300:
        raise _strange(response)
    if "alt=media" in (request.url or ""):
        return  # The reader of a range checks it.
    begun = "Location" in response.headers  # An upload, with the address for its parts.
    if not response.content and (begun or request.method == "DELETE"):
        return
    try:
        items = response.json().get("items", [])
        named = all(isinstance(item["name"], str) for item in items)
    except (ValueError, RecursionError, AttributeError, LookupError, TypeError):
        named = False
    if not named or not isinstance(items, list):
        raise _strange(response)


def _strange(response: requests.Response) -> requests.ConnectionError:
    kind = response.headers.get("Content-Type")
    text = strange(response.status_code, kind, response.content)
    return requests.ConnectionError(text, request=response.request)


_SYSTEM_ERROR = re.compile(r"\[Errno -?\d+\] ([^'\")\]]+)")
# Refusals that no role cures, by words of the service's message.
_CURES = {
    "retention": "wait until then, or choose another output: this bucket keeps its "
    "objects by a retention policy",
    " hold": "release the hold, or choose another output: the object is held",
    "requester pays": "let GOOGLE_CLOUD_QUOTA_PROJECT name the project that pays",
    "billing": "enable billing for the project of the bucket",
}


def _plain(cause: BaseException) -> str:
    """Returns the message of the server or the network, without its wrapping."""
    text = str(cause)
    response = getattr(cause, "response", None)
    status = getattr(response, "status_code", None) or getattr(cause, "code", None)
    if response is not None:
        text = service_message(response.content) or text
    elif match := _SYSTEM_ERROR.search(text):
        text = match[1]
    if status is not None and str(int(status)) not in text:
        text = f"{int(status)} {text}"
    return text or type(cause).__name__


def _diagnosis(
    error: Exception, deadline_seconds: float, *, no_bucket: bool, again: str
) -> tuple[str, str]:
    """Returns the cause of an error and its cure, which is `again` for another try."""
    cause: BaseException = error
    if isinstance(error, api.RetryError) and error.cause is not None:
        cause = error.cause
    got, later = _plain(cause), f"check network and service status, then {again}"
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
        return got, later
    if isinstance(cause, api.Unauthorized | GoogleAuthError):
        return got, (
            "run `gcloud auth application-default login`, or let "
            "GOOGLE_APPLICATION_CREDENTIALS name a key file"
        )
    if cause is not error:
        return f"no success in {deadline_seconds:,.4g} seconds; last: {got}", later
    return got, again


_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
_GIVEN_UP_SECONDS = 10.0
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
    def retry(self) -> Retry:
        """The retries of calls, which wait as long as the server asks.

        After a call has reached its deadline, later calls get a shorter one until one
        succeeds: otherwise many calls in sequence would each wait that long.
        """
        deadline = self._deadline_seconds
        if self._given_up:
            deadline = min(deadline, _GIVEN_UP_SECONDS)

        def wait(error: Exception) -> None:
            headers = getattr(getattr(error, "response", None), "headers", {})
            asked = retry_after_seconds(headers.get("Retry-After"), headers.get("Date"))
            time.sleep(min(asked, deadline / 2))  # So that there is another try.

        return Retry(
            predicate=DEFAULT_RETRY._predicate,
            initial=0.2,
            maximum=8.0,
            multiplier=2.0,
            timeout=deadline,
            on_error=wait,
        )

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
            again = "run the same command again"
            if writes:
                again += ": finished shards are kept"
            got, cure = _diagnosis(
                e, self._deadline_seconds, no_bucket=no_bucket, again=again
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
        text = _plain(error)
        if "The specified bucket does not exist" in text:
            return True
        if "No such object" in text:
            return False
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
    ) -> Content:
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

        def attempt() -> Content:
            response = self.session.get(url, headers=headers)
            if response.status_code >= 400:
                raise api.from_http_response(response)  # type: ignore[no-untyped-call]
            return _checked(response, begin, end, version)

        call: Callable[[], Content] = self.retry(attempt)
        return call()


def _checked(
    response: requests.Response, begin: int, end: int | None, version: str | None
) -> Content:
    """Checks a response against the request and its own headers.

    Raises ConnectionError on a mismatch: a retry may help.
    """
    headers, data = response.headers, response.content
    stated = content_range(headers.get("Content-Range", ""))
    if stated is None:
        raise _strange(response)
    total = stated[2]
    stop = total if end is None else min(end, total)
    if stated[:2] != (begin, stop) or len(data) != stop - begin:
        raise ConnectionError(
            f"asked for {stop - begin:,} bytes from {begin:,}, got {len(data):,} of "
            f"{headers['Content-Range']}"
        )
    found = headers.get("X-Goog-Generation", "")
    if version is not None and found != version:
        raise ConnectionError(f"asked for generation {version}, got {found}")
    crc32c = _HASH.search(headers.get("X-Goog-Hash", ""))
    if crc32c is not None and len(data) == total:
        got = google_crc32c.value(data)
        if got != _decoded(crc32c[1]):
            raise ConnectionError(
                f"crc32c of the object is {_decoded(crc32c[1]):#010x}, of the "
                f"received bytes {got:#010x}"
            )
    return Content(data, found, total)


def _decoded(crc32c: str) -> int:
    return int.from_bytes(base64.b64decode(crc32c, validate=True), "big")


def blob_info(blob: Any) -> FileInfo:
    """Returns an object's metadata, as sent by the server.

    Raises StorageError if that describes no object.
    """
    path, about = f"gs://{blob.bucket.name}/{blob.name}", blob._properties
    try:
        text, size = about.get("crc32c"), about.get("size")
        crc32c = None if text is None else _decoded(text)
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
