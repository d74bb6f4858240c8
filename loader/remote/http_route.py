"""The route to a server: a proxy, and the certificates to trust."""

from __future__ import annotations

import functools
import os
import socket
import ssl
import urllib.parse

import requests
import requests.utils
from requests.utils import DEFAULT_CA_BUNDLE_PATH
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError
from urllib3.util import make_headers

from gristmill.dataset.base.errors import StorageError

_PORTS = {"http": 80, "https": 443}


class Route:
    """The route to one server. It uses the same proxies and certificates as writes.

    Args:
        url: URL of the server, such as `https://storage.googleapis.com`.

    Attributes:
        host: Value of the header `Host`.
        prefix: Prefix of the path in a request: for a proxy, the whole server part of
            the URL.
        proxy_headers: Headers that a proxy asks for, in each request without TLS.
    """

    def __init__(self, url: str):
        parts = urllib.parse.urlsplit(url)
        self.host, self.prefix = parts.netloc, parts.path.rstrip("/")
        self.proxy_headers = ""
        port = parts.port or _PORTS.get(parts.scheme, 0)
        self._place = self._server = (parts.hostname or "", port)
        self._tunnel: dict[str, str] | None = None
        with requests.Session() as session:
            # What the environment names.
            settings = session.merge_environment_settings(url, {}, None, None, None)
        secure = parts.scheme == "https"
        self._tls = _trusting(settings["verify"]) if secure else None
        proxy = requests.utils.select_proxy(url, settings["proxies"])
        if not proxy:
            return
        by = _parts_of(proxy, self.host)
        self._place = (by.hostname or "", by.port or 80)
        headers = {}
        if by.username is not None:
            user = ":".join(requests.utils.get_auth_from_url(by.geturl()))
            headers = make_headers(proxy_basic_auth=user)
        if secure:
            self._tunnel = headers
        else:
            self.prefix = f"http://{self.host}{self.prefix}"
            lines = (f"{name}: {value}\r\n" for name, value in headers.items())
            self.proxy_headers = "".join(lines)

    def connect(self, timeout_seconds: float) -> socket.socket:
        """Returns a connection that is ready for requests and does not block.

        Raises OSError if the server cannot be reached.
        """
        made = HTTPConnection(*self._place)
        if self._tls is not None:
            made = HTTPSConnection(*self._place, ssl_context=self._tls)
            if self._tunnel is not None:
                made.set_tunnel(*self._server, headers=self._tunnel)
        made.timeout = timeout_seconds
        try:
            made.connect()
        except HTTPError as e:
            raise OSError(str(e)) from e
        found: socket.socket = made.sock
        made.sock = None  # It would be closed with what made it.
        found.setblocking(False)
        return found


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


@functools.lru_cache(maxsize=4)
def _trusting(verify: object) -> ssl.SSLContext:
    """Returns the context of TLS that trusts some certificates."""
    trusted = verify if isinstance(verify, str) else DEFAULT_CA_BUNDLE_PATH
    folder = trusted if os.path.isdir(trusted) else None
    try:
        return ssl.create_default_context(
            cafile=None if folder else trusted, capath=folder
        )
    except OSError as e:
        raise StorageError(
            "cannot read the certificates to trust",
            where=trusted,
            got=str(e),
            cure="let REQUESTS_CA_BUNDLE name a file of certificates, or leave it out",
        ) from e
