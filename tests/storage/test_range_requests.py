"""Reads of ranges over HTTP: right bytes whatever is answered, or an error of ours."""

from __future__ import annotations

import contextlib
import http
import pathlib
import random
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

import pytest

from gristmill.dataset.base.errors import GristmillError, StorageError
from gristmill.dataset.storage import gcs
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.remote import http_connection
from gristmill.loader.remote.http_connection import Answer, AnswerReader, HttpConnection
from gristmill.loader.remote.http_route import Route
from gristmill.loader.remote.object_reads import ByteRange, ObjectReads
from gristmill.loader.remote.range_fetcher import RangeFetcher
from gristmill.loader.remote.read_options import ReadOptions
from tests.servers.gcs_server import GcsServer
from tests.storage.google_network import GoogleNetwork, listening

DATA = random.Random(7).randbytes(200_000)
SIZE = len(DATA)
BEGIN, END = 1_000, 3_000
OPTIONS = ReadOptions(timeout_seconds=60, deadline_seconds=120, hedge_factor=None)
# Any status that servers, proxies and content networks are known for, and some more.
STATUSES = sorted(
    {int(status) for status in http.HTTPStatus if status >= 200}
    | {299, 306, 309, 399, 419, 420, 430, 440, 444, 449, 450, 460, 463, 494, 495, 498}
    | {499, 509, 520, 521, 522, 523, 524, 525, 526, 527, 529, 530, 561, 598, 599}
    | {600, 777, 999}
)
# They mean what they say.
FINAL = {400, 402, 403, 405, 406, 409, 411, 413, 414, 415, 417, 418, 422, 423, 424}
FINAL |= {426, 428, 431, 451}


def put(server: GcsServer, name: str) -> ByteRange:
    """Stores an object; returns a range of it."""
    version = str(server.objects.put("bucket", name, DATA))
    return ByteRange(f"gs://bucket/{name}", BEGIN, END, version)


def fetch(
    ranges: Sequence[ByteRange], fetcher: RangeFetcher | None = None
) -> RangeFetcher:
    """Fetches ranges and compares their bytes."""
    fetcher, found = fetcher or RangeFetcher(OPTIONS), {}
    fetcher.fetch(ranges, found.__setitem__)
    assert sorted(found) == list(range(len(ranges)))
    for number, wanted in enumerate(ranges):
        assert found[number] == DATA[wanted.begin : wanted.end]
    return fetcher


