"""A metadata server of Google Cloud on loopback, which also gives tokens for keys."""

from __future__ import annotations

import http.server
import json
import threading
from typing import Any

_SCOPES = "https://www.googleapis.com/auth/"


class MetadataServer:
    """The server; use it in a `with` statement.

    Attributes:
        zone: Of the machine.
        scopes: Of its service account, without what they all begin with.
        refusal: What requests for tokens are refused with, "" if they get one.
        released: While it is not set, no request is answered.
        flavor: Whether answers say that they are from a metadata server.
    """

    def __init__(self) -> None:
        self.zone = "us-central1-b"
        self.scopes = ["cloud-platform"]
        self.refusal = ""
        self.released = threading.Event()
        self.released.set()
        self.flavor = "Google"
        handler = type("Handler", (_Handler,), {"server_of": self})
        self._http = _HttpServer(("127.0.0.1", 0), handler)
        self.host = f"127.0.0.1:{self._http.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that lead clients to it, and to no credentials of this user."""
        return {
            "GCE_METADATA_HOST": self.host,
            "GCE_METADATA_IP": self.host,
            "NO_PROXY": "127.0.0.1",
            "NO_GCE_CHECK": "false",
            "CLOUDSDK_CONFIG": "/nonexistent",
            "HOME": "/nonexistent",
        }

    def __enter__(self) -> MetadataServer:
        threading.Thread(
            target=self._http.serve_forever, args=(0.02,), daemon=True
        ).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.released.set()
        self._http.shutdown()
        self._http.server_close()


class _HttpServer(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args: object) -> None:
        """Says nothing: a client did not wait for its answer."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server_of: MetadataServer

    def do_GET(self) -> None:
        server = self.server_of
        server.released.wait()
        path, _, _ = self.path.removeprefix("/computeMetadata/v1/").partition("?")
        account = "instance/service-accounts/default"
        scopes = [f"{_SCOPES}{scope}" for scope in server.scopes]
        answers: dict[str, Any] = {
            "/": "",
            "instance/zone": f"projects/1/zones/{server.zone}",
            "instance/name": "trainer-7",
            f"{account}/scopes": "\n".join(scopes) + "\n",
            f"{account}/": {"email": "pod@p.iam.gserviceaccount.com", "scopes": scopes},
            f"{account}/email": "pod@p.iam.gserviceaccount.com",
            f"{account}/token": {"access_token": "t", "expires_in": 3600},
            "project/project-id": "p",
            "universe/universe-domain": "googleapis.com",
            "universe/universe_domain": "googleapis.com",
        }
        self._reply(200 if path in answers else 404, answers.get(path, "not here"))

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        refusal = self.server_of.refusal
        if refusal:
            document = {"error": "invalid_grant", "error_description": refusal}
            self._reply(400, document)
        else:
            self._reply(200, {"access_token": "t", "expires_in": 3600})

    def _reply(self, status: int, answer: Any) -> None:
        text = isinstance(answer, str)
        data = (answer if text else json.dumps(answer)).encode()
        self.send_response(status)
        self.send_header("Metadata-Flavor", self.server_of.flavor)
        kind = "application/text" if text else "application/json"
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Writes no log."""
