"""Answers of every kind to reads of ranges: right bytes, or an error of ours."""

import http
import pathlib
import random
import time
from collections.abc import Mapping

import pytest

from gristmill.dataset.base.errors import GristmillError, StorageError
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetcher import RangeFetcher
from gristmill.loader.remote.read_options import ReadOptions
from tests.servers.gcs_server import GcsServer

DATA = random.Random(7).randbytes(9_000)
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


def fetch(ranges: list[ByteRange], options: ReadOptions = OPTIONS) -> RangeFetcher:
    """Fetches ranges and compares their bytes."""
    fetcher, found = RangeFetcher(options), {}
    fetcher.fetch(ranges, found.__setitem__)
    assert sorted(found) == list(range(len(ranges)))
    for number, wanted in enumerate(ranges):
        assert found[number] == DATA[wanted.begin : wanted.end]
    return fetcher


def answer(status: int, headers: Mapping[str, str], body: bytes) -> bytes:
    lines = [f"HTTP/1.1 {status} X", *(f"{k}: {v}" for k, v in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


@pytest.mark.slow
def test_every_status_is_got_over_or_told(server: GcsServer) -> None:
    """Whatever the body is: the page of a proxy, JSON, nothing."""
    survived = []
    for status in STATUSES:
        for kind, body in (
            ("text/html", b"<html>\n<p>Sign in"),
            ("application/json", b'{"error": {"code": 1, "message": "it says so"}}'),
            ("", b""),
        ):
            wanted = put(server, f"s{status}-{len(body)}")
            headers = {"Content-Type": kind, "Content-Length": str(len(body))}
            raw = answer(status, headers, body)
            server.fail("raw", "media", name=wanted.path[12:], raw=raw)
            if status not in FINAL:
                survived.append(wanted)
                continue
            said = "it says so" if kind and len(body) > 20 and b"it" in body else ""
            expected = rf"(?s){wanted.path}, bytes.*HTTP {status}: {said}"
            with pytest.raises(StorageError, match=expected):
                fetch([wanted])
    fetch(survived)
    assert not any(fault.times for fault in server.faults)


@pytest.mark.parametrize("status", [204, 304, 404, 410, 412])
def test_one_answer_that_an_object_is_gone_is_looked_into(
    server: GcsServer, status: int
) -> None:
    wanted = put(server, "a")
    server.fail(str(status), "media")
    fetch([wanted])
    assert server.requests == {"media": 2, "stat": 1}


def test_what_is_there_and_is_never_given_is_an_error(server: GcsServer) -> None:
    wanted = put(server, "a")
    server.fail("404", "media", times=99)
    with pytest.raises(StorageError, match=r"(?s)cannot read the object.*HTTP 404: ma"):
        fetch([wanted])
    assert server.requests["media"] == 4


def test_a_token_that_is_never_accepted_is_an_error(server: GcsServer) -> None:
    server.fail("401", "media")
    fetch([put(server, "a")])
    server.fail("401", "media", times=99)
    with pytest.raises(StorageError, match=r"(?s)HTTP 401: made to.*gcloud auth app"):
        fetch([put(server, "b")])


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
    fetch([wanted], ReadOptions(deadline_seconds=8.0))
    assert time.monotonic() - begin < 60
    assert server.requests["media"] == 4


def test_other_bytes_than_the_range_are_never_taken(server: GcsServer) -> None:
    wanted = put(server, "a")
    right = DATA[BEGIN:END]
    good = {
        "Content-Range": f"bytes {BEGIN}-{END - 1}/{len(DATA)}",
        "X-Goog-Generation": str(wanted.version),
        "Content-Length": str(len(right)),
    }
    wrongs = {
        "all of it": (200, {"Content-Length": str(len(DATA))}, DATA),
        "a page": (200, {"Content-Length": "2000"}, b"<p>" + bytes(1997)),
        "a page as a part": (206, {"Content-Length": "2000"}, b"<p>" + bytes(1997)),
        "another range": (206, good | {"Content-Range": "bytes 0-1999/9000"}, right),
        "a shorter one": (206, good | {"Content-Length": "3"}, b"abc"),
        "two": (206, good | {"Content-Range": "bytes 0-1/9, bytes 3-4/9"}, right),
        "none": (206, good | {"Content-Range": "bytes */9000"}, right),
        "items": (206, good | {"Content-Range": "items 1000-2999/9000"}, right),
        "another version": (206, good | {"X-Goog-Generation": "12"}, right[::-1]),
        "two versions": (206, good | {"X-Goog-Generation": "1, 2"}, right[::-1]),
        "no version": (206, {**good, "X-Goog-Generation": ""}, right[::-1]),
    }
    ranges = []
    for name, (status, headers, body) in wrongs.items():
        wanted = put(server, name)
        ranges.append(wanted)
        raw = answer(status, headers, body)
        server.fail("raw", "media", name=name, raw=raw)
    fetch(ranges)
    assert not any(fault.times for fault in server.faults)


def test_connections_are_kept_and_made_anew(server: GcsServer) -> None:
    ranges = [put(server, f"o{number}") for number in range(20)]
    fetcher = RangeFetcher(OPTIONS)
    for wanted in ranges:
        fetcher.fetch([wanted], lambda *_: None)
    assert server.connections == 1
    # That the server has closed the one that was kept, nobody has to notice.
    server.fail("reset", "media")
    fetcher.fetch(ranges[:1], lambda *_: None)
    assert (server.connections, fetcher.counts.retries) == (2, 0)
    server.fail("reset", "media", times=2)
    fetcher.fetch(ranges[:1], lambda *_: None)
    assert (server.connections, fetcher.counts.retries) == (4, 1)


def test_an_emulator_gets_no_token_and_needs_none(
    server: GcsServer, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    key = tmp_path / "key.json"
    key.write_text('{"type": "service_account", "private_key": "damaged"')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    seen: list[str] = []
    server.demand = lambda headers: seen.append(headers.get("authorization", "none"))
    fetch([put(server, "a")])
    monkeypatch.setenv(
        "STORAGE_EMULATOR_HOST", server.url.removeprefix("http://") + "/"
    )
    fetch([put(server, "b")])
    assert seen == ["none", "none"]


# Answers by chance.

_HEADERS = (
    ("Content-Length", ("0", "5", "2000", "1999", "2001", "-1", "x", "9" * 17, "5, 6")),
    ("Transfer-Encoding", ("chunked", "gzip", "identity", "chunked, chunked")),
    ("Content-Encoding", ("gzip", "br", "x")),
    ("Content-Range", ("bytes 1000-2999/9000", "bytes 0-1/2", "bytes */9", "x", "")),
    ("X-Goog-Generation", ("1", "", "x")),
    ("Retry-After", ("0", "-1", "x", "1e9", "Wed, 21 Oct 2015 07:28:00 GMT", "")),
    ("Content-Type", ("text/html", "application/json", "\xff\xfe")),
    ("Location", ("http://127.0.0.1:9/", "/", "\x00")),
    ("WWW-Authenticate", ("Negotiate", "Bearer")),
    ("Connection", ("close", "keep-alive", "upgrade")),
    ("ETag", ('"x"', "W/x", "\xe9" * 40)),
    ("Date", ("now", "")),
    ("X", ("y" * 5_000,)),
)
_BODIES = (
    b"",
    b"<html>Sign in",
    b'{"error": {"message": "m"}}',
    b'{"error": "m"}',
    b'{"error": {"message": {"a": [1]}}}',
    b"[" * 3_000,
    b"\xff\xfe\x00",
    bytes(2_000),
    b"5\r\nabcde\r\n0\r\n\r\n",
    DATA[BEGIN:END],
    DATA[:2_000],
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
    at_once, alone = [], []
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
    assert not any(fault.times for fault in server.faults)
