"""Requests to Google Cloud Storage: where to, with deadlines, credentials and retries.

The timeouts of requests and urllib3 apply to each received piece: a body that comes a
byte at a time never times out. Here the deadline is checked after each piece of a body.
Headers end in time unless they come in endless pieces.
"""

from __future__ import annotations

import contextlib
import contextvars
import email.utils
import functools
import io
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from google.api_core import exceptions as api
from google.api_core.retry import Retry, exponential_sleep_generator
from google.api_core.retry.retry_unary import retry_target
from google.auth.credentials import TokenState
from google.auth.exceptions import RefreshError, TransportError
from google.auth.transport.requests import AuthorizedSession, Request
from requests.adapters import HTTPAdapter
from requests.cookies import RequestsCookieJar
from requests.structures import CaseInsensitiveDict
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError
from urllib3.util import connection as urllib3_connection

from gristmill.dataset.base.errors import InputError, StorageError

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


def retry_after_seconds(headers: Mapping[str, str]) -> float:
    """Returns the seconds that an answer asks to wait, 0 by default.

    Args:
        headers: Headers of the answer, in any case if the mapping ignores case, else in
            HTTP's usual one. `Retry-After` is a number of seconds, or a date, which is
            compared with the server's own `Date`, as clocks may differ.
    """
    text = _header(headers, "Retry-After").strip()
    if text.isascii() and text.isdigit():
        return float(text)
    due = _unix_seconds(text)
    if due is None:
        return 0.0
    now = _unix_seconds(_header(headers, "Date"))
    return max(due - (time.time() if now is None else now), 0.0)


def _header(headers: Mapping[str, str], name: str) -> str:
    return headers.get(name) or headers.get(name.lower()) or ""


def _unix_seconds(text: str) -> float | None:
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


_LAST_TRY_SECONDS = 0.05  # Time kept for the last attempt.


class PatientRetry(Retry):
    """Retries of Google's libraries that obey `Retry-After`.

    If a server asks for more time than is left, there is one more attempt, at the
    deadline.
    """

    def __call__(
        self,
        func: Callable[..., Any],
        on_error: Callable[[Exception], Any] | None = None,
    ) -> Callable[..., Any]:
        """Wraps a function with the retries."""
        del on_error

        @functools.wraps(func)
        def call(*args: Any, **kwargs: Any) -> Any:
            asked_seconds = 0.0

            def hear(error: Exception) -> None:
                nonlocal asked_seconds
                response = getattr(error, "response", None)
                headers = getattr(response, "headers", None) or {}
                asked_seconds = retry_after_seconds(headers)

            deadline = time.monotonic() + (self._timeout or 0.0)

            def pauses() -> Iterator[float]:
                usual = exponential_sleep_generator(
                    self._initial, self._maximum, self._multiplier
                )
                for pause in usual:
                    left = deadline - time.monotonic() - _LAST_TRY_SECONDS
                    yield max(pause, min(asked_seconds, left))

            return retry_target(
                functools.partial(func, *args, **kwargs),
                self._predicate,
                pauses(),
                timeout=self._timeout,
                on_error=hear,
            )

        return call


_CONNECTIONS = 128  # Connections to keep: more than threads that use them.
# After this many bytes, the time of a request starts again.
_PIECE_BYTES = 256 << 10
_SHORTEST_WAIT_SECONDS = 0.05
# Encodings of a body that are undone. Of others, urllib3 lets the errors of their
# packages out.
_ENCODINGS = ("gzip", "deflate")


