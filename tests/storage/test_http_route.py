"""The way to Cloud Storage: through a proxy, with TLS, with tokens that end."""

import pathlib
import random
import socket
from collections.abc import Iterator

import pytest

from gristmill.dataset.base.errors import StorageError
from gristmill.dataset.storage import gcs
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.remote.http_route import Route
from gristmill.loader.remote.object_reads import ByteRange, ObjectReads
from gristmill.loader.remote.range_fetcher import RangeFetcher
from gristmill.loader.remote.read_options import ReadOptions
from tests.storage.google_network import GoogleNetwork

DATA = random.Random(7).randbytes(200_000)
OPTIONS = ReadOptions(timeout_seconds=60, deadline_seconds=120, hedge_factor=None)
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


def fetch(fetcher: RangeFetcher, ranges: list[ByteRange] = RANGES) -> None:
    """Fetches ranges and compares their bytes."""
    found: dict[int, bytes] = {}
    fetcher.fetch(ranges, found.__setitem__)
    assert [found[i] for i in range(len(ranges))] == [
        DATA[wanted.begin : wanted.end] for wanted in ranges
    ]


@pytest.mark.slow
def test_ranges_are_read_through_a_proxy_with_tls(network: GoogleNetwork) -> None:
    fetcher = RangeFetcher(OPTIONS)
    fetch(fetcher)
    fetch(fetcher, [ByteRange("gs://bucket/a b#1")])
    # google-auth asks iamcredentials.googleapis.com as well, in a thread of its own.
    assert "CONNECT storage.googleapis.com:443" in network.tunnels
    assert network.tokens == ["token-1"]
    assert fetcher.counts.retries == 0


def test_a_server_with_another_certificate_is_not_read(
    network: GoogleNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE")
    expected = r"(?s)a b#1, bytes.*certificate verify failed.*REQUESTS_CA_BUNDLE"
    with pytest.raises(StorageError, match=expected):
        fetch(RangeFetcher(OPTIONS), RANGES[:1])
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nonexistent")
    fetcher = RangeFetcher(OPTIONS)
    with pytest.raises(StorageError, match=r"(?s)certificates.*/nonexist.*REQUESTS_CA"):
        fetch(fetcher, RANGES[:1])


@pytest.mark.slow
def test_a_proxy_that_refuses_is_named(
    network: GoogleNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("STORAGE_EMULATOR_HOST", "https://other.org")
        fetcher = RangeFetcher(ReadOptions(deadline_seconds=1))
        expected = r"Tunnel connection failed: 403 Not here"
        with pytest.raises(StorageError, match=expected):
            fetch(fetcher, RANGES[:1])
    monkeypatch.setenv("HTTPS_PROXY", "socks5://127.0.0.1:1")
    with pytest.raises(StorageError, match=r"(?s)kind of proxy.*socks5.*HTTPS_PROXY"):
        fetch(RangeFetcher(OPTIONS), RANGES[:1])


@pytest.mark.slow
def test_after_a_401_there_is_another_token(network: GoogleNetwork) -> None:
    fetcher = RangeFetcher(OPTIONS)
    fetch(fetcher)
    network.valid.clear()  # As when a token is revoked.
    fetch(fetcher)
    assert network.tokens == ["token-1", "token-2"]
    network.server.fail("401", "media")  # One that means nothing.
    fetch(fetcher)
    assert network.valid == {"token-2", "token-3"}


def test_a_token_near_its_end_is_asked_for_anew(network: GoogleNetwork) -> None:
    network.lifetime_seconds = 200  # A few minutes before the end are too near.
    reads = ObjectReads(timeout_seconds=60, same_token_seconds=0)
    fetcher = RangeFetcher(OPTIONS, reads)
    fetch(fetcher, RANGES[:1])
    network.lifetime_seconds = 3600
    fetch(fetcher, RANGES[:2])
    assert network.tokens == ["token-1", "token-2"]
    # Without a server of tokens, one that is valid is used.
    network.lifetime_seconds = 200
    reads.token(refused=reads.token())
    network.stop_tokens()
    fetch(fetcher, RANGES[:1])


@pytest.mark.slow
def test_the_requester_pays(
    network: GoogleNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.pays = "mine"
    with pytest.raises(StorageError, match="requester pays"):
        fetch(RangeFetcher(OPTIONS), RANGES[:1])
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "mine")
    gcs.storage_with.cache_clear()
    fetch(RangeFetcher(OPTIONS))
    assert storage_for("gs://bucket").read("gs://bucket/a b#1", 0, 9) == DATA[:9]


@pytest.mark.parametrize(
    "proxy",
    ["http://proxy:99999", "http://me:secret/x@proxy:1", "http://[::1", "http://:1"],
)
def test_a_proxy_that_is_no_address_is_told(
    monkeypatch: pytest.MonkeyPatch, proxy: str
) -> None:
    for name in ("NO_PROXY", "no_proxy", "https_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(StorageError, match=r"(?s)proxy.*HTTPS_PROXY") as caught:
        Route("https://storage.example")
    assert "secret" not in str(caught.value)


def test_a_proxy_without_tls_is_given_the_whole_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        proxy = f"http://me:p%40ss@127.0.0.1:{listening.getsockname()[1]}"
        monkeypatch.setenv("HTTP_PROXY", proxy)
        monkeypatch.setenv("http_proxy", proxy)
        route = Route("http://emulator:80")
        with route.connect(5) as found:
            found.settimeout(5)
            assert found.getpeername() == listening.getsockname()
    assert route.prefix == "http://emulator:80"
    assert route.proxy_headers.lower() == "proxy-authorization: basic bwu6cebzcw==\r\n"
