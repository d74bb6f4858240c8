"""Headers of tars: what `tarfile` reads in them, and how damage is known."""

from __future__ import annotations

import tarfile

from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.formats.tar_members import (
    BLOCK_BYTES,
    Header,
    parse_header,
    pax_fields,
)
from tests.support.tars import FORMATS, tar_of

BLOCK = tar_of([("a/b.jpg", b"content")])[:BLOCK_BYTES]


@given(
    name=st.text("ab .-ü", min_size=1),
    folder=st.sampled_from(["", "a/", "long" * 30 + "/"]),
    size=st.integers(0, 1 << 36),
    format=st.sampled_from([*FORMATS]),
    kind=st.sampled_from([tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE]),
)
def test_headers_say_what_tarfile_reads(name, folder, size, format, kind):
    info = tarfile.TarInfo(folder + name[:80])
    info.size, info.type, info.mtime = size, kind, 1_700_000_000
    try:
        data = info.tobuf(FORMATS[format])
    except ValueError:
        return  # ustar has no room for it.
    # Names of GNU and PAX that are too long stand before it: the last is its own.
    block = data[-BLOCK_BYTES:]
    read = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    assert parse_header(block) == Header(
        read.name.encode("utf-8", "surrogateescape"), read.size, read.type
    )


def test_sums_of_signed_bytes_are_taken_as_well():
    info = tarfile.TarInfo("grün.jpg")
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    high = sum(byte > 127 for byte in block)
    assert high == 2
    stored = int(block[148:154], 8)
    block[148:154] = b"%06o" % (stored - 256 * high)
    assert tarfile.TarInfo.frombuf(bytes(block), "utf-8", "strict").name == "grün.jpg"
    assert parse_header(bytes(block)) is not None


def test_a_header_without_a_magic_number_is_none():
    old = bytearray(BLOCK)
    total = sum(old[257:265])
    old[257:265] = bytes(8)
    old[148:154] = b"%06o" % (int(old[148:154], 8) - total)
    assert tarfile.TarInfo.frombuf(bytes(old), "utf-8", "strict").name == "a/b.jpg"
    assert parse_header(bytes(old)) is None


@given(st.dictionaries(st.text("ab. 1", min_size=1), st.text("a=\n 9ü")))
def test_fields_of_extended_headers(fields):
    fields = {
        name: value for name, value in fields.items() if name not in ("path", "size")
    }
    info = tarfile.TarInfo("a")
    info.pax_headers = fields
    data = info.tobuf(tarfile.PAX_FORMAT)
    header = parse_header(data[:BLOCK_BYTES])
    body = data[BLOCK_BYTES:][: header.size_bytes] if header.kind == b"x" else b""
    assert pax_fields(body) == {
        name.encode(): value.encode() for name, value in fields.items()
    }
