"""Serves the page to a browser of this machine."""

from __future__ import annotations

import contextlib
import http.server
import json
import logging
import secrets
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import Any

from gristmill.dataset.base.errors import GristmillError, InputError, StorageError
from gristmill.dataset.base.lazy_names import packages_named
from gristmill.dataset.base.system_limits import limits_named
from gristmill.pipelines.view.answers.addresses import ask, error_answer, status_of
from gristmill.pipelines.view.answers.opened_datasets import Opened

_log = logging.getLogger(__name__)
_HOST = "127.0.0.1"
_NAMES = (_HOST, "localhost", "[::1]")
"""Names by which a browser of this machine, or the end of a tunnel, may ask."""
_TOKEN_BYTES = 16
_STRANGERS = 32
"""Connections at a time that have not said the token; the oldest makes room."""
_STRANGER_SECONDS = 10
_USER_SECONDS = 600
"""How long a connection may say nothing."""
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class PageServer(http.server.ThreadingHTTPServer):
    """A server on a port of this machine alone, for those who know its address.

    Other users of the machine reach the port as well: the address begins with a token
    that cannot be guessed, and without it there is nothing.

    Args:
        opened: The datasets to answer about.
        page: Returns the page.
        port: The port; 0 for a free one.

    Attributes:
        opened: As given.
        page: As given.
        token: What all addresses of the page begin with.

    Raises:
        InputError: The port cannot be used.
    """

    daemon_threads = True
    block_on_close = False  # Ctrl-C does not wait for answers.

    def __init__(self, opened: Opened, page: Callable[[], bytes], *, port: int = 0):
        self.opened, self.page = opened, page
        self.token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._once: set[str] = set()
        self._lock = threading.Lock()
        self._strangers: dict[Any, None] = {}  # Sockets, the oldest first.
        try:
            super().__init__((_HOST, port), _Handler)
        except (OSError, OverflowError) as e:
            raise InputError(
                "the port cannot be used",
                where=f"{_HOST}:{port}",
                got=e,
                cure="give another --port, or leave it out for a free one",
            ) from e

    def server_bind(self) -> None:
        """Binds the socket, without asking a name server for the machine's name."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = _HOST, self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answers a connection in a thread; of those without a token, few at a time."""
        with self._lock:
            self._strangers[request] = None
            oldest = next(iter(self._strangers))
            if len(self._strangers) > _STRANGERS:
                del self._strangers[oldest]
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Closes a connection."""
        self.admitted(request)
        super().shutdown_request(request)

    def admitted(self, request: Any) -> None:
        """Notes that a connection is none of a stranger's, or is closed."""
        with self._lock:
            self._strangers.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Says nothing where a browser went away; logs what else went wrong."""
        if not isinstance(sys.exception(), ConnectionError):
            _log.exception("a request of %s failed", client_address)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{_HOST}:{self.server_port}/{self.token}/"

    def url_once(self) -> str:
        """Returns an address that leads to the page once, for a command line.

        All users of a machine see the command lines of its processes.
        """
        once = secrets.token_urlsafe(_TOKEN_BYTES)
        self._once.add(once)
        return f"http://{_HOST}:{self.server_port}/{once}"

    def admits(self, token: str) -> bool:
        """Returns whether an address begins with what only its user was told."""
        if secrets.compare_digest(token.encode(), self.token.encode()):
            return True
        try:
            self._once.remove(token)
        except KeyError:
            return False
        return True


class _Handler(http.server.BaseHTTPRequestHandler):
    """Answers GET of the page and of what it asks for; nothing else is there."""

    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "gristmill", ""
    timeout = _STRANGER_SECONDS

    def do_GET(self) -> None:
        """Sends the page, an answer or an error."""
        token, slash, address = self.path.removeprefix("/").partition("/")
        if not self.server.admits(token):
            closed = {"Connection": "close"}
            self._send(b"Not found\n", "text/plain", HTTPStatus.NOT_FOUND, closed)
            return
        self.server.admitted(self.request)
        self.connection.settimeout(_USER_SECONDS)
        if not self._is_local():
            error = InputError(
                "the page is for browsers of this machine",
                expected=f"a Host of {', '.join(_NAMES)}",
                got=self.headers.get("Host"),
                cure=f"open {self.server.url}",
            )
            self._send_json(error_answer(error), HTTPStatus.FORBIDDEN)
        elif not slash:
            # Relative: the port is another one at the other end of a tunnel.
            to = {"Location": f"/{self.server.token}/"}
            self._send(b"", "text/plain", HTTPStatus.SEE_OTHER, to)
        elif not address.partition("?")[0]:
            self._send(self.server.page(), "text/html; charset=utf-8")
        else:
            status, answer = answered(self.server.opened, address)
            self._send_json(answer, status)

    def _is_local(self) -> bool:
        """Returns whether the request names this machine, and not one that points here.

        A page of another site whose name server says 127.0.0.1 could read the answers.
        """
        hosts = self.headers.get_all("Host") or []
        return len(hosts) == 1 and _without_port(hosts[0]) in _NAMES

    def _send_json(self, answer: Mapping[str, Any], status: int) -> None:
        data = json.dumps(answer, allow_nan=False).encode("ascii")
        self._send(data, "application/json", status)

    def _send(
        self,
        data: bytes,
        content_type: str,
        status: int = HTTPStatus.OK,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        for name, value in (_HEADERS | dict(headers or {})).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs no requests: their addresses have the token."""


def answered(opened: Opened, address: str) -> tuple[int, dict[str, Any]]:
    """Returns the HTTP status and the answer of an address, also of a wrong one."""
    try:
        with packages_named(), limits_named():
            return HTTPStatus.OK, ask(opened, address)
    except GristmillError as e:
        return status_of(e), error_answer(e)
    except OSError as e:
        error = StorageError(
            "a file cannot be read",
            where=None if e.filename is None else str(e.filename),
            got=e.strerror or e,
            cure="see that it is there, and that this user may read it",
        )
        return status_of(error), error_answer(error)
    except Exception as e:  # The server continues, and the page says that it is a bug.
        _log.exception("%s cannot be answered", address)
        failed = GristmillError(
            "this cannot be answered",
            where=address,
            got=f"{type(e).__name__}: {e}",
            cure="please report it, with what gristmill view printed",
        )
        return HTTPStatus.INTERNAL_SERVER_ERROR, error_answer(failed)


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() else host
