"""The way to Cloud Storage: proxies, TLS, tokens, and others that never end."""

import functools
import os
import socket
import struct
import subprocess
import sys
import threading

import pytest

from gristmill.dataset import StorageError
from gristmill.dataset.storage import gcs
from gristmill.dataset.storage.gcs import GcsStorage
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader import ReadOptions
from gristmill.loader.remote import object_reads
from gristmill.loader.remote.http_route import Route
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetcher import RangeFetcher
from tests.storage.google_network import GoogleNetwork, listening, request_on
from tests.storage.test_range_requests import DATA, FIRST, OPTIONS, fetch

PATH = "gs://bucket/a b#1"
RANGES = [ByteRange(PATH, at, at + 9_000) for at in range(0, 190_000, 9_500)]
IMPATIENT = {"timeout_seconds": 0.3, "deadline_seconds": 0.01}


@pytest.fixture
def network(tmp_path, monkeypatch):
    gcs.storage_with.cache_clear()
    with GoogleNetwork(tmp_path, monkeypatch, "bucket") as network:
        network.server.objects.put("bucket", "a b#1", DATA)
        yield network
    gcs.storage_with.cache_clear()


@pytest.mark.slow
def test_ranges_are_read_through_a_proxy_with_tls_and_tokens(network):
    fetcher = fetch([*RANGES, ByteRange(PATH)])
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


def test_a_token_near_its_end_is_asked_for_anew(network, monkeypatch):
    monkeypatch.setattr(object_reads, "SAME_TOKEN_SECONDS", 0)
    network.lifetime_seconds = 200  # A few minutes before the end are too near.
    fetcher = fetch(RANGES[:1], RangeFetcher(OPTIONS))
    network.lifetime_seconds = 3600
    fetch(RANGES[:2], fetcher)
    assert network.tokens == ["token-1", "token-2"]
    # Without a server of tokens, one that is valid is used.
    network.lifetime_seconds = 200
    fetcher.reads.token(refused=fetcher.reads.token())
    network.stop_tokens()
    fetch(RANGES[:1], fetcher)


@pytest.mark.slow
def test_a_token_that_trickles_is_asked_for_again(network):
    network.drips = 1
    assert GcsStorage(timeout_seconds=0.5).read(PATH, 0, 9) == DATA[:9]
    assert network.asked >= 2


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ({"drips": 99}, r"no complete answer in 0\.5 seconds"),
        ({"refuses": True}, "gcloud auth application-default login"),
    ],
    ids=["trickles", "refused"],
)
def test_without_a_token_nothing_is_read(network, fault, says):
    vars(network).update(fault)
    storage = GcsStorage(timeout_seconds=0.5, deadline_seconds=2)
    with pytest.raises(StorageError, match=f"(?s){says}"):
        storage.read(PATH, 0, 9)
    assert network.asked == 1 or not network.refuses


@pytest.mark.slow
def test_the_requester_pays(network, monkeypatch):
    network.pays = "mine"
    with pytest.raises(StorageError, match="requester pays"):
        fetch(RANGES[:1])
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "mine")
    gcs.storage_with.cache_clear()
    fetch(RANGES)
    assert storage_for("gs://bucket").read(PATH, 0, 9) == DATA[:9]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("REQUESTS_CA_BUNDLE", "", "a b#1, bytes.*verify failed.*REQUESTS_CA_BUNDLE"),
        ("REQUESTS_CA_BUNDLE", "/nonexistent", "certificates.*/none.*REQUESTS_CA_"),
        ("STORAGE_EMULATOR_HOST", "https://other.org", "connection failed: 403 Not"),
        ("HTTPS_PROXY", "socks5://127.0.0.1:1", "kind of proxy.*socks5.*HTTPS_PROXY"),
    ],
)
def test_a_way_that_is_closed_is_told(network, monkeypatch, name, value, says):
    monkeypatch.setenv(name, value)
    with pytest.raises(StorageError, match=f"(?s){says}"):
        fetch(RANGES[:1], RangeFetcher(ReadOptions(deadline_seconds=1)))


# Proxies.


@pytest.fixture
def set_proxy(monkeypatch):
    """Sets the proxy of this process, and no other."""

    def put(scheme, proxy):
        for name in ("no_proxy", "https_proxy", "http_proxy"):
            monkeypatch.delenv(name.upper(), raising=False)
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv(f"{scheme}_proxy", proxy)

    return put


@pytest.mark.slow
def test_a_proxy_that_hangs_up_after_its_answer_is_an_error(monkeypatch, set_proxy):
    def talk(connection):
        request_on(connection)
        linger = struct.pack("ii", 1, 0)  # It resets the connection.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")

    options = ReadOptions(timeout_seconds=2, deadline_seconds=2, hedge_factor=None)
    with listening(talk) as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", "https://storage.example")
        set_proxy("https", f"http://{address}")
        expected = r"(?s)no success in .*(reset|connected)"
        with pytest.raises(StorageError, match=expected):
            fetch([FIRST], RangeFetcher(options))


