"""Requests to Google Cloud Storage with deadlines, credentials and checked answers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import requests
from google.api_core import exceptions as api
from google.auth.credentials import TokenState
from google.auth.exceptions import RefreshError, TransportError
from google.auth.transport.requests import AuthorizedSession, Request
from requests.cookies import RequestsCookieJar
from requests.structures import CaseInsensitiveDict

from gristmill.dataset.base.errors import StorageError
from gristmill.dataset.storage.timed_http import TimedAdapter

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