def answer(status: int, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"HTTP/1.1 {status} X", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


# Answers of all kinds.


@pytest.mark.parametrize("status", [204, 304, 404, 410, 412])
def test_one_answer_that_an_object_is_gone_is_looked_into(
    server: GcsServer, status: int
) -> None:
    wanted = put(server, "a")
    server.fail(str(status), "media")
    fetch([wanted])
    assert server.requests == {"media": 2, "stat": 1}


@pytest.mark.parametrize(
    ("status", "says"),
    [
        ("404", r"(?s)cannot read the object.*HTTP 404: ma"),
        ("401", r"(?s)HTTP 401: made to.*gcloud auth app"),
    ],
)
def test_what_is_there_and_is_never_given_is_an_error(
    server: GcsServer, status: str, says: str
) -> None:
    server.fail(status, "media")
    fetch([put(server, "a")])
    server.fail(status, "media", times=99)
    with pytest.raises(StorageError, match=says):
        fetch([put(server, "b")])
    assert server.requests["media"] <= 6


@pytest.mark.slow
def test_a_server_is_left_alone_as_long_as_it_asks(server: GcsServer) -> None:
    wanted = put(server, "a")
    server.fail("503", "media", headers={"Retry-After": "1"})
    begin = time.monotonic()
    fetch([wanted])
    assert time.monotonic() - begin >= 1
    # But not after the deadline.
    server.fail("429", "media", headers={"Retry-After": "999"})
    begin = time.monotonic()
    fetch([wanted], RangeFetcher(ReadOptions(deadline_seconds=8.0)))
    assert time.monotonic() - begin < 60
    assert server.requests["media"] == 4


def test_other_bytes_than_the_range_are_never_taken(server: GcsServer) -> None:
    right = DATA[BEGIN:END]
    place = f"bytes {BEGIN}-{END - 1}/{SIZE}"
    ranges = []
    for name, (status, headers, body) in {
        "all of it": (200, {}, DATA),
        "a page": (200, {}, b"<p>" + bytes(1997)),
        "a page as a part": (206, {}, b"<p>" + bytes(1997)),
        "another range": (206, {"Content-Range": f"bytes 0-1999/{SIZE}"}, DATA[:2000]),
        "a shorter one": (206, {"Content-Range": place}, b"abc"),
        "two": (206, {"Content-Range": "bytes 0-1/9, bytes 3-4/9"}, right),
        "none": (206, {"Content-Range": f"bytes */{SIZE}"}, right),
        "items": (206, {"Content-Range": place.replace("bytes", "items")}, right),
        "another version": (206, {"X-Goog-Generation": "12"}, right[::-1]),
        "two versions": (206, {"X-Goog-Generation": "1, 2"}, right[::-1]),
        "no version": (206, {"X-Goog-Generation": ""}, right[::-1]),
    }.items():
        wanted = put(server, name)
        good = {"X-Goog-Generation": str(wanted.version)}
        if status == 206 and "Content-Range" not in headers and "page" not in name:
            good["Content-Range"] = place
        headers = good | headers | {"Content-Length": str(len(body))}
        server.fail("raw", "media", name=name, raw=answer(status, headers, body))
        ranges.append(wanted)
    fetch(ranges)
    assert not any(fault.times for fault in server.faults)


def test_connections_are_kept_and_made_anew(server: GcsServer) -> None:
    ranges = [put(server, f"o{number}") for number in range(20)]
    fetcher = RangeFetcher(OPTIONS)
    for wanted in ranges:
        fetch([wanted], fetcher)
    assert server.connections == 1
    # That the server has closed the one that was kept, nobody has to notice.
    server.fail("reset", "media")
    fetch(ranges[:1], fetcher)
    assert (server.connections, fetcher.counts.retries) == (2, 0)
    server.fail("reset", "media", times=2)
    fetch(ranges[:1], fetcher)
    assert (server.connections, fetcher.counts.retries) == (4, 1)


def test_an_emulator_gets_no_token_and_needs_none(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    key = tmp_path / "key.json"
    key.write_text('{"type": "service_account", "private_key": "damaged"')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    seen: list[str] = []
    server.demand = lambda headers: seen.append(headers.get("authorization", "none"))
    for url in (server.url, server.url.removeprefix("http://") + "/"):
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url)
        fetch([put(server, "a")])
    assert seen == ["none", "none"]


# Answers by chance.

_HEADERS = (
    ("Content-Length", ("0", "5", "2000", "1999", "2001", "-1", "x", "9" * 17, "5, 6")),
    ("Transfer-Encoding", ("chunked", "gzip", "identity", "chunked, chunked")),
    ("Content-Encoding", ("gzip", "br", "x")),
    (
        "Content-Range",
        (f"bytes 1000-2999/{SIZE}", "bytes 0-1/2", "bytes */9", "x", ""),
    ),
    ("X-Goog-Generation", ("1", "", "x")),
    ("Retry-After", ("0", "-1", "x", "1e9", "Wed, 21 Oct 2015 07:28:00 GMT", "")),
    ("Content-Type", ("text/html", "application/json", "\xff\xfe")),
    ("Location", ("http://127.0.0.1:9/", "/", "\x00")),
    ("Connection", ("close", "keep-alive", "upgrade")),
    ("X", ("y" * 5_000, "\xe9" * 40)),
)
_BODIES = (
    *(b"", b"<html>Sign in", b'{"error": "m"}', b'{"error": {"message": {"a": [1]}}}'),
    *(b"[" * 3_000, b"\xff\xfe\x00", bytes(2_000), b"5\r\nabcde\r\n0\r\n\r\n"),
    *(DATA[BEGIN:END], DATA[:2_000]),
    b"HTTP/1.1 206 OK\r\nContent-Length: 2000\r\n\r\n" + bytes(2_000),
)


def chance_answer(chance: random.Random) -> tuple[int, bytes]:
    """Returns a status, and an answer with it that nobody has thought of."""
    status = chance.choice([*STATUSES, 206, 206, 200, 101])
    chosen = chance.sample(_HEADERS, chance.randint(0, 5))
    headers = {name: chance.choice(values) for name, values in chosen}
    body = chance.choice(_BODIES)
    if chance.random() < 0.5:
        headers["Content-Length"] = str(len(body))
    raw = bytearray(answer(status, headers, body))
    for _ in range(chance.choice((0, 0, 0, 1, 3))):
        raw[chance.randrange(len(raw))] = chance.randrange(256)
    if chance.random() < 0.2:
        del raw[chance.randrange(len(raw)) :]
    return status, bytes(raw)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cases", "seed"),
    [
        *((200, 1), (600, 2)),
        *(pytest.param(600, s, marks=pytest.mark.soak) for s in (3, 4)),
    ],
)
def test_whatever_is_answered_the_bytes_are_right_or_it_is_told(
    server: GcsServer, cases: int, seed: int
) -> None:
    chance = random.Random(seed)
    at_once, alone, told = [], [], []
    for number in range(cases):
        wanted = put(server, f"o{number:04}")
        status, raw = chance_answer(chance)
        right = b"X-Goog-Generation: %d" % int(str(wanted.version))
        raw = raw.replace(b"X-Goog-Generation: 1", right)
        # A change of the status line may make it one of these.
        altered = int(raw[9:12]) if raw[9:12].isdigit() else status
        (alone if {status, altered} & FINAL else at_once).append(wanted)
        server.fail("raw", "media", name=f"o{number:04}", raw=raw)
    fetch(at_once)
    for wanted in alone:
        try:
            fetch([wanted])
        except GristmillError as e:
            assert wanted.path in str(e)  # noqa: PT017
            told.append(str(e))
    assert sum("HTTP 4" in each for each in told) > len(alone) / 2
    assert not any(fault.times for fault in server.faults)


