"""Headers of tar archives: the blocks of 512 bytes before the contents of members.

Sources: POSIX.1-2008, "ustar Interchange Format" and "pax Header Block"; the manual of
GNU tar, "Basic Tar Format". `tarfile` parses a header; at damage, it ends in silence.
"""

from __future__ import annotations

import re
import tarfile
from typing import NamedTuple

BLOCK_BYTES = 512
MAGIC, MAGIC_AT = b"ustar", 257  # What follows it differs between POSIX and GNU.

REGULAR = frozenset((b"0", b"\0", b"7"))  # 7: one that was meant to be contiguous.
DIRECTORY = b"5"
LONG_NAME = b"L"
LONG_LINK = b"K"
GLOBAL = b"g"
EXTENDING = frozenset((LONG_NAME, LONG_LINK, GLOBAL, b"x", b"X"))
SPARSE = b"S"
_NAMES = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a character device",
    b"4": "a block device",
    b"6": "a FIFO",
    SPARSE: "a sparse file",
}
_EMPTY = frozenset((*_NAMES, DIRECTORY)) - {SPARSE}  # Their size means nothing.

_SIZE_DIGITS = 20  # Python refuses to convert thousands of them.
_PAX_RECORD = re.compile(rb"([0-9]{1,9}) ([^=\n]+)=")


class Header(NamedTuple):
    """The fields of one header.

    Attributes:
        name: Name of the member.
        size_bytes: Bytes of the member, which follow in whole blocks.
        kind: Type of the member, one byte.
    """

    name: bytes
    size_bytes: int
    kind: bytes


def padded(size_bytes: int) -> int:
    """Returns a size in whole blocks.

    >>> padded(0), padded(1), padded(512)
    (0, 512, 512)
    """
    return -(-size_bytes // BLOCK_BYTES) * BLOCK_BYTES


def kind_name(kind: bytes) -> str:
    """Returns the usual name for a type of member.

    >>> kind_name(b"2"), kind_name(b"V")
    ('a symbolic link', "a member of type 'V'")
    """
    return _NAMES.get(kind, f"a member of type {kind.decode('latin-1')!r}")


def parse_header(block: bytes) -> Header | None:
    """Returns the fields of a header, None if there is none.

    One without a magic number, as writers made before 1988, does not count: a sum of
    bytes often fits other data.
    """
    if not block.startswith(MAGIC, MAGIC_AT):
        return None
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return None
    name = info.name.encode("utf-8", "surrogateescape")
    size = 0 if info.type in _EMPTY else info.size
    return None if size < 0 else Header(name, size, info.type)


def pax_fields(data: bytes) -> dict[bytes, bytes] | None:
    r"""Returns the fields of an extended header, None if they are damaged.

    >>> pax_fields(b"16 path=a/b.jpg\n")
    {b'path': b'a/b.jpg'}
    """
    fields: dict[bytes, bytes] = {}
    at = 0
    while at < len(data):
        match = _PAX_RECORD.match(data, at)
        stop = at + int(match[1]) if match else 0
        if match is None or stop <= match.end() or data[stop - 1 : stop] != b"\n":
            return None
        fields[match[2]] = data[match.end() : stop - 1]
        at = stop
    if b"path" in fields:
        fields[b"path"] = fields[b"path"].rstrip(b"/")
    size = fields.get(b"size", b"0")
    return fields if size.isdigit() and len(size) <= _SIZE_DIGITS else None
