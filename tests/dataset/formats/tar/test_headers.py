"""Headers of tars: what `tarfile` reads in them, and how damage is known."""

from __future__ import annotations

import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.formats.tar.headers import (
    BLOCK_BYTES,
    DIRECTORY,
    Header,
    checksum_surplus,
    kind_name,
    padded,
    parse_header,
    pax_fields,
)
from tests.support.tars import FORMATS, header_of, tar_of

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


def test_every_changed_byte_is_found():
    for position in range(BLOCK_BYTES):
        changed = bytearray(BLOCK)
        changed[position] ^= 1
        found = parse_header(bytes(changed))
        # What ends the digits of the checksum can be anything.
        assert found is None or (
            148 <= position < 156 and found == parse_header(BLOCK)
        ), position


def test_sums_of_signed_bytes_are_taken_as_well():
    info = tarfile.TarInfo("grün.jpg")
    block = bytearray(info.tobuf(tarfile.GNU_FORMAT))
    high = sum(byte > 127 for byte in block)
    assert high == 2
    stored = int(block[148:154], 8)
    block[148:154] = b"%06o" % (stored - 256 * high)
    assert tarfile.TarInfo.frombuf(bytes(block), "utf-8", "strict").name == "grün.jpg"
    assert parse_header(bytes(block)) is not None


def test_the_surplus_is_what_damage_added():
    changed = bytearray(BLOCK)
    changed[2] += 3
    assert checksum_surplus(bytes(changed)) == 3
    changed[2] -= 5
    assert checksum_surplus(bytes(changed)) == -2
    changed[148:150] = b"xx"
    assert checksum_surplus(bytes(changed)) is None
    assert checksum_surplus(BLOCK[:-1]) is None


def test_what_has_no_content_has_no_size():
    info = header_of("folder", kind=tarfile.DIRTYPE)
    info.size = 1000
    header = parse_header(info.tobuf(tarfile.USTAR_FORMAT))
    assert header == Header(b"folder/", 0, DIRECTORY)
    old = header_of("folder/", kind=tarfile.AREGTYPE).tobuf(tarfile.USTAR_FORMAT)
    assert parse_header(old) == Header(b"folder/", 0, DIRECTORY)


def test_a_header_without_a_magic_number_is_none():
    old = bytearray(BLOCK)
    total = sum(old[257:265])
    old[257:265] = bytes(8)
    old[148:154] = b"%06o" % (int(old[148:154], 8) - total)
    assert tarfile.TarInfo.frombuf(bytes(old), "utf-8", "strict").name == "a/b.jpg"
    assert parse_header(bytes(old)) is None


@pytest.mark.parametrize("size", [b"9" * 11, b"-0000000001", b"0x10", b"\xff" * 12])
def test_a_size_that_is_none_makes_no_header(size):
    changed = bytearray(BLOCK)
    changed[124:136] = size.ljust(12, b"\0")
    total = sum(changed) - sum(changed[148:156]) + 8 * 32
    changed[148:156] = b"%06o\0 " % total
    assert parse_header(bytes(changed)) is None


def test_sizes_are_in_whole_blocks():
    assert [padded(size) for size in (0, 1, 512, 513)] == [0, 512, 512, 1024]


def test_types_have_names():
    assert kind_name(b"S") == "a sparse file"
    assert kind_name(b"V") == "a member of type 'V'"


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


@pytest.mark.parametrize(
    "data",
    [
        b"5009 size=" + b"9" * 4998 + b"\n",
        b"x",
        b"9 path=ab",
        b"99 path=ab\n",
        b"3 a=\n",
        b"10 size=x1\n",
        b"0 a=b\n",
    ],
)
def test_damaged_fields_are_none(data):
    assert pax_fields(data) is None