@pytest.mark.parametrize(
    "proxy",
    ["http://proxy:99999", "http://me:secret/x@proxy:1", "http://[::1", "http://:1"],
)
def test_a_proxy_that_is_no_address_is_told(set_proxy, proxy):
    set_proxy("https", proxy)
    with pytest.raises(StorageError, match=r"(?s)proxy.*HTTPS_PROXY") as caught:
        Route("https://storage.example")
    assert "secret" not in str(caught.value)


def test_a_proxy_without_tls_is_given_the_whole_address(set_proxy):
    with socket.create_server(("127.0.0.1", 0)) as server:
        set_proxy("http", f"http://me:p%40ss@127.0.0.1:{server.getsockname()[1]}")
        route = Route("http://emulator:80")
        with route.connect(5) as found:
            assert found.getpeername() == server.getsockname()
    assert route.prefix == "http://emulator:80"
    assert route.proxy_headers.lower() == "proxy-authorization: basic bwu6cebzcw==\r\n"


# Others that never end: requests do, in time.

OK = b"HTTP/1.1 200 OK\r\n"
PIECE_BYTES = 256 << 10  # After which the time begins anew.


def after_request(first, then, *, seconds=0.05):
    """Answers, and sends the same again and again for as long as somebody is there."""

    def talk(connection):
        connection.recv(1 << 16)
        connection.sendall(first)
        while True:
            threading.Event().wait(seconds)
            connection.sendall(then)

    return talk


def takes_nothing(connection):
    while connection.recv(1):
        threading.Event().wait(0.05)


SILENT = after_request(b"", b"")
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("talk", "url"),
    [
        (SILENT, "http://{}"),
        (SILENT, "https://{}"),
        (SILENT, "https://storage.example"),
        (after_request(OK + b"Connection: close\r\n\r\n", b"x"), "http://{}"),
        (after_request(CHUNKED, b"1\r\nx\r\n"), "http://{}"),
        (takes_nothing, "http://{}"),
    ],
    ids=["silent", "no TLS", "proxy", "no length", "chunks", "body"],
)
def test_what_never_ends_ends_in_time(monkeypatch, set_proxy, talk, url):
    with listening(talk) as address:
        if "example" in url:
            set_proxy("https", f"http://{address}")
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", url.format(address))
        storage = GcsStorage(**IMPATIENT)
        error = r"no complete answer in 0\.3 s|timed out"
        call = functools.partial(storage.read, "gs://bucket/a")
        if talk is takes_nothing:
            call = functools.partial(storage.write, "gs://bucket/a", bytes(64 << 20))
        with pytest.raises(StorageError, match=error):
            call()


@pytest.mark.slow
def test_a_slow_answer_that_goes_on_is_complete(monkeypatch):
    size = 5 * PIECE_BYTES
    place = f"bytes 0-{size - 1}/{size}\r\nContent-Length: {size}\r\n\r\n"
    first = b"HTTP/1.1 206 X\r\nContent-Range: " + place.encode()
    with listening(after_request(first, bytes(PIECE_BYTES), seconds=1)) as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        storage = GcsStorage(timeout_seconds=4, deadline_seconds=0.01)
        assert storage.read("gs://bucket/a") == bytes(size)


def test_a_name_that_cannot_be_one_is_an_error(monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://{'a' * 70}.invalid/")
    with pytest.raises(StorageError, match="aaaa"):
        GcsStorage(**IMPATIENT).read("gs://bucket/a")


# Machines without credentials.

READ = """
from gristmill.dataset.storage.lookup import storage_for
storage_for("gs://bucket/a").read("gs://bucket/a")
"""


def read_elsewhere(home, **environment):
    """Returns what a process says that reads with other credentials than this one.

    The library looks at its environment when it is imported.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith("GOOGLE_")}
    folders = {"HOME": str(home), "CLOUDSDK_CONFIG": str(home)}
    emulator = {"STORAGE_EMULATOR_HOST": "", "NO_PROXY": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", READ],
        env=kept | folders | emulator | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "StorageError: " in done.stderr
    return done.stderr


def test_missing_credentials_are_named_at_once(tmp_path):
    said = read_elsewhere(tmp_path, NO_GCE_CHECK="true")
    assert "cannot find credentials" in said
    assert "gcloud auth application-default login" in said


@pytest.mark.slow
def test_a_machine_whose_metadata_trickles_gives_an_error(tmp_path):
    head = OK + b"Metadata-Flavor: Google\r\nContent-Length: 999\r\n\r\n"
    with listening(after_request(head, b" ", seconds=0.4)) as host:
        said = read_elsewhere(
            tmp_path,
            GCE_METADATA_HOST=host,
            GCE_METADATA_IP=host,
            GRISTMILL_GCS_TIMEOUT_SECONDS="0.5",
            GRISTMILL_GCS_DEADLINE_SECONDS="1",
        )
    assert "nothing found in 1 seconds" in said
    assert "check network" in said
