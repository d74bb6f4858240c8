"""The server of the page, asked over a socket."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from email.message import Message

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.view.serve import _STRANGERS, PageServer, _Handler
from gristmill.pipelines.view.write_page import page


@pytest.fixture
def server(opened) -> Iterator[PageServer]:
    with PageServer(opened, page) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def sent(
    server: PageServer, path: str, *, method: str = "GET", host: str | None = None
) -> tuple[int, Message, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.request(method, path, headers={"Host": host} if host else {})
    response = connection.getresponse()
    data = response.read()
    connection.close()
    return response.status, response.headers, data


def asked(server: PageServer, path: str, **options: str) -> tuple[int, str, bytes]:
    status, headers, data = sent(server, f"/{server.token}{path}", **options)
    return status, headers.get_content_type(), data


def test_the_page_and_its_answers(server) -> None:
    status, kind, data = asked(server, "/")
    assert (status, kind) == (200, "text/html")
    assert data == page()
    status, kind, data = asked(server, "/api/record?record=7")
    assert (status, kind) == (200, "application/json")
    assert json.loads(data)["record"] == 7


def test_without_the_token_there_is_nothing(server, opened) -> None:
    token = server.token
    with PageServer(opened, page) as other:
        assert len({token, other.token}) == 2
        strange = other.token
    assert len(token) >= 22
    for path in (
        *("/", "/favicon.ico", "/api/overview", "/page/", "//", "/x"),
        *(f"/{token[:-1]}/", f"/{token}x/", f"/{token.swapcase()}/", f"/{strange}/"),
        *(f"/{token}?a", f"/x/../{token}/", f"/%2e/{token}/", "/%ff/"),
    ):
        for host in ("127.0.0.1", "evil.example"):
            status, headers, data = sent(server, path, host=host)
            assert (status, data) == (404, b"Not found\n"), path
            assert token not in str(headers)
    status, headers, _ = sent(server, f"/{token}/")
    assert (status, headers["Referrer-Policy"]) == (200, "no-referrer")
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-store"
    # Without its slash, the page would ask at other addresses.
    status, headers, _ = sent(server, f"/{token}")
    assert (status, headers["Location"]) == (303, f"/{token}/")


@pytest.mark.slow
def test_connections_without_the_token_are_few_and_short(server, monkeypatch) -> None:
    """Those that say nothing make room, and do not keep the user out."""

    def connected() -> socket.socket:
        return socket.create_connection(("127.0.0.1", server.server_port), 60)

    user = http.client.HTTPConnection("127.0.0.1", server.server_port)
    user.request("GET", f"/{server.token}/api/record?record=7")
    assert user.getresponse().read()
    silent = [connected() for _ in range(_STRANGERS + 5)]
    try:
        # The oldest are closed: these read the end.
        assert [one.recv(1) for one in silent[:5]] == [b""] * 5
        user.request("GET", f"/{server.token}/api/record?record=7")
        assert user.getresponse().status == 200
        assert asked(server, "/api/record?record=7")[0] == 200
    finally:
        for one in (*silent, user):
            one.close()
    with connected() as wrong:
        wrong.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        answer = b"".join(iter(lambda: wrong.recv(1000), b""))
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"Connection: close" in answer
    monkeypatch.setattr(_Handler, "timeout", 0.1)
    with connected() as silent_one:
        assert silent_one.recv(1) == b""


def test_what_a_command_line_shows_leads_to_the_page_once(server) -> None:
    _, _, once = server.url_once().rpartition("/")
    assert once != server.token
    assert sent(server, f"/{once}", host="evil.example")[0] == 403
    assert sent(server, f"/{once}")[0] == 404
    _, _, once = server.url_once().rpartition("/")
    status, headers, data = sent(server, f"/{once}")
    assert (status, headers["Location"], data) == (303, f"/{server.token}/", b"")
    assert headers["Referrer-Policy"] == "no-referrer"
    assert sent(server, f"/{once}")[0] == 404


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "/../setup.py", "/page/", "/index.html", "/api/"]
)
def test_no_other_file_is_there(server, path: str) -> None:
    status, kind, data = asked(server, path)
    assert (status, kind) == (404, "application/json")
    assert "no answer at this address" in json.loads(data)["error"]["what"]


def test_another_name_of_this_machine_is_refused(server) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "evil.example:80"):
        status, _, data = asked(server, "/api/overview", host=host)
        assert status == 403
        assert "this machine" in json.loads(data)["error"]["what"]
        assert asked(server, "/", host=host)[0] == 403
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port)
    connection.putrequest("GET", f"/{server.token}/", skip_host=True)
    for host in ("127.0.0.1", "evil.example"):
        connection.putheader("Host", host)
    connection.endheaders()
    assert connection.getresponse().status == 403
    connection.close()
    for host in ("localhost", "localhost:1234", "[::1]:99", "127.0.0.1"):
        assert asked(server, "/", host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_only_get_is_answered(server, method: str) -> None:
    assert asked(server, "/api/overview", method=method)[0] == 501


def test_a_port_that_is_taken_is_refused(server, opened) -> None:
    with pytest.raises(InputError, match="the port cannot be used"):
        PageServer(opened, page, port=server.server_port)


def test_what_fails_is_told_and_the_server_goes_on(server, monkeypatch) -> None:
    dataset = server.opened.datasets[""]
    failures: dict[str, Exception] = {
        "/a/shard": PermissionError(13, "Permission denied", "/a/shard"),
        "api/record?record=7": KeyError("a bug"),
    }
    for where, failure in failures.items():

        def read(*_: object, failure: Exception = failure) -> None:
            raise failure

        with monkeypatch.context() as patch:
            patch.setattr(dataset, "read", read)
            status, _, data = asked(server, "/api/record?record=7")
        error = json.loads(data)["error"]
        assert status == 500
        assert "Traceback" not in str(error)
        assert error["cure"]
        assert error["where"] == where
        assert asked(server, "/api/record?record=7")[0] == 200
