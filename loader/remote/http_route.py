"""The route to a server: its addresses, a proxy, the certificates to trust."""

from __future__ import annotations

import base64
import functools
import itertools
import os
import socket
import ssl
import time
import urllib.parse
from concurrent.futures import Future
from typing import Any

from gristmill.dataset.base.daemon_call import daemon_call
from gristmill.dataset.base.errors import StorageError

_LONGEST_SECONDS = 3600.0
_PORTS = {"http": 80, "https": 443}


class Route:
    """The route to one server. Proxies and certificates are those of writes.

    Args:
        url: URL of the server, such as `https://storage.googleapis.com`.
        timeout_seconds: Limit of the wait for its addresses.
        addresses_seconds: How long addresses are used before another lookup.
        problem_seconds: Pause before another lookup of missing addresses.

    Attributes:
        tls: TLS context; None without TLS.
        name: Name of the server.
        host: Value of the header `Host`.
        prefix: Prefix of the path in a request: for a proxy, the whole server part of
            the URL.
        proxy_headers: Headers that a proxy asks for, in each request without TLS.
        tunnel: The request for a tunnel through a proxy; empty without one.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_seconds: float,
        addresses_seconds: float = 60.0,
        problem_seconds: float = 1.0,
    ):
        parts = urllib.parse.urlsplit(url)
        self.name, self.host = parts.hostname or "", parts.netloc
        port = parts.port or _PORTS.get(parts.scheme, 0)
        self._timeout_seconds, self._problem_seconds = timeout_seconds, problem_seconds
        self._addresses_seconds = addresses_seconds
        self._place = (self.name, port)
        self._addresses: list[Any] = []
        self._turn = itertools.count()
        self._lookup: Future[Any] | None = None
        self._patience_until, self._settled_until = 0.0, float("-inf")
        self._problem = "the server has no address"
        self.prefix = parts.path.rstrip("/")
        self.proxy_headers, self.tunnel = "", b""
        settings = _environment_of(url)
        self.tls = _tls(settings) if parts.scheme == "https" else None
        self._use_proxy(settings["proxies"], url, port)

    def _use_proxy(self, proxies: Any, url: str, port: int) -> None:
        import requests.utils

        proxy = requests.utils.select_proxy(url, proxies)
        if not proxy:
            return
        parts = _parts_of(proxy, self.host)
        self._place = (parts.hostname or "", parts.port or _PORTS["http"])
        if parts.username is not None:
            user = urllib.parse.unquote(f"{parts.username}:{parts.password or ''}")
            token = base64.b64encode(user.encode()).decode()
            self.proxy_headers = f"Proxy-Authorization: Basic {token}\r\n"
        if self.tls is None:
            self.prefix = f"http://{self.host}{self.prefix}"
            return
        name = f"[{self.name}]" if ":" in self.name else self.name
        self.tunnel = (
            f"CONNECT {name}:{port} HTTP/1.1\r\nHost: {name}:{port}\r\n"
            f"{self.proxy_headers}\r\n"
        ).encode()
        self.proxy_headers = ""

    def connect(self) -> socket.socket:
        """Returns a socket that does not block, and begins to connect.

        Each call takes the next address of the server. Raises OSError if it has none
        or none can be reached.
        """
        addresses = self._find()
        error: OSError = OSError(self._problem)
        # If there are both kinds, IPv4 usually works.
        usual = [entry for entry in addresses if entry[0] == socket.AF_INET]
        others = [entry for entry in addresses if entry[0] != socket.AF_INET]
        turn = next(self._turn)
        for family, _, _, _, address in _from(usual, turn) + _from(others, turn):
            found = socket.socket(family, socket.SOCK_STREAM)
            try:
                found.setblocking(False)
                found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                found.connect(address)
            except BlockingIOError:
                return found
            except OSError as e:  # For example, no route to addresses of this kind.
                found.close()
                error = e
            except BaseException:
                found.close()
                raise
            else:
                return found
        raise error

    def _find(self) -> list[Any]:
        """Returns the addresses: the old ones while they are looked up again."""
        if time.monotonic() >= self._settled_until:
            self._look()
        return self._addresses

    def _look(self) -> None:
        name, port = self._place
        # The system's library has no time limit.
        lookup = self._lookup
        if lookup is None:
            lookup = self._lookup = daemon_call(
                lambda: socket.getaddrinfo(name, port, type=socket.SOCK_STREAM),
                thread_name="gristmill-addresses",
            )
            self._patience_until = time.monotonic() + self._timeout_seconds
        left = 0.0 if self._addresses else self._patience_until - time.monotonic()
        try:
            self._addresses = lookup.result(min(max(left, 0.0), _LONGEST_SECONDS))
        except TimeoutError:
            # The lookup continues. The next caller does not wait as long again.
            self._problem = (
                f"no address of {name} in {self._timeout_seconds:,.4g} seconds"
            )
            return
        except (OSError, UnicodeError) as e:
            self._problem = f"cannot find {name}: {e}"
            self._settled_until = time.monotonic() + self._problem_seconds
        else:
            self._settled_until = time.monotonic() + self._addresses_seconds
        self._lookup = None


def _from(entries: list[Any], turn: int) -> list[Any]:
    """Returns the entries, rotated by one more place at each call."""
    begin = turn % max(len(entries), 1)
    return entries[begin:] + entries[:begin]


def _parts_of(proxy: str, server: str) -> urllib.parse.SplitResult:
    """Returns the parts of the address of a proxy."""
    try:
        parts = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        if parts.scheme == "http" and parts.hostname and parts.port != 0:
            return parts
        got = f"{parts.scheme}://{parts.hostname}"
    except ValueError:  # Errors of brackets and ports. The text may show a password.
        got = "an address that cannot be read"
    raise StorageError(
        "cannot read the bucket through this kind of proxy",
        where=server,
        expected="the address of a proxy such as http://proxy:3128",
        got=got,
        cure="set HTTPS_PROXY to an HTTP proxy, or name the server in NO_PROXY",
    )


def _environment_of(url: str) -> dict[str, Any]:
    """Returns the proxies and certificates that the environment names for a URL."""
    import requests

    with requests.Session() as session:
        settings: Any = session.merge_environment_settings(url, {}, None, None, None)
    return dict(settings)


def _tls(settings: dict[str, Any]) -> ssl.SSLContext:
    from requests.utils import DEFAULT_CA_BUNDLE_PATH

    trusted = settings["verify"]
    return _context(trusted if isinstance(trusted, str) else DEFAULT_CA_BUNDLE_PATH)


@functools.lru_cache(maxsize=4)
def _context(trusted: str) -> ssl.SSLContext:
    try:
        if os.path.isdir(trusted):
            return ssl.create_default_context(capath=trusted)
        return ssl.create_default_context(cafile=trusted)
    except OSError as e:
        raise StorageError(
            "cannot read the certificates to trust",
            where=trusted,
            got=str(e),
            cure="let REQUESTS_CA_BUNDLE name a file of certificates, or leave it out",
        ) from e