# Answers in pieces, that nobody asked for, or without an end.

OK = b"HTTP/1.1 206 Partial Content\r\n"
THREE = b"Content-Length: 3\r\n"
WHOLE = {
    "length": (OK + b"Content-Length: 3\r\nX-A:  b \r\n\r\nabc", True),
    "nothing": (OK + b"content-length:0\r\n\r\n", True),
    "no phrase": (b"HTTP/1.1 206\r\n" + THREE + b"\r\nabc", True),
    "1.0": (b"HTTP/1.0 206 OK\r\n" + THREE + b"\r\nabc", False),
    "close": (OK + b"Connection: Close\r\n" + THREE + b"\r\nabc", False),
    "the same length twice": (OK + THREE + THREE + b"\r\nabc", True),
    "chunks": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n",
        True,
    ),
    "chunks and trailers": (
        OK + b"Transfer-Encoding: Chunked\r\n\r\n3 \r\nabc\r\n0\r\nX-A: b\r\n\r\n",
        False,
    ),
    "heads before it": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        + (OK + THREE + b"\r\nabc"),
        True,
    ),
    "status without body": (
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
        True,
    ),
}


def read(*pieces: bytes) -> Answer | None:
    """Feeds pieces until an answer is complete."""
    reader = AnswerReader(100)
    return next(filter(None, map(reader.feed, filter(None, pieces))), None)


@pytest.mark.parametrize("name", WHOLE)
def test_an_answer_is_whole_in_whatever_pieces_it_arrives(name: str) -> None:
    data, keeps = WHOLE[name]
    status = 304 if name == "status without body" else 206
    body = b"" if name in ("nothing", "status without body") else b"abc"
    bytes_alone = [data[at : at + 1] for at in range(len(data))]
    for pieces in (
        *((data[:cut], data[cut:]) for cut in range(len(data))),
        bytes_alone,
    ):
        found = read(*pieces)
        assert found is not None
        assert (found.status, found.body) == (status, body)
    assert read(data).keeps == keeps  # type: ignore[union-attr]
    # Nothing less is an answer.
    assert read(data[:-1]) is None


