"""The members of tar archives, read forward from a stream."""

from __future__ import annotations

import re
from typing import NamedTuple

from gristmill.dataset.base.errors import CorruptRecordError
from gristmill.dataset.formats.streams import StreamReader

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

_POSIX_MAGIC = b"ustar\0"
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

    A header without a magic number, as from before 1988, does not count: the checksum
    alone often fits other data.
    """
    if not block.startswith(MAGIC, MAGIC_AT) or not _is_intact(block):
        return None
    size, kind = _number(block[124:136]), block[156:157]
    if size is None:
        return None
    name = _text(block[:100])
    if block.startswith(_POSIX_MAGIC, MAGIC_AT) and (prefix := _text(block[345:500])):
        name = prefix + b"/" + name
    if kind == b"\0" and name.endswith(b"/"):
        kind = DIRECTORY  # From before this type existed.
    return Header(name, 0 if kind in _EMPTY else size, kind)


def _is_intact(block: bytes) -> bool:
    """Returns whether the sum of a header's bytes is its checksum."""
    stored = _number(block[148:156])
    if stored is None or len(block) != BLOCK_BYTES:
        return False
    total = sum(block) - sum(block[148:156]) + 8 * ord(" ")
    if total == stored:
        return True
    # Some old writers summed signed bytes. Summed last, as it takes long.
    high = sum(byte > 127 for byte in block[:148] + block[156:])
    return total - 256 * high == stored


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


def _text(field: bytes) -> bytes:
    end = field.find(b"\0")
    return field if end < 0 else field[:end]


def _number(field: bytes) -> int | None:
    """Returns the number in a field: octal digits, or binary where it is too large."""
    if field[:1] == b"\x80":
        return int.from_bytes(field[1:], "big")
    digits = _text(field).strip() or b"0"
    try:
        return int(digits, 8) if digits.isdigit() else None
    except ValueError:
        return None


_SHOWN_BYTES = 200
_NAME_BYTES = 1 << 20  # Of a name or an extended header: far above any real one.
_ZEROS_BYTES = 64 << 20  # After the last member: GNU tar writes 10 KiB.
_SPARSE = b"GNU.sparse."
_NOT_ZERO = re.compile(rb"[^\0]")


_NAME = re.compile(rb"((?:.*/)?[^.]+)\.([^/]*)")
_META = re.compile(rb"__[^/]*__(/|$)")


def split_name(name: bytes) -> tuple[bytes | None, str]:
    """Splits the name of a member where webdataset does.

    >>> split_name(b"train/0001.Seg.png")
    (b'train/0001', 'seg.png')

    Returns:
        The key of its sample: the path up to the first dot of the base name; and what
        follows that dot, in lower case, with surrogates if it is not UTF-8. The key of
        names without an extension and of those below `__...__` is None: they belong to
        no sample.
    """
    match = None if _META.match(name) else _NAME.fullmatch(name)
    if match is None:
        return None, ""
    return match[1], match[2].decode("utf-8", "surrogateescape").lower()


class Member(NamedTuple):
    """One member; all numbers are offsets in the file.

    Attributes:
        start: Offset of its first header.
        begin: Where its content begins.
        end: Where its content ends.
        stop: Where the next header is.
        name: As it is stored.
        key: Key of its sample; None if it belongs to none.
        extension: The rest of its name.
        refused: Its kind, if it cannot be read.
    """

    start: int
    begin: int
    end: int
    stop: int
    name: bytes
    key: bytes | None
    extension: str
    refused: str | None


