"""The bytes of a row group, read from the footer itself, for damaged files.

pyarrow ends the process when asked for this in some damaged footers. A footer is a
struct in the compact protocol of Thrift, whose fields have numbers.
"""

from __future__ import annotations

from typing import Any

_ROW_GROUPS = 4  # Fields of a file.
_COLUMNS = 1  # Fields of a row group.
_METADATA = 3  # Fields of its columns.
_COMPRESSED_BYTES, _DATA_PAGE, _DICTIONARY_PAGE = 7, 9, 11
_MAX_DEPTH = 32


def stored_group(footer: bytes, group: int) -> tuple[int, int] | None:
    """Returns the range of bytes that holds all columns of a row group.

    Args:
        footer: The footer, without its length and the magic bytes.
        group: Number of the row group.

    Returns:
        None if the footer does not tell.
    """
    try:
        columns = _Reader(footer).struct()[_ROW_GROUPS][group][_COLUMNS]
        chunks = [column[_METADATA] for column in columns]
        pages = [
            [c[page] for page in (_DATA_PAGE, _DICTIONARY_PAGE) if c.get(page)]
            for c in chunks
        ]
        begins = [min(offsets) for offsets in pages]
        ends = [
            begin + c[_COMPRESSED_BYTES]
            for begin, c in zip(begins, chunks, strict=True)
        ]
        found = min(begins), max(ends)
    except (IndexError, KeyError, TypeError, ValueError, AttributeError):
        return None
    return found if 0 <= found[0] < found[1] else None


class _Reader:
    """Reads values of the compact protocol from bytes."""

    def __init__(self, data: bytes):
        self._data = data
        self._at = 0
        self._depth = 0

    def struct(self) -> dict[int, Any]:
        """Reads a struct: its values by the numbers of their fields."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError("structs within structs without end")
        fields: dict[int, Any] = {}
        number = 0
        while header := self._byte():
            step, kind = header >> 4, header & 15
            number = number + step if step else self._signed()
            fields[number] = kind == 1 if kind in (1, 2) else self._value(kind)
        self._depth -= 1
        return fields

    def _value(self, kind: int) -> Any:
        if kind in (1, 2, 3):  # Booleans of lists, and bytes.
            return self._byte()
        if kind in (4, 5, 6):
            return self._signed()
        if kind == 7:
            return self._bytes(8)
        if kind == 8:
            return self._bytes(self._varint())
        if kind in (9, 10):
            header = self._byte()
            size = header >> 4 if header >> 4 < 15 else self._varint()
            # Each takes at least a byte: a false size ends with the data.
            return [self._value(header & 15) for _ in range(size)]
        if kind == 12:
            return self.struct()
        raise ValueError(f"no values of kind {kind} in a footer")

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _bytes(self, size: int) -> bytes:
        self._at += size
        return self._data[self._at - size : self._at]

    def _varint(self) -> int:
        value = shift = 0
        while True:
            byte = self._byte()
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value
            if shift > 63:
                raise ValueError("a number of too many bytes")

    def _signed(self) -> int:
        value = self._varint()
        return value >> 1 ^ -(value & 1)