def request_on(connection: socket.socket) -> None:
    """Receives a request."""
    received = b""
    while not received.endswith(b"\r\n\r\n"):
        data = connection.recv(4096)
        if not data:
            raise ConnectionError
        received += data


HEAD = b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-2/9\r\n"
FIRST = ByteRange("gs://bucket/a", 0, 3)


@pytest.mark.parametrize(
    "late", [HEAD + THREE + b"\r\nbad", b"x", b"HTTP/1.1 408 X\r\n\r\n"]
)
def test_what_arrives_on_an_idle_connection_is_no_answer(
    monkeypatch: pytest.MonkeyPatch, late: bytes
) -> None:
    sent, answered = threading.Event(), threading.Event()

    def talk(connection: socket.socket) -> None:
        while True:
            request_on(connection)
            connection.sendall(HEAD + THREE + b"\r\n" + DATA[:3])
            answered.wait(60)
            connection.sendall(late)
            sent.set()

    with listening(talk) as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        fetcher = fetch([FIRST])
        answered.set()
        assert sent.wait(60)
        fetch([FIRST], fetcher)
    assert fetcher.counts.retries == 0


@pytest.mark.parametrize(
    ("begin", "endless"),
    [
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" * 3_000),
        (
            HEAD + b"Transfer-Encoding: chunked\r\n\r\n",
            (b"1;" + b"x" * 60_000 + b"\r\nz\r\n") * 9,
        ),
    ],
    ids=["heads", "chunks"],
)
def test_an_answer_without_end_leaves_time_for_others(
    monkeypatch: pytest.MonkeyPatch, begin: bytes, endless: bytes
) -> None:
    """And for its own deadline."""
    # The buffers of a connection may hold less than all pieces of a turn.
    monkeypatch.setattr(http_connection, "_MOST_AT_ONCE_PIECES", 2)
    full, done = threading.Event(), threading.Event()

    def talk(connection: socket.socket) -> None:
        request_on(connection)
        connection.sendall(begin)
        connection.settimeout(0.2)
        try:
            while True:
                connection.sendall(endless)
        except TimeoutError:
            full.set()
            done.wait(60)

    with listening(talk) as address:
        connection = HttpConnection(Route(f"http://{address}").connect(9))
        with contextlib.closing(connection):
            connection.send(b"GET / HTTP/1.1\r\n\r\n", most_bytes=1 << 20)
            while not full.wait(0.01) and not connection.received_bytes:
                assert connection.advance() is None
            assert full.wait(60)
            before = connection.received_bytes
            connection.waits_to_write = True  # As TLS may have asked for.
            assert connection.advance() is None
            done.set()
            assert not connection.waits_to_write
            assert 0 < connection.received_bytes - before < 80_000


# The way to Cloud Storage: through a proxy, with TLS, with tokens that end.

RANGES = [
    ByteRange("gs://bucket/a b#1", begin, begin + 9_000)
    for begin in range(0, 190_000, 9_500)
]


