"""A small Google Cloud Storage on loopback: its JSON API over HTTP, with faults."""

import collections
import contextlib
import dataclasses
import http.server
import json
import socket
import struct
import threading
import time
import weakref

from tests.servers.gcs_objects import Objects, RefusalError, Reply, json_reply
from tests.servers.gcs_requests import Request, carry_out, parse

CONTROL_PATH = "/control"  # For tests that have the server in another process.


@dataclasses.dataclass
class Fault:
    """What goes wrong with some requests.

    Attributes:
        kind: A status (`"503"`) instead of the answer; `reset` of the connection
            before it; `lost`, the answer of a request that was carried out; `cut`, half
            of the body and the end of the connection; `short`, half of the body with
            a Content-Length to match; `stall`, half of the body and then nothing;
            `redirect`, to the same place;
            `part`, a piece of an upload of which `after_bytes` are kept; `forget`, an
            upload of which nothing is kept any more; `gone`, the end of its session;
            `drip`, the body a byte every `seconds`; `other`, `answer` instead of its
            own; `raw`, the bytes `raw` instead of it, and the end of the connection;
            `slow`, an answer that takes `seconds` more; `flip`, one bit of the content
            that is sent or received;
            `replace` or `remove`, what happens to the object before it; `hold`, a
            request that waits until `release` is set; `down`, the end of the server.
        operation: `list`, `stat`, `media`, `insert`, `start` or `chunk` (of a resumable
            upload), `delete`, `bucket`, `permissions`; any if empty.
        name: Part of the object's name.
        times: How many requests it hits.
        skip: How many it lets pass before.
        after_bytes: How much of a body `cut`, `short` and `stall` send, by default
            half of it; how much of a piece of an upload is kept.
        message: Of the error, for a status.
        headers: Of the answer, for a status and for a part.
        seconds: Of a slow answer, or of each byte of one that drips.
        answer: Status, Content-Type and body of one that is not this server's: by
            default what a proxy says.
        raw: Bytes of any kind.
        lasts_seconds: How long after its first hit it goes on; 0 for no bound.
    """

    kind: str
    operation: str = ""
    name: str = ""
    times: int = 1
    skip: int = 0
    after_bytes: int = -1
    message: str = "made to fail"
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 1.0
    answer: tuple[int, str, str] = (200, "text/html", "<!DOCTYPE html>\n<p>Sign in")
    raw: bytes = b""
    lasts_seconds: float = 0.0
    began: float = 0.0

    def hits(self, operation, name):
        if self.operation not in ("", operation) or self.name not in name:
            return False
        if self.skip or not self.times:
            self.skip = max(self.skip - 1, 0)
            return False
        self.began = self.began or time.monotonic()
        if 0 < self.lasts_seconds < time.monotonic() - self.began:
            self.times = 0
            return False
        self.times -= 1
        return True


class GcsServer:
    """The server; use it in a `with` statement.

    Attributes:
        objects: What it stores.
        faults: What goes wrong; of those that fit a request, the first.
        requests: How many there were, by operation.
        log: (operation, object name, Range header) of every request.
        connections: How many were made.
        sent_bytes: Of bodies of objects.
        latency_seconds: Added to every answer.
        held: Set when a request waits.
        release: Set it to let it go on.
        demand: Called with the headers of each request; it may raise RefusalError.
    """

    def __init__(self, *buckets):
        self.objects = Objects(*buckets)
        self.faults = []
        self.requests = collections.Counter()
        self.log = []
        self.sent_bytes = self.connections = 0
        self.latency_seconds = 0.0
        self.closing = threading.Event()
        self.held = threading.Event()
        self.release = threading.Event()
        self.demand = lambda headers: None
        self._handler = type("Handler", (_Handler,), {"store": self})
        self._http = _HttpServer(("127.0.0.1", 0), self._handler)
        host, port = self._http.server_address
        self.url = self.objects.url = f"http://{host}:{port}"

    def __enter__(self):
        serve = self._http.serve_forever
        threading.Thread(target=serve, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *error):
        self.go_down()
        # Each is a thread here, which would keep all objects for as long as its client
        # keeps the connection.
        self._http.hang_up()

    def go_down(self):
        """Refuses connections and ends those that there are."""
        self.closing.set()
        self.release.set()
        self._http.shutdown()
        self._http.server_close()

    def come_up(self):
        """Listens again, at the same address and with the same objects."""
        self.closing.clear()
        self.release.clear()
        self._http = _HttpServer(self._http.server_address, self._handler)
        self.__enter__()

    def fail(self, kind, operation="", **options):
        """Adds a fault; see `Fault`."""
        self.faults.append(Fault(kind, operation, **options))

    def control(self, orders):
        """Follows orders from another process, and answers with what was counted.

        Args:
            orders: Attributes to `set`, `clear` to forget counts.
        """
        with self.objects.lock:
            counted = json_reply({"requests": dict(self.requests)})
            if orders.get("clear"):
                self.requests.clear()
                self.log.clear()
            for name, value in orders.get("set", {}).items():
                setattr(self, name, value)
        return counted

    def fault_of(self, request, sent_range):
        """Counts a request and says what goes wrong with it: nothing, if no kind."""
        operation, name = request.operation, request.name
        with self.objects.lock:
            self.requests[operation] += 1
            self.log.append((operation, name, sent_range))
            hits = (fault for fault in self.faults if fault.hits(operation, name))
            return next(hits, Fault(""))


