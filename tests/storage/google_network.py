"""Google's names on loopback: Cloud Storage with TLS, tokens, a proxy before it."""

import contextlib
import datetime
import http.server
import json
import socket
import socketserver
import ssl
import threading

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.servers.gcs_objects import RefusalError
from tests.servers.gcs_server import GcsServer

NAME = "storage.googleapis.com"


@contextlib.contextmanager
def listening(talk):
    """Talks to everyone who connects, until they hang up; yields the address."""

    def serve(connection):
        with connection, contextlib.suppress(OSError):
            talk(connection)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                given = server.accept()[:1]
                threading.Thread(target=serve, args=given, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=16) as server:
        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)


def request_on(connection):
    """Receives a request without a body."""
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        data = connection.recv(4096)
        if not data:
            raise ConnectionError
        received += data
    return received


class GoogleNetwork:
    """What a machine behind a proxy sees of Google; use it in a `with` statement.

    The environment of this process leads to it: key file, certificates, proxy.

    Attributes:
        server: Cloud Storage, which takes valid tokens only.
        tokens: Those that were given.
        valid: Those that are taken.
        lifetime_seconds: Of a token.
        asked: How often a token was asked for.
        drips: How many answers with a token trickle.
        refuses: Whether no token is given.
        pays: The project that pays for requests; "" if the bucket's own does.
        tunnels: What the proxy was asked for.
    """

    def __init__(self, folder, monkeypatch, *buckets):
        self.server = GcsServer(*buckets)
        self.tokens = []
        self.valid = set()
        self.lifetime_seconds = 3600
        self.asked, self.drips, self.refuses = 0, 0, False
        self.pays = ""
        self.tunnels = []
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        certificate = folder / "certificate.pem"
        certificate.write_bytes(pem + _certificate_of(key))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        listening = self.server._http
        listening.socket = context.wrap_socket(
            listening.socket, server_side=True, do_handshake_on_connect=False
        )
        self.server.demand = self._demand
        handler = type("Handler", (_Tokens,), {"network": self})
        self._http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        tunnel = type("Tunnel", (_Tunnel,), {"network": self})
        self._proxy = socketserver.ThreadingTCPServer(("127.0.0.1", 0), tunnel)
        self._proxy.daemon_threads = self._http.daemon_threads = True
        account = {
            "type": "service_account",
            "project_id": "p",
            "private_key": pem.decode(),
            "client_email": "it@p.iam.gserviceaccount.com",
            "token_uri": f"http://127.0.0.1:{self._http.server_address[1]}/token",
        }
        (folder / "key.json").write_text(json.dumps(account))
        monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
        for name, value in {
            "GOOGLE_APPLICATION_CREDENTIALS": folder / "key.json",
            "REQUESTS_CA_BUNDLE": certificate,
            "HTTPS_PROXY": f"http://127.0.0.1:{self._proxy.server_address[1]}",
            "NO_PROXY": "127.0.0.1",
        }.items():
            monkeypatch.setenv(name, str(value))

    def __enter__(self):
        for server in (self._http, self._proxy):
            threading.Thread(
                target=server.serve_forever, args=(0.02,), daemon=True
            ).start()
        self.server.__enter__()
        return self

    def __exit__(self, *error):
        self.server.__exit__()
        self.stop_tokens()
        self._proxy.shutdown()
        self._proxy.server_close()

    def give_token(self):
        """Returns a new token, which is valid."""
        token = f"token-{len(self.tokens) + 1}"
        self.tokens.append(token)
        self.valid.add(token)
        return token

    def stop_tokens(self):
        """Ends the server of tokens: no others are given."""
        self._http.shutdown()
        self._http.server_close()

    def _demand(self, headers):
        if headers.get("authorization", "").removeprefix("Bearer ") not in self.valid:
            raise RefusalError(401, "Invalid Credentials")
        if self.pays and headers.get("x-goog-user-project") != self.pays:
            raise RefusalError(400, "Bucket is a requester pays bucket but no user pr")


class _Tokens(http.server.BaseHTTPRequestHandler):
    network: GoogleNetwork

    def log_message(self, format, *args):
        """Says nothing."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        network = self.network
        network.asked += 1
        about = {"expires_in": network.lifetime_seconds, "token_type": "Bearer"}
        if not network.refuses:
            about["access_token"] = network.give_token()
        data = json.dumps(about).encode()
        self.send_response(400 if network.refuses else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if network.drips:
            network.drips -= 1
            for byte in data:
                self.wfile.write(bytes([byte]))
                threading.Event().wait(0.5)
        else:
            self.wfile.write(data)


class _Tunnel(socketserver.StreamRequestHandler):
    network: GoogleNetwork

    def handle(self):
        words = self.rfile.readline().decode().split()
        while self.rfile.readline().strip():
            pass
        self.network.tunnels.append(" ".join(words[:2]))
        if words[:2] != ["CONNECT", f"{NAME}:443"]:
            self.wfile.write(b"HTTP/1.1 403 Not here\r\n\r\n")
            return
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\nVia: x\r\n\r\n")
        storage = self.network.server._http.server_address
        with socket.create_connection(storage) as server:
            pair = (self.connection, server)
            back = threading.Thread(target=_pump, args=pair[::-1], daemon=True)
            back.start()
            _pump(*pair)
            back.join()


def _pump(source, target):
    try:
        while data := source.recv(1 << 16):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # One of them hung up.


def _certificate_of(key):
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, NAME)])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder(
            issuer_name=name,
            subject_name=name,
            public_key=key.public_key(),
            serial_number=1,
            not_valid_before=now - day,
            not_valid_after=now + day,
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM)