@pytest.fixture
def network(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[GoogleNetwork]:
    gcs.storage_with.cache_clear()
    with GoogleNetwork(tmp_path, monkeypatch, "bucket") as network:
        network.server.objects.put("bucket", "a b#1", DATA)
        yield network
    gcs.storage_with.cache_clear()


@pytest.mark.slow
def test_ranges_are_read_through_a_proxy_with_tls_and_tokens(
    network: GoogleNetwork,
) -> None:
    fetcher = fetch([*RANGES, ByteRange("gs://bucket/a b#1")])
    # google-auth asks iamcredentials.googleapis.com as well, in a thread of its own.
    assert "CONNECT storage.googleapis.com:443" in network.tunnels
    assert network.tokens == ["token-1"]
    assert fetcher.counts.retries == 0
    network.valid.clear()  # As when a token is revoked.
    fetch(RANGES, fetcher)
    assert network.tokens == ["token-1", "token-2"]
    network.server.fail("401", "media")  # One that means nothing.
    fetch(RANGES, fetcher)
    assert network.valid == {"token-2", "token-3"}


def test_a_token_near_its_end_is_asked_for_anew(network: GoogleNetwork) -> None:
    network.lifetime_seconds = 200  # A few minutes before the end are too near.
    reads = ObjectReads(timeout_seconds=60, same_token_seconds=0)
    fetcher = fetch(RANGES[:1], RangeFetcher(OPTIONS, reads))
    network.lifetime_seconds = 3600
    fetch(RANGES[:2], fetcher)
    assert network.tokens == ["token-1", "token-2"]
    # Without a server of tokens, one that is valid is used.
    network.lifetime_seconds = 200
    reads.token(refused=reads.token())
    network.stop_tokens()
    fetch(RANGES[:1], fetcher)


@pytest.mark.slow
def test_the_requester_pays(
    network: GoogleNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.pays = "mine"
    with pytest.raises(StorageError, match="requester pays"):
        fetch(RANGES[:1])
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "mine")
    gcs.storage_with.cache_clear()
    fetch(RANGES)
    assert storage_for("gs://bucket").read("gs://bucket/a b#1", 0, 9) == DATA[:9]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "says"),
    [
        (
            {"REQUESTS_CA_BUNDLE": ""},
            r"a b#1, bytes.*certificate verify failed.*REQUESTS_CA_BUNDLE",
        ),
        (
            {"REQUESTS_CA_BUNDLE": "/nonexistent"},
            r"certificates.*/nonexist.*REQUESTS_CA",
        ),
        (
            {"STORAGE_EMULATOR_HOST": "https://other.org"},
            r"Tunnel connection failed: 403 Not here",
        ),
        (
            {"HTTPS_PROXY": "socks5://127.0.0.1:1"},
            r"kind of proxy.*socks5.*HTTPS_PROXY",
        ),
    ],
)
def test_a_way_that_is_closed_is_told(
    network: GoogleNetwork,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    says: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StorageError, match=f"(?s){says}"):
        fetch(RANGES[:1], RangeFetcher(ReadOptions(deadline_seconds=1)))


@pytest.fixture
def set_proxy(monkeypatch: pytest.MonkeyPatch):
    """Sets the proxy of this process, and no other."""

    def put(scheme: str, proxy: str) -> None:
        for name in ("NO_PROXY", "https_proxy", "http_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.lower(), raising=False)
        monkeypatch.setenv(f"{scheme}_PROXY", proxy)
        monkeypatch.setenv(f"{scheme.lower()}_proxy", proxy)

    return put


@pytest.mark.slow
def test_a_proxy_that_hangs_up_after_its_answer_is_an_error(
    monkeypatch: pytest.MonkeyPatch, set_proxy
) -> None:
    def talk(connection: socket.socket) -> None:
        request_on(connection)
        linger = struct.pack("ii", 1, 0)  # It resets the connection.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

    options = ReadOptions(timeout_seconds=2, deadline_seconds=2, hedge_factor=None)
    with listening(talk) as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", "https://storage.example")
        set_proxy("HTTPS", f"http://{address}")
        expected = r"(?s)no success in .*(reset|connected)"
        with pytest.raises(StorageError, match=expected):
            fetch([FIRST], RangeFetcher(options))


@pytest.mark.parametrize(
    "proxy",
    ["http://proxy:99999", "http://me:secret/x@proxy:1", "http://[::1", "http://:1"],
)
def test_a_proxy_that_is_no_address_is_told(set_proxy, proxy: str) -> None:
    set_proxy("HTTPS", proxy)
    with pytest.raises(StorageError, match=r"(?s)proxy.*HTTPS_PROXY") as caught:
        Route("https://storage.example")
    assert "secret" not in str(caught.value)


def test_a_proxy_without_tls_is_given_the_whole_address(set_proxy) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        set_proxy("HTTP", f"http://me:p%40ss@127.0.0.1:{server.getsockname()[1]}")
        route = Route("http://emulator:80")
        with route.connect(5) as found:
            assert found.getpeername() == server.getsockname()
    assert route.prefix == "http://emulator:80"
    assert route.proxy_headers.lower() == "proxy-authorization: basic bwu6cebzcw==\r\n"