class _HttpServer(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._open = weakref.WeakSet()

    def process_request(self, request, client_address):
        self._open.add(request)
        super().process_request(request, client_address)

    def hang_up(self):
        """Ends all connections."""
        for connection in list(self._open):
            with contextlib.suppress(OSError):  # It has ended already.
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address):
        """Says nothing: clients that hang up are part of the tests."""


class _Handler(http.server.BaseHTTPRequestHandler):
    store: GcsServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # Header and body leave together.

    def setup(self):
        super().setup()
        self.store.connections += 1

    def log_message(self, format, *args):
        """Says nothing."""

    def do_GET(self):
        request = self._parse()
        if request.operation == "control":
            self._send(self.store.control(json.loads(request.data)), Fault(""))
            return
        fault = self.store.fault_of(request, self.headers.get("Range", ""))
        self._meanwhile(request, fault)
        if fault.kind == "reset" or self.store.closing.is_set():
            self._reset()
            return
        if fault.kind == "raw":
            self.wfile.write(fault.raw)
            self.close_connection = True
            return
        if fault.kind == "flip" and request.data:
            request, fault = request._replace(data=_flipped(request.data)), Fault("")
        try:
            self.store.demand(request.headers)
            reply = self._reply(request, fault)
        except RefusalError as refusal:
            reply = refusal.reply
        if request.operation == "media":
            self.store.sent_bytes += len(reply.body)
        self._send(reply, fault)

    def _meanwhile(self, request, fault):
        """Does what a fault does before the request is carried out."""
        store = self.store
        time.sleep(store.latency_seconds)
        if fault.kind == "slow":
            store.closing.wait(fault.seconds)
        elif fault.kind == "hold":
            store.held.set()
            store.release.wait(60)
        elif fault.kind == "down":
            store.go_down()
        elif fault.kind in ("replace", "remove"):
            store.objects.tamper(request.bucket, request.name, fault.kind)

    def _reply(self, request, fault):
        """Carries out a request, or what a fault does instead."""
        objects = self.store.objects
        if fault.kind in ("forget", "gone"):
            key = request.query["upload_id"]
            return objects.lose(key, all_of_it=fault.kind == "gone")
        if request.operation == "chunk" and fault.after_bytes >= 0:
            keep = request._replace(about={"keep_bytes": fault.after_bytes})
            reply = carry_out(objects, keep, self.store.url)
            if fault.kind == "part":
                return reply._replace(headers=reply.headers | fault.headers)
        if fault.kind == "redirect":
            raise RefusalError(307, "elsewhere", Location=self.path)
        if fault.kind.isdigit():
            raise RefusalError(int(fault.kind), fault.message, **fault.headers)
        if fault.kind == "other":
            status, kind, text = fault.answer
            return Reply(status, {"Content-Type": kind}, text.encode())
        return carry_out(objects, request, self.store.url)

    do_POST = do_PUT = do_DELETE = do_HEAD = do_GET  # noqa: N815

    def _parse(self):
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == CONTROL_PATH:
            return Request("control", "", self.path, {}, {}, data, {})
        headers = dict(self.headers.items())
        return parse(self.command, self.path, headers, data, self.store.objects)

    def _send(self, reply, about):
        fault = about.kind
        if fault == "lost":
            self._reset()
            return
        body, length = reply.body, len(reply.body)
        if fault in ("cut", "short", "stall"):
            after = about.after_bytes if about.after_bytes >= 0 else length // 2
            body = body[: min(after, max(length - 1, 0))]
        elif fault == "flip" and body:
            body = _flipped(body)
        self.send_response_only(reply.status)
        if "Date" not in reply.headers:
            self.send_header("Date", self.date_time_string())
        for field, value in reply.headers.items():
            self.send_header(field, value)
        if reply.status != 204:
            shown = len(body) if fault == "short" else length
            self.send_header("Content-Length", str(shown))
        self.end_headers()
        if self.command == "HEAD":
            body = b""
        if fault == "drip":
            self._drip(body, about.seconds)
        else:
            self.wfile.write(body)
        self.wfile.flush()
        if fault == "stall":
            self.store.closing.wait(60)
        if fault in ("cut", "stall"):
            self._reset()

    def _drip(self, data, seconds):
        for byte in data:
            self.wfile.write(bytes([byte]))
            self.wfile.flush()
            if self.store.closing.wait(seconds):
                break
        self.close_connection = True

    def _reset(self):
        """Ends the connection as a crash does."""
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.shutdown(socket.SHUT_RD)
        self.close_connection = True


def _flipped(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
