"""Requests to Google Cloud Storage: where to, with deadlines and checked answers.

The timeouts of requests apply to each received piece: a body that comes a byte at a
time never times out. So each request is made in a thread, and given up where it makes
no progress.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
from google.api_core import exceptions as api
from google.auth.credentials import TokenState
from google.auth.exceptions import RefreshError, TransportError
from google.auth.transport.requests import AuthorizedSession, Request
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError, ReadTimeoutError

from gristmill.dataset.base.errors import InputError, StorageError
from gristmill.dataset.base.system import daemon_call

_VARIABLE = "STORAGE_EMULATOR_HOST"
_CONNECTIONS = 128  # Connections to keep: more than threads that use them.
_PIECE_BYTES = 256 << 10  # After this many bytes, the time of a request starts again.
_MOST_BYTES = 8 << 30  # No object that is read at once is larger.
_SHOWN_CHARS = 120
_ANY_URL = "https://storage.googleapis.com/"
_REDIRECTS = 2  # The service sends none; a proxy's leads to a page that can be shown.

T = TypeVar("T")


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
    if not _is_address(url):
        raise InputError(
            f"{_VARIABLE} is not an address of a server",
            expected="http://HOST:PORT, such as http://localhost:4443",
            got=repr(text),
            cure=f"set it to one, or unset {_VARIABLE} to reach Cloud Storage",
        )
    return url


def _is_address(url: str) -> bool:
    try:
        scheme, _, _, query, fragment = parts = urlsplit(url)
        known = bool(parts.hostname) and parts.port != 0
    except ValueError:  # Errors of brackets and ports.
        return False
    return known and scheme in ("http", "https") and not query and not fragment


class _Progress:
    """The time by which a request has to make progress."""

    def __init__(self, seconds: float, sent_bytes: int):
        self._seconds = seconds
        # What is sent cannot be watched; it may take as long as what is received.
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
        """Returns the result of a call that may wait for servers; ends it in time."""
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
            text = describe(response)
            raise api.from_http_status(status, text, response=response) from e  # type: ignore[no-untyped-call]
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
        document = response.json()
        items = document.get("items", [])
        named = all(isinstance(item["name"], str) for item in items)
    except (ValueError, RecursionError, AttributeError, LookupError, TypeError):
        named = False
    if not named or not isinstance(items, list):
        raise _strange(response)


def _strange(response: requests.Response) -> requests.ConnectionError:
    return requests.ConnectionError(describe(response), request=response.request)


def describe(response: requests.Response) -> str:
    """Describes what came in place of an answer of Cloud Storage."""
    kind = response.headers.get("Content-Type", "no Content-Type")
    text = " ".join(response.content[:1000].decode("utf-8", "replace").split())
    shown = f"{text[:_SHOWN_CHARS]}..." if len(text) > _SHOWN_CHARS else text
    return (
        f"answer that is not from Cloud Storage: status {response.status_code}, "
        f"{kind}, {shown!r}"
    )
