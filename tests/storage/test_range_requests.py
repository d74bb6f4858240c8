"""Reads of ranges over HTTP: right bytes whatever is answered, or an error of ours."""

import concurrent.futures
import random
import threading
import time

import pytest

from gristmill.dataset import GristmillError, StorageError
from gristmill.loader import ReadOptions
from gristmill.loader.remote.http_connection import AnswerError, AnswerReader
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetcher import RangeFetcher
from tests.storage.google_network import listening, request_on

DATA = random.Random(7).randbytes(200_000)
SIZE = len(DATA)
BEGIN, END = 1_000, 3_000
RIGHT = DATA[BEGIN:END]
OPTIONS = ReadOptions(timeout_seconds=60, deadline_seconds=120, hedge_factor=None)


def put(server, name):
    """Stores an object; returns a range of it."""
    version = str(server.objects.put("bucket", name, DATA))
    return ByteRange(f"gs://bucket/{name}", BEGIN, END, version)


def fetch(ranges, fetcher=None):
    """Fetches ranges and compares their bytes."""
    fetcher, found = fetcher or RangeFetcher(OPTIONS), {}
    fetcher.fetch(ranges, found.__setitem__)
    assert len(found) == len(ranges)
    for number, wanted in enumerate(ranges):
        assert found[number] == DATA[wanted.begin : wanted.end]
    return fetcher


def answer(status, headers, body):
    lines = [f"HTTP/1.1 {status} X", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


# Answers of all kinds.


@pytest.mark.parametrize("status", ["204", "304", "404", "410", "412"])
def test_an_answer_that_an_object_is_gone_is_looked_into(server, status):
    wanted = put(server, "a")
    server.fail(status, "media")
    fetch([wanted])
    assert server.requests == {"media": 2, "stat": 1}
    server.fail(status, "media", times=99)
    with pytest.raises(StorageError, match=f"(?s)cannot read the obj.*HTTP {status}"):
        fetch([wanted])
    assert server.requests["media"] <= 6


@pytest.mark.slow
def test_a_server_is_left_alone_as_long_as_it_asks(server):
    wanted, begin = put(server, "a"), time.monotonic()
    server.fail("503", "media", headers={"Retry-After": "1"})
    fetch([wanted])
    assert time.monotonic() - begin >= 1
    # But not after the deadline.
    server.fail("429", "media", headers={"Retry-After": "999"})
    fetch([wanted], RangeFetcher(ReadOptions(deadline_seconds=8.0)))
    assert time.monotonic() - begin < 60
    assert server.requests["media"] == 4


def test_other_bytes_than_the_range_are_never_taken(server):
    place, page = f"bytes {BEGIN}-{END - 1}/{SIZE}", b"<p>" + bytes(1997)
    ranges = []
    for number, (status, headers, body) in enumerate(
        [
            (200, {"Content-Range": ""}, DATA),
            (200, {"Content-Range": ""}, page),
            (206, {"Content-Range": ""}, page),
            (206, {"Content-Range": f"bytes 0-1999/{SIZE}"}, DATA[:2000]),
            (206, {}, b"shorter"),
            (206, {"Content-Range": "bytes 0-1/9, bytes 3-4/9"}, RIGHT),
            (206, {"Content-Range": f"bytes */{SIZE}"}, RIGHT),
            (206, {"Content-Range": place.replace("bytes", "items")}, RIGHT),
            # Another version, two, and none.
            (206, {"X-Goog-Generation": "12"}, RIGHT[::-1]),
            (206, {"X-Goog-Generation": "1, 2"}, RIGHT[::-1]),
            (206, {"X-Goog-Generation": ""}, RIGHT[::-1]),
        ]
    ):
        wanted = put(server, f"{number:02}")
        good = {"X-Goog-Generation": wanted.version, "Content-Range": place}
        length = {"Content-Length": len(body)}
        raw = answer(status, good | headers | length, body)
        server.fail("raw", "media", name=f"{number:02}", raw=raw)
        ranges.append(wanted)
    fetch(ranges)
    assert not any(fault.times for fault in server.faults)


def test_connections_are_kept_and_made_anew(server):
    ranges = [put(server, f"o{number}") for number in range(20)]
    fetcher = RangeFetcher(OPTIONS)
    for wanted in ranges:
        fetch([wanted], fetcher)
    assert server.connections == 1
    # That the server has closed the one that was kept, nobody has to notice.
    for times, made, retries in ((1, 2, 0), (2, 4, 1)):
        server.fail("reset", "media", times=times)
        fetch(ranges[:1], fetcher)
        assert (server.connections, fetcher.counts.retries) == (made, retries)


def test_an_emulator_gets_no_token_and_needs_none(server, monkeypatch, tmp_path):
    key = tmp_path / "key.json"
    key.write_text('{"type": "service_account", "private_key": "damaged"')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    seen = []
    server.demand = lambda headers: seen.append(headers.get("authorization", "none"))
    fetch([put(server, "a")])
    assert seen == ["none"]


# Answers by chance.

_HEADERS = (
    ("Content-Length", ("0", "5", "2000", "1999", "2001", "-1", "x", "9" * 17, "5, 6")),
    ("Transfer-Encoding", ("chunked", "gzip", "identity", "chunked, chunked")),
    ("Content-Encoding", ("gzip", "br", "x")),
    ("Content-Range", (f"bytes 1000-2999/{SIZE}", "bytes 0-1/2", "bytes */9", "x", "")),
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
    *(RIGHT, DATA[:2_000]),
    b"HTTP/1.1 206 OK\r\nContent-Length: 2000\r\n\r\n" + bytes(2_000),
)


def chance_answer(chance):
    """Returns an answer that nobody has thought of."""
    status = chance.choice((206, 206, 200, 101, *(chance.randrange(200, 1000),) * 9))
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
    return bytes(raw)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cases", "seed"),
    [(600, 2), *(pytest.param(600, s, marks=pytest.mark.soak) for s in (3, 4))],
)
def test_whatever_is_answered_the_bytes_are_right_or_it_is_told(server, cases, seed):
    chance, fetcher = random.Random(seed), RangeFetcher(OPTIONS)

    def is_told(wanted):
        try:
            fetch([wanted], fetcher)
        except GristmillError as e:
            assert wanted.path in str(e)  # noqa: PT017
            return True
        return False

    ranges = [put(server, f"o{number:04}") for number in range(cases)]
    for wanted in ranges:
        right = f"X-Goog-Generation: {wanted.version}".encode()
        raw = chance_answer(chance).replace(b"X-Goog-Generation: 1", right)
        server.fail("raw", "media", name=wanted.path[-5:], raw=raw)
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        told = sum(pool.map(is_told, ranges))
    # Few answers have a status that means what it says, as 403 does.
    assert 0 < told < cases / 4
    assert not any(fault.times for fault in server.faults)


