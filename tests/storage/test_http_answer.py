"""Answers: whatever pieces they arrive in, they are whole, or refused."""

import pytest

from gristmill.loader.remote.http_connection import Answer, AnswerReader

OK = b"HTTP/1.1 206 Partial Content\r\n"
WHOLE = {
    "length": (OK + b"Content-Length: 3\r\nX-A:  b \r\n\r\nabc", b"abc", True),
    "nothing": (OK + b"content-length:0\r\n\r\n", b"", True),
    "no phrase": (b"HTTP/1.1 206\r\nContent-Length: 3\r\n\r\nabc", b"abc", True),
    "1.0": (b"HTTP/1.0 206 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc", False),
    "close": (
        OK + b"Connection: Close\r\nContent-Length: 3\r\n\r\nabc",
        b"abc",
        False,
    ),
    "the same length twice": (
        OK + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        b"abc",
        True,
    ),
    "chunks": (
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1;x=y\r\nc\r\n0\r\n\r\n",
        b"abc",
        True,
    ),
    "chunks and trailers": (
        OK + b"Transfer-Encoding: Chunked\r\n\r\n3 \r\nabc\r\n0\r\nX-A: b\r\n\r\n",
        b"abc",
        False,
    ),
    "heads before it": (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"
        + OK
        + b"Content-Length: 3\r\n\r\nabc",
        b"abc",
        True,
    ),
    "status without body": (
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n",
        b"",
        True,
    ),
}


def read(data: bytes, cuts: list[int]) -> Answer | None:
    """Feeds pieces until an answer is complete."""
    reader = AnswerReader(100)
    for begin, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        if begin < end and (answer := reader.feed(data[begin:end])) is not None:
            return answer
    return None


@pytest.mark.parametrize("name", WHOLE)
def test_an_answer_is_whole_in_whatever_pieces_it_arrives(name: str) -> None:
    data, body, keeps = WHOLE[name]
    for cut in range(len(data)):
        answer = read(data, [cut])
        assert answer is not None
        assert answer.body == body
        assert answer.status == (304 if name == "status without body" else 206)
    byte_by_byte = read(data, list(range(1, len(data))))
    assert byte_by_byte is not None
    assert (byte_by_byte.body, read(data, []).keeps) == (body, keeps)  # type: ignore[union-attr]
    # Nothing less is an answer.
    assert read(data[:-1], []) is None