class TimedAdapter(HTTPAdapter):
    """Sends requests and receives whole answers in bounded time.

    An answer is complete when `send` returns it, also with `stream=True`. Only gzip and
    deflate are asked for and undone.

    Args:
        seconds: Time limit of a request, from connecting to the last byte. It restarts
            with every 256 KiB sent or received, so that large transfers can take as
            long as they need.
        most_bytes: Limit for a body without a stated length.
    """

    # Attributes of a copy: google-auth copies sessions with their adapters.
    __attrs__ = [*HTTPAdapter.__attrs__, "_seconds", "_most_bytes"]  # noqa: RUF012

    def __init__(self, *, seconds: float, most_bytes: int = 1 << 30):
        self._seconds, self._most_bytes = seconds, most_bytes
        super().__init__(pool_maxsize=_CONNECTIONS)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        """Creates the pools of connections; a copy of the adapter has its own."""
        self._pools: dict[tuple[str, ...], Any] = {}
        super().init_poolmanager(*args, **kwargs)
        self.poolmanager.pool_classes_by_scheme = _POOLS

    def proxy_manager_for(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the pools of connections through a proxy."""
        manager = super().proxy_manager_for(*args, **kwargs)
        if isinstance(manager, urllib3.ProxyManager):  # A SOCKS proxy needs its own.
            manager.pool_classes_by_scheme = _POOLS
        return manager

    def get_connection_with_tls_context(
        self,
        request: requests.PreparedRequest,
        verify: Any,
        proxies: Any = None,
        cert: Any = None,
    ) -> Any:
        """Returns the pool of connections to a host, looked up once per host."""
        host = (request.url or "").split("/", 3)[:3]
        key = (*host, str(verify), str(proxies), str(cert))
        pool = self._pools.get(key)
        if pool is None:
            find = super().get_connection_with_tls_context
            pool = self._pools[key] = find(request, verify, proxies, cert)
        return pool

    def close(self) -> None:
        """Closes the connections."""
        self._pools.clear()
        super().close()

    def send(  # type: ignore[override]  # requests names what else it gives.
        self, request: requests.PreparedRequest, **kwargs: Any
    ) -> requests.Response:
        """Sends a request and returns the answer, with all of its body.

        Raises:
            requests.Timeout: The request was not complete in time.
            requests.RequestException: It failed otherwise.
        """
        kwargs.update(stream=True, timeout=self._seconds)
        if request.headers.get("Accept-Encoding") not in _ENCODINGS:
            request.headers["Accept-Encoding"] = ", ".join(_ENCODINGS)
        deadline = _Deadline(self._seconds)
        token = _current.set(deadline)
        try:
            response = super().send(request, **kwargs)
            self._receive(response, deadline)
        except (requests.RequestException, HTTPError, OSError) as e:
            if deadline.left_seconds <= 0:
                text = f"no complete answer in {self._seconds:,.4g} seconds"
                raise requests.ReadTimeout(text, request=request) from e
            if isinstance(e, requests.RequestException):
                raise
            raise requests.ConnectionError(e, request=request) from e
        finally:
            _current.reset(token)
        return response

    def _receive(self, response: requests.Response, deadline: _Deadline) -> None:
        """Receives the body, and puts it in place of the connection."""
        raw = response.raw
        try:
            body = self._body_of(response, deadline)
            raw.release_conn()  # Connection for the next request.
        finally:
            raw.close()  # Closes the connection unless it was released.
        headers = raw.headers.copy()
        if headers.get("Content-Encoding") not in _ENCODINGS:
            headers.discard("Content-Encoding")
        response.raw = urllib3.HTTPResponse(
            io.BytesIO(body),
            headers=headers,
            status=raw.status,
            version=raw.version,
            reason=raw.reason,
            preload_content=False,
            request_method=response.request.method,
        )

    def _body_of(self, response: requests.Response, deadline: _Deadline) -> bytes:
        bounded = "Content-Length" in response.headers
        left = sys.maxsize if bounded else self._most_bytes
        pieces = []
        raw = response.raw
        deadline.limit_wait()
        while piece := raw.read1(_PIECE_BYTES, decode_content=False):
            deadline.add(len(piece))
            deadline.limit_wait()
            left -= len(piece)
            if left < 0:
                raise HTTPError(f"an answer of over {self._most_bytes:,} bytes")
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _Connection(HTTPConnection):
    """A connection for requests with a deadline."""

    def _new_conn(self) -> socket.socket:
        """Tries one address of the server after the other, in the time left."""
        deadline = _current.get()
        name, limit = self._dns_host, self.timeout
        family = urllib3_connection.allowed_gai_family()
        error: Exception = NewConnectionError(self, f"no address of {name} is known")
        try:
            found = socket.getaddrinfo(
                name.strip("[]"), self.port, family, socket.SOCK_STREAM
            )
        except (OSError, UnicodeError) as e:
            raise NewConnectionError(self, f"cannot find {name}: {e}") from e
        try:
            for position, (*_, address) in enumerate(found):
                self._dns_host = str(address[0])
                # urllib3 itself gives the whole time to each of 20 addresses.
                share_seconds = deadline.left_seconds / (len(found) - position)
                self.timeout = max(share_seconds, _SHORTEST_WAIT_SECONDS)
                try:
                    connected = super()._new_conn()
                except (ConnectTimeoutError, NewConnectionError) as e:
                    error = e
                    continue
                connected.settimeout(limit)
                return connected
        finally:
            self._dns_host, self.timeout = name, limit
        raise error

    def request(self, *args: Any, **kwargs: Any) -> None:
        """Sends a request."""
        _current.get().connection = self
        super().request(*args, **kwargs)

    def send(self, data: Any) -> None:
        """Sends bytes, and counts those accepted by the system."""
        with memoryview(data) as view:
            for begin in range(0, len(view), _PIECE_BYTES):
                piece = view[begin : begin + _PIECE_BYTES]
                super().send(piece)
                _current.get().add(len(piece))


class _TlsConnection(_Connection, HTTPSConnection):
    """The same with TLS."""


class _Pool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


_POOLS = {"http": _Pool, "https": _TlsPool}


class _Deadline:
    """The deadline of the request being made.

    Attributes:
        connection: The connection of the request.
    """

    def __init__(self, seconds: float):
        self._seconds, self._bytes = seconds, 0
        self._at = time.monotonic() + seconds
        self.connection: HTTPConnection | None = None

    @property
    def left_seconds(self) -> float:
        """The time left."""
        return self._at - time.monotonic()

    def add(self, count_bytes: int) -> None:
        """Counts bytes sent or received; raises TimeoutError if they took too long.

        The time starts again with every 256 KiB.
        """
        self._bytes += count_bytes
        if self._bytes >= _PIECE_BYTES:
            self._bytes = 0
            self._at = time.monotonic() + self._seconds
        elif self.left_seconds <= 0:
            raise TimeoutError("the request took too long")

    def limit_wait(self) -> None:
        """Limits the next wait for the connection to the time left."""
        # A connection that is used once has given its socket to the answer.
        connected = None if self.connection is None else self.connection.sock
        if connected is not None:
            connected.settimeout(max(self.left_seconds, _SHORTEST_WAIT_SECONDS))


_current: contextvars.ContextVar[_Deadline] = contextvars.ContextVar("deadline")


_SHOWN_CHARS = 120
_ANY_URL = "https://storage.googleapis.com/"
_REDIRECTS = 2  # The service sends none; a proxy's leads to a page that can be shown.


class GcsSession(AuthorizedSession):
    """The session of the client library; also for requests made without it.

    Requests for tokens have a deadline like all others. An answer that does not come
    from Cloud Storage, such as a proxy's page, is an error that a retry may cure.

    Args:
        credentials: Credentials of google-auth.
        timeout_seconds: See `TimedAdapter`.
    """

    def __init__(self, credentials: Any, *, timeout_seconds: float):
        adapter = TimedAdapter(seconds=timeout_seconds)
        tokens = requests.Session()
        super().__init__(  # type: ignore[no-untyped-call]
            credentials, auth_request=Request(tokens)
        )
        self.max_redirects = tokens.max_redirects = _REDIRECTS
        for session in (self, tokens):
            session.mount("https://", adapter)
            session.mount("http://", adapter)
            session.auth = _as_it_is  # Otherwise a ~/.netrc would replace the token.
        self._environment: dict[tuple[str, str], dict[str, Any]] = {}
        self._token_lock = threading.Lock()

    def merge_environment_settings(
        self, url: Any, proxies: Any, stream: Any, verify: Any, cert: Any
    ) -> dict[str, Any]:
        """Returns the proxies and certificates that the environment names for a URL.

        They are looked up once for each host: requests looks through all variables
        each time, which is a quarter of the work of a request.
        """
        merge = super().merge_environment_settings
        if proxies or verify is not None or cert is not None:
            return merge(url, proxies, stream, verify, cert)
        place = urlsplit(url)[:2]
        found = self._environment.get(place)
        if found is None:
            found = self._environment[place] = merge(url, {}, None, None, None)
        return {**found, "stream": self.stream if stream is None else stream}

    def prepare_request(self, request: requests.Request) -> requests.PreparedRequest:
        """Returns a request ready to be sent.

        A plain GET is sent as it is: requests would merge and encode settings that it
        does not have, a fifth of the work of a request.
        """
        url = request.url
        more = (
            *(request.params, request.data, request.json, request.files),
            *(request.auth, request.cookies, self.cookies),
        )
        plain = isinstance(url, str) and url.isascii() and not any(more)
        if request.method != "GET" or not plain:
            return super().prepare_request(request)
        prepared = requests.PreparedRequest()
        prepared.method, prepared.url = "GET", str(url)
        prepared.hooks = request.hooks
        prepared.headers = CaseInsensitiveDict(self.headers)
        prepared.headers.update(request.headers)
        prepared._cookies = RequestsCookieJar()
        return prepared

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        """Sends a request and returns the answer.

        Raises:
            requests.ConnectionError: The answer does not come from Cloud Storage.
            requests.RequestException: There is no answer.
            GoogleAuthError: There is no token.
        """
        with _transport_errors():
            response: requests.Response = super().request(*args, **kwargs)  # type: ignore[no-untyped-call]
        _check(response)
        return response

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
        with self._token_lock:
            # Another thread may have replaced this token.
            if refused and refused == f"Bearer {credentials.token}":
                with _transport_errors():
                    credentials.refresh(self._auth_request)
            try:
                with _transport_errors():
                    credentials.before_request(
                        self._auth_request, "GET", _ANY_URL, headers
                    )
            except TransportError:
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


@contextlib.contextmanager
def _transport_errors() -> Iterator[None]:
    """Raises errors that a retry may cure unwrapped."""
    try:
        yield
    except RefreshError as e:
        if e.args and isinstance(e.args[0], TransportError):
            raise e.args[0] from e
        raise


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
    document = _json(response)
    items = _member(document, "items", [])
    if not isinstance(document, dict) or not isinstance(items, list):
        raise _strange(response)
    if not all(isinstance(_member(item, "name"), str) for item in items):
        raise _strange(response)


def _json(response: requests.Response) -> Any:
    """Returns the object in a JSON body, None for other bodies."""
    try:
        return response.json()
    except (ValueError, RecursionError):
        return None


def _member(document: Any, name: str, default: Any = None) -> Any:
    return document.get(name, default) if isinstance(document, dict) else default


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