# Answers in pieces, that nobody asked for, too early, or too late.

OK = b"HTTP/1.1 206 Partial Content\r\n"
THREE = b"Content-Length: 3\r\n"
ABC = OK + THREE + b"\r\nabc"
CHUNKED = b"Transfer-Encoding: Chunked\r\n\r\n"
# Status, body, and whether the connection takes another request.
WHOLE = {
    "spaces": (OK + b"Content-Length: 3\r\nX-A:  b \r\n\r\nabc", 206, b"abc", True),
    "nothing": (OK + b"content-length:0\r\n\r\n", 206, b"", True),
    "no phrase": (b"HTTP/1.1 206\r\n" + THREE + b"\r\nabc", 206, b"abc", True),
    "1.0": (b"HTTP/1.0 206 OK\r\n" + THREE + b"\r\nabc", 206, b"abc", False),
    "close": (OK + b"Connection: Close\r\n" + ABC[len(OK) :], 206, b"abc", False),
    "the same length twice": (OK + THREE + ABC[len(OK) :], 206, b"abc", True),
    "chunks": (
        *(OK + CHUNKED + b"2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n", 206, b"abc", True),
    ),
    "trailers": (
        *(OK + CHUNKED + b"3 \r\nabc\r\n0\r\nX-A: b\r\n\r\n", 206, b"abc", False),
    ),
    "heads before it": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + ABC,
        *(206, b"abc", True),
    ),
    "no body": (b"HTTP/1.1 304 X\r\nContent-Length: 9\r\n\r\n", 304, b"", True),
}


@pytest.mark.parametrize(("data", "status", "body", "keeps"), WHOLE.values(), ids=WHOLE)
def test_an_answer_is_whole_in_whatever_pieces_it_arrives(data, status, body, keeps):
    def read(*pieces):
        reader = AnswerReader(100)
        return next(filter(None, map(reader.feed, filter(None, pieces))), None)

    cuts = [(data[:cut], data[cut:]) for cut in range(len(data))]
    for pieces in (*cuts, [data[at : at + 1] for at in range(len(data))]):
        found = read(*pieces)
        assert found is not None
        assert (found.status, found.body) == (status, body)
    assert read(data).keeps == keeps  # type: ignore[union-attr]
    assert read(data[:-1]) is None


def test_what_is_no_answer_is_refused():
    for bad in (
        *(CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n", THREE + CHUNKED),
        *(THREE + b"Content-Length: 4\r\n\r\nabcd", b"no header\r\n\r\n"),
    ):
        with pytest.raises(AnswerError):
            AnswerReader(100).feed(OK + bad)


FIRST = ByteRange("gs://bucket/a", 0, 3)
HEAD = b"HTTP/1.1 206 OK\r\nContent-Range: bytes 0-2/9\r\n"


@pytest.mark.parametrize(
    "late", [HEAD + THREE + b"\r\nbad", b"x", b"HTTP/1.1 408 X\r\n\r\n"]
)
def test_what_arrives_on_an_idle_connection_is_no_answer(monkeypatch, late):
    sent, answered = threading.Event(), threading.Event()

    def talk(connection):
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


def test_an_answer_without_end_ends_in_time(monkeypatch):
    def talk(connection):
        request_on(connection)
        while True:
            connection.sendall(b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" * 3_000)

    options = ReadOptions(timeout_seconds=0.3, deadline_seconds=0.3, hedge_factor=None)
    with listening(talk) as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        with pytest.raises(StorageError, match="no answer in"):
            fetch([FIRST], RangeFetcher(options))