class MemberReader(StreamReader):
    """Reads the members of a tar from one stream.

    The bytes read stay in memory from `offset` on.
    """

    def fill(self, stop: int) -> bool:
        """Makes the bytes before an offset available, if they exist."""
        return self._fill(stop - self.offset)

    def data(self, begin: int, end: int) -> bytes:
        """Returns bytes that are available, by their offsets."""
        return self._buffer[begin - self._buffer_offset : end - self._buffer_offset]

    def end_offset(self) -> int:
        """Returns where the file ends; its last bytes were already requested."""
        if self.size_bytes is not None:
            return self.size_bytes
        return self._buffer_offset + len(self._buffer)

    def begins_at(self, offset: int) -> bool:
        if offset == self.size_bytes:
            return True
        if not self.fill(offset + BLOCK_BYTES):
            return self.end_offset() == offset
        block = self.data(offset, offset + BLOCK_BYTES)
        return not block.strip(b"\0") or parse_header(block) is not None

    def member(self, at: int) -> Member | None:
        """Returns the member whose first header is at an offset, None at the tar's end.

        Its content may be missing.

        Raises:
            CorruptRecordError: There is no header, or its values are impossible.
        """
        start = at
        fields: dict[bytes, bytes] = {}
        while True:
            header = self._header(at)
            if header is None and at == start:
                return None
            if header is None:
                raise self.corrupt(
                    "header",
                    "tar ends after the long name of a member",
                    expected="the header of the member",
                    got="the mark of the archive's end",
                    offset=start,
                )
            begin, kind = at + BLOCK_BYTES, header.kind
            if kind not in EXTENDING:
                break
            # If there are several headers, the first counts, as for `tarfile`.
            fields = self._fields(at, header) | fields
            at = begin + padded(header.size_bytes)
        if kind == SPARSE:
            begin = self._after_sparse_map(at)
        sparse = kind == SPARSE or any(each.startswith(_SPARSE) for each in fields)
        name = fields.get(b"path", header.name)
        name = fields.get(_SPARSE + b"name", name)
        size = int(fields.get(b"size", header.size_bytes))
        key, extension = (None, "") if kind == DIRECTORY else split_name(name)
        refused = None if kind in REGULAR else kind_name(kind)
        return Member(
            start=start,
            begin=begin,
            end=begin + size,
            stop=begin + padded(size),
            name=name,
            key=key,
            extension=extension,
            refused=kind_name(SPARSE) if sparse else refused,
        )

    def _header(self, at: int) -> Header | None:
        """Returns the header at an offset, None at the mark of the archive's end."""
        if not self.fill(at + 1):
            raise self.corrupt(
                "truncated",
                "tar ends without the mark of its end: it was cut",
                expected="blocks of zeros after the last member",
                got="the end of the file",
                cure="write the file again from its source; if its writer never makes "
                "the mark, add it: head -c 1024 /dev/zero >> FILE",
                offset=at,
            )
        if not self.fill(at + BLOCK_BYTES) and self.data(at, at + BLOCK_BYTES).strip(
            b"\0"
        ):
            raise self.cut(at, at + BLOCK_BYTES)
        block = self.data(at, at + BLOCK_BYTES)
        if not block.strip(b"\0"):
            self._check_only_zeros(at)
            return None
        header = parse_header(block)
        if header is None:
            name = name_text(block[:100].partition(b"\0")[0])
            raise self.corrupt(
                "header",
                "corrupt header in a tar"
                if at
                else "not a tar, or its first header is corrupt",
                expected="the header of a member, with a checksum that fits",
                got=f"a checksum that does not fit, with the name {name}"
                if block.startswith(MAGIC, MAGIC_AT)
                else f"bytes that are none: {block[:16].hex(' ')} ...",
                offset=at,
            )
        return header

    def _check_only_zeros(self, at: int) -> None:
        stop = at
        while self.fill(stop + 1):
            found = _NOT_ZERO.search(self._buffer, stop - self._buffer_offset)
            stop = self._buffer_offset + (found.start() if found else len(self._buffer))
            if found or stop - at > _ZEROS_BYTES:
                raise self.corrupt(
                    "zeros",
                    "tar continues after the mark of its end",
                    expected="zeros up to the end of the file",
                    cure="write the file again from its source; if tars were joined "
                    "with cat, convert each by itself, or join them with tar "
                    "--concatenate: other readers do not continue here either",
                    got=f"{stop - at:,} zeros, then other bytes"
                    if found
                    else f"more than {_ZEROS_BYTES:,} zeros",
                    offset=at,
                )

    def _fields(self, at: int, header: Header) -> dict[bytes, bytes]:
        """Returns the fields of an extended header for the member after it."""
        begin, size = at + BLOCK_BYTES, header.size_bytes
        expected, got = "fields for the member after it", "other bytes"
        if size > _NAME_BYTES:
            expected, got = f"at most {_NAME_BYTES:,} bytes", f"{size:,} bytes"
        elif not self.fill(begin + padded(size)):
            raise self.cut(at, begin + padded(size))
        else:
            data = self.data(begin, begin + size)
            if header.kind == LONG_NAME:
                return {b"path": data.partition(b"\0")[0]}
            if header.kind == LONG_LINK:
                return {}
            fields = pax_fields(data)
            if header.kind != GLOBAL and fields is not None:
                return fields
            if fields is not None and not {b"path", b"size"} & fields.keys():
                return {}
            if fields is not None:
                got = "a name or a size for all members"
        what = "extended header of a tar cannot be read"
        raise self.corrupt("header", what, expected=expected, got=got, offset=at)

    def _after_sparse_map(self, at: int) -> int:
        """Returns where the content of an old-style GNU sparse file begins."""
        more, stop = self.data(at + 482, at + 483), at + BLOCK_BYTES
        while more != b"\0":
            if not self.fill(stop + BLOCK_BYTES):
                raise self.cut(at, stop + BLOCK_BYTES)
            more = self.data(stop + 504, stop + 505)
            stop += BLOCK_BYTES
        return stop

    def cut(self, begin: int, end: int, name: bytes = b"") -> CorruptRecordError:
        """Returns the error where the file ends within a member, or within a header."""
        part = f"member {name_text(name)}" if name else "header"
        return self.corrupt(
            "truncated",
            f"tar ends in the middle of a {part}",
            expected=f"{end - begin:,} bytes",
            got=f"{self.end_offset() - begin:,} bytes up to the end of the file",
            offset=begin,
        )


def name_text(name: bytes) -> str:
    """Returns a name for a message: names can be very long."""
    text = repr(name[:_SHOWN_BYTES].decode("utf-8", "backslashreplace"))
    return text + "..." if len(name) > _SHOWN_BYTES else text
