"""The way to Cloud Storage: through a proxy, with TLS, with tokens that end."""

import pathlib
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gristmill.dataset.base.errors import StorageError
from gristmill.dataset.storage import gcs
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.remote import http_route, object_reads
from gristmill.loader.remote.http_route import Route
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetcher import RangeFetcher
from gristmill.loader.remote.read_options import ReadOptions
from tests.support.google_network import GoogleNetwork
from tests.support.waiting import until
from tests.support.watched import calls_of, failing

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
    gcs._storage.cache_clear()
    with GoogleNetwork(tmp_path, monkeypatch, "bucket") as network:
        network.server.objects.put("bucket", "a b#1", DATA)
        yield network
    gcs._storage.cache_clear()


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
    fetcher = RangeFetcher(ReadOptions(deadline_seconds=1))
    fetcher._reads._route = Route("https://other.org", timeout_seconds=1)
    with pytest.raises(StorageError, match=r"proxy gives no connection.*403 Not here"):
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


def test_a_token_near_its_end_is_asked_for_anew(
    network: GoogleNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_reads, "_SAME_TOKEN_SECONDS", 0.0)
    network.lifetime_seconds = 200  # A few minutes before the end are too near.
    fetcher = RangeFetcher(OPTIONS)
    fetch(fetcher, RANGES[:1])
    network.lifetime_seconds = 3600
    fetch(fetcher, RANGES[:2])
    assert network.tokens == ["token-1", "token-2"]
    # Without a server of tokens, one that is valid is used.
    network.lifetime_seconds = 200
    fetcher._reads.token(refused=fetcher._reads.token())
    network._http.shutdown()
    network._http.server_close()
    fetch(fetcher, RANGES[:1])


@pytest.mark.slow
def test_the_requester_pays(
    network: GoogleNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    network.pays = "mine"
    with pytest.raises(StorageError, match="requester pays"):
        fetch(RangeFetcher(OPTIONS), RANGES[:1])
    monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", "mine")
    gcs._storage.cache_clear()
    fetch(RangeFetcher(OPTIONS))
    assert storage_for("gs://bucket").read("gs://bucket/a b#1", 0, 9) == DATA[:9]


@pytest.mark.parametrize("project", ["mine\n", "mine\r\nX-More: 1", "mi\0ne"])
def test_what_credentials_hold_adds_no_header(
    network: GoogleNetwork, monkeypatch: pytest.MonkeyPatch, project: str
) -> None:
    if "\0" not in project:  # An environment cannot hold it.
        monkeypatch.setenv("GOOGLE_CLOUD_QUOTA_PROJECT", project)
    else:
        network.give_token = lambda: project  # type: ignore[method-assign]
    with pytest.raises(StorageError, match=r"(?s)line break.*take it out of GOOGLE_CL"):
        fetch(RangeFetcher(OPTIONS), RANGES[:1])
    assert network.server.requests["media"] == 0


def test_a_name_without_address_is_told() -> None:
    route = Route("http://name.invalid", timeout_seconds=5)
    with pytest.raises(OSError, match=r"(cannot find|no address of) name\.invalid"):
        route.connect()


def test_addresses_are_taken_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that cannot be reached is passed over."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        route = Route(f"http://127.0.0.1:{port}/x/", timeout_seconds=5)
        good = route._find()[0]
        bad = (*good[:4], ("no address", 1))
        route._addresses = [bad, good]
        for _ in range(3):
            with route.connect() as found:
                found.settimeout(5)
                assert found.getpeername() == ("127.0.0.1", port)
        route._addresses = []
        with pytest.raises(OSError, match="no address"):
            route.connect()
    assert (route.prefix, route.host, route.tls) == ("/x", f"127.0.0.1:{port}", None)


def test_where_there_is_no_way_to_ipv4_there_may_be_one_to_ipv6() -> None:
    try:
        listening = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listening:
        six = (socket.AF_INET6, 1, 6, "", listening.getsockname())
        four = (socket.AF_INET, 1, 6, "", ("no address", 1))
        route = Route("http://127.0.0.1:9", timeout_seconds=5)
        route._find()
        route._addresses = [six, four, four]
        for _ in range(3):
            with route.connect() as found:
                assert found.family == socket.AF_INET6


def test_a_search_for_addresses_that_hangs_is_waited_for_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    goes_on, lookups = threading.Event(), []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        found = [(socket.AF_INET, 1, 6, "", listening.getsockname())]

        def find(name: str, *rest: Any, **options: Any) -> list[Any]:
            if name != "slow.example":  # Threads of other tests may look for theirs.
                return resolve(name, *rest, **options)
            lookups.append(name)
            goes_on.wait(60)
            return list(found)

        resolve = socket.getaddrinfo
        monkeypatch.setattr(http_route.socket, "getaddrinfo", find)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://slow.example")
        monkeypatch.setenv("NO_PROXY", "slow.example")
        options = ReadOptions(timeout_seconds=0.1, deadline_seconds=0.5)
        fetcher = RangeFetcher(options)
        with pytest.raises(
            StorageError, match=r"no address of slow\.example in 0\.1 s"
        ):
            fetch(fetcher)
        assert lookups == ["slow.example"]
        route = fetcher._reads._find_route()
        goes_on.set()
        until(lambda: route._find())
        # Old addresses are used while it is asked again.
        goes_on.clear()
        route._settled_until = 0.0
        for _ in range(2):
            route.connect().close()
        until(lambda: len(lookups) == 2)
        found.clear()
        goes_on.set()
        until(lambda: not route._find())
        with pytest.raises(OSError, match="no address"):
            route.connect()


def test_addresses_that_were_not_found_are_not_looked_for_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing = socket.gaierror(-3, "Temporary failure in name resolution")
    failing(monkeypatch, http_route.socket, "getaddrinfo", missing)
    lookups = calls_of(monkeypatch, http_route.socket, "getaddrinfo")
    monkeypatch.setattr(http_route, "_PROBLEM_SECONDS", 60.0, raising=False)
    route = Route("http://none.example", timeout_seconds=5)
    for _ in range(9):
        with pytest.raises(OSError, match=r"cannot find none\.example: .*Temporary"):
            route.connect()
    assert [name for name, *_ in lookups].count("none.example") == 1


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
        Route("https://storage.example", timeout_seconds=5)
    assert "secret" not in str(caught.value)


def test_a_proxy_without_tls_is_given_the_whole_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://me:p%40ss@127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://me:p%40ss@127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    route = Route("http://emulator:80", timeout_seconds=5)
    assert (route.prefix, route.tunnel) == ("http://emulator:80", b"")
    assert route.proxy_headers == "Proxy-Authorization: Basic bWU6cEBzcw==\r\n"
    assert route._place == ("127.0.0.1", 9)
