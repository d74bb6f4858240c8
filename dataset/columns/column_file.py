"""The type of a column's values: a number, a text or an array of numbers a record."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import keyword
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    FormatVersionError,
    InputError,
    InvalidDatasetError,
)

TEXT = "text"
NUMBERS = (
    *("bool", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"),
)
MOST_ITEM_BYTES = 1 << 24
_NAME = re.compile("[A-Za-z_][A-Za-z0-9_]{0,63}")
_MOST_AXES = 8


def check_column_name(name: str) -> str:
    """Returns a column's name; raises InputError if an expression cannot have it."""
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise InputError(
            "column name cannot be used in an expression",
            expected="up to 64 ASCII letters, digits and '_', not beginning with a "
            "digit, and no keyword of Python",
            got=repr(name),
            cure="rename the column in its file, or leave it out with --columns",
        )
    return name


@dataclasses.dataclass(frozen=True)
class ColumnType:
    """The type of the values of a column.

    Attributes:
        dtype: The name of a number's type as numpy has it, or `text`.
        shape: The shape of a record's array; () for a single value.
    """

    dtype: str
    shape: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.dtype not in (TEXT, *NUMBERS):
            raise ValueError(f"a column cannot hold {self.dtype!a}")
        if len(self.shape) > _MOST_AXES or any(
            type(size) is not int or size < 0 for size in self.shape
        ):
            raise ValueError(f"not the shape of a column: {self.shape!a}")
        if self.is_text and self.shape:
            raise ValueError("texts of a column are single values")
        if self.item_bytes > MOST_ITEM_BYTES:
            raise ValueError(f"{self.item_bytes:,} bytes a record are too many")

    def __str__(self) -> str:
        sizes = ", ".join(f"{size:,}" for size in self.shape)
        return self.dtype + (f" [{sizes}]" if self.shape else "")

    @property
    def is_text(self) -> bool:
        """Whether the values are texts."""
        return self.dtype == TEXT

    @property
    def stored(self) -> np.dtype[Any]:
        """The type of a single number in a file: little-endian."""
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def item_bytes(self) -> int:
        """The size of a record's numbers; 0 for texts."""
        if self.is_text:
            return 0
        return math.prod(self.shape) * self.stored.itemsize

    def empty(self, records: int = 0) -> npt.NDArray[Any]:
        """Returns an array for the values of some records: `[records, *shape]`."""
        kind = np.dtype(object) if self.is_text else np.dtype(self.dtype)
        return np.empty((records, *self.shape), kind)

    def described(self) -> dict[str, Any]:
        """Returns it as `dataset.json` has it."""
        return {"dtype": self.dtype, "shape": list(self.shape)}

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> Self:
        """Returns the type that `described` wrote, or raises a builtin error."""
        dtype, shape = fields.get("dtype"), fields.get("shape")
        if not isinstance(dtype, str) or not isinstance(shape, list):
            raise TypeError("a column has no type")
        return cls(dtype, tuple(shape))


def kind_of(value: Any) -> ColumnType:
    """Returns the column type of a value; raises ValueError.

    Numbers of Python become int64 and float64; those of numpy keep their type.
    """
    if isinstance(value, str):
        return ColumnType("text")
    array = np.asarray(value)
    if array.dtype.kind == "f" and (lost := lost_number(value)) is not None:
        raise ValueError(f"{lost}, which a float64 does not hold, among floats")
    return ColumnType(array.dtype.name, array.shape)


def lost_number(value: Any) -> int | None:
    """Returns the first integer in a value or its lists that float64 cannot hold."""
    if isinstance(value, list | tuple):
        found = map(lost_number, value)
        return next((each for each in found if each is not None), None)
    if not isinstance(value, int):
        return None
    try:
        return None if int(float(value)) == value else value
    except OverflowError:
        return value


def of_python(kind: ColumnType, values: Sequence[Any]) -> npt.NDArray[Any]:
    """Returns values that are all of a type as one array.

    Raises ValueError(number, text) for the first value of another type.
    """
    for number, value in enumerate(values):
        try:
            found = kind_of(value)
        except ValueError as e:
            raise ValueError(number, str(e)) from e
        if found != kind:
            raise ValueError(number, f"{found}: {value!r:.100}")
    out = kind.empty(len(values))
    if len(values):
        out[:] = values
    return out


MAGIC = b"GMCOLMN\n"
VERSION = 1
# magic, version, dtype, bytes of a record's numbers, records, records of a block,
# lanes of the digest of the records, size of the file, crc of the table of blocks.
_HEADER = struct.Struct("<8sI8sIqIQQqI")
HEADER_BYTES = _HEADER.size + 4  # Its own crc follows.
_TABLE_ROW = np.dtype([("end", "<i8"), ("crc32c", "<u4")])
_BLOCK_BYTES = 16 << 10
_MOST_BLOCK_RECORDS = 1 << 14
_MOST_BLOCK_BYTES = (1 << 32) - 1
_CURE = "restore it from a copy, or attach the column again with --overwrite"

Values = npt.NDArray[Any]
Read = Callable[[int, int], bytes]


def encode_column(kind: ColumnType, values: Values, records: RecordsDigest) -> bytes:
    """Returns the bytes of a shard's file.

    Args:
        kind: The type of the values.
        values: `[records, *shape]`, texts as an array of objects.
        records: Digest of the records that they belong to, in order.
    """
    if len(values) != records.records:
        raise ValueError(f"{len(values)} values for {records.records} records")
    if kind.is_text:
        encoded = [text.encode("utf-8", "surrogatepass") for text in values.tolist()]
        item_bytes = 4 + sum(map(len, encoded)) // max(len(encoded), 1)
    else:
        stored = np.ascontiguousarray(values, kind.stored)
        item_bytes = kind.item_bytes
    fitting = max(_BLOCK_BYTES // max(item_bytes, 1), 1)
    block_records = min(1 << (fitting.bit_length() - 1), _MOST_BLOCK_RECORDS)
    blocks = []
    for begin in range(0, len(values), block_records):
        rows = slice(begin, begin + block_records)
        if kind.is_text:
            blocks.append(_encode_texts(encoded[rows]))
        else:
            blocks.append(stored[rows].tobytes())
    table = np.empty(len(blocks), _TABLE_ROW)
    first = HEADER_BYTES + table.nbytes
    ends = list(itertools.accumulate(map(len, blocks), initial=first))
    table["end"] = ends[1:]
    table["crc32c"] = [*map(google_crc32c.value, blocks)]
    header = _HEADER.pack(
        MAGIC,
        VERSION,
        kind.dtype.encode(),
        kind.item_bytes,
        len(values),
        block_records,
        records.low,
        records.high,
        ends[-1],
        google_crc32c.value(table.tobytes()),
    )
    crc = struct.pack("<I", google_crc32c.value(header))
    return b"".join([header, crc, table.tobytes(), *blocks])


def _encode_texts(texts: Sequence[bytes]) -> bytes:
    ends = np.cumsum([*map(len, texts)])
    if 4 * len(texts) + int(ends[-1]) > _MOST_BLOCK_BYTES:
        raise ValueError("texts of a column take more than 4 GiB in a block")
    return ends.astype("<u4").tobytes() + b"".join(texts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnFile:
    """An open file of a shard's values.

    Attributes:
        path: Where it is, for messages.
        kind: The type of the values.
        records: Number of records.
        block_records: Records of every block but the last.
    """

    path: str
    kind: ColumnType
    records: int
    block_records: int
    _ends: npt.NDArray[np.int64]  # With the start of the first block.
    _crc32cs: npt.NDArray[np.uint32]

    @property
    def blocks(self) -> int:
        """Number of blocks."""
        return len(self._crc32cs)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Returns where blocks [first, last) begin and end in the file."""
        return int(self._ends[first]), int(self._ends[last])

    def spans(
        self, blocks: npt.NDArray[np.int64]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Returns where each of some blocks begins and ends in the file."""
        return self._ends[blocks], self._ends[blocks + 1]

    def decode(
        self,
        first: int,
        last: int,
        data: bytes,
        *,
        wanted: npt.NDArray[np.int64] | None = None,
    ) -> Values:
        """Returns the values of blocks [first, last), given their bytes.

        Args:
            first: The first block.
            last: The block after the last.
            data: The bytes of these blocks.
            wanted: The blocks to decode; values of others are undefined. None for all.

        Raises:
            InvalidDatasetError: They are damaged.
        """
        begin, end = self.span(first, last)
        view = memoryview(data)
        if len(view) != end - begin:
            raise self._damaged(first, f"{end - begin:,} bytes", f"{len(view):,}")
        bounds = (self._ends[first : last + 1] - begin).tolist()
        stop = min(last * self.block_records, self.records)
        out = self.kind.empty(max(stop - first * self.block_records, 0))
        chosen = range(first, last) if wanted is None else wanted.tolist()
        for block in chosen:
            a, b = bounds[block - first : block - first + 2]
            at = (block - first) * self.block_records
            count = min(self.block_records, len(out) - at)
            got = google_crc32c.value(np.frombuffer(view[a:b], np.uint8))
            if got != self._crc32cs[block]:
                expected = f"crc32c {int(self._crc32cs[block]):#010x}"
                raise self._damaged(block, expected, f"{got:#010x}")
            try:
                out[at : at + count] = self._values(view[a:b], count)
            except ValueError as e:
                raise self._damaged(block, f"{count:,} values", str(e)) from e
        return out

    def _values(self, data: memoryview, count: int) -> Any:
        if not self.kind.is_text:
            if len(data) != count * self.kind.item_bytes:
                raise ValueError(f"{len(data):,} bytes")
            found = np.frombuffer(data, self.kind.stored)
            return found.reshape(count, *self.kind.shape)
        ends = np.frombuffer(data, "<u4", count).tolist()
        texts = bytes(data[4 * count :])
        if [*sorted(ends)] != ends or ends[-1] != len(texts):
            raise ValueError("ends of texts that contradict each other")
        found = np.empty(count, object)
        found[:] = [
            texts[a:b].decode("utf-8", "surrogatepass")
            for a, b in itertools.pairwise([0, *ends])
        ]
        return found

    def _damaged(self, block: int, expected: str, got: str) -> InvalidDatasetError:
        return InvalidDatasetError(
            "values of a column are damaged",
            where=f"{self.path}, block {block:,}",
            expected=expected,
            got=got,
            cure=_CURE,
        )


def open_column(
    read: Read,
    *,
    path: str,
    kind: ColumnType,
    records: RecordsDigest,
    file_bytes: int,
) -> ColumnFile:
    """Opens the file of a shard by its header and its table of blocks.

    Args:
        read: Returns the bytes [begin, end) of the file.
        path: Where it is, for messages.
        kind: The type of its values, as the dataset describes it.
        records: Digest of the records of the shard.
        file_bytes: Its size, as the dataset describes it.

    Raises:
        InvalidDatasetError: It is damaged, or belongs to other records.
        FormatVersionError: Its version is unknown.
    """
    # Most tables of blocks are in the first 64 KiB.
    head = read(0, min(file_bytes, 1 << 16))
    invalid = functools.partial(_invalid, path)
    count, block_records, crc = _parse_header(head, path, kind, records, file_bytes)
    blocks = -(-count // block_records)
    first = HEADER_BYTES + blocks * _TABLE_ROW.itemsize
    data = head[HEADER_BYTES:first]
    if len(head) < first <= file_bytes:
        data += read(len(head), first)
    got = google_crc32c.value(data)
    if len(data) != first - HEADER_BYTES or got != crc:
        raise invalid(
            "column has a damaged table of blocks", f"{crc:#010x}", f"{got:#010x}"
        )
    table = np.frombuffer(data, _TABLE_ROW)
    ends = np.concatenate([[first], table["end"]]).astype(np.int64)
    if (np.diff(ends) < 0).any() or ends[-1] != file_bytes:
        raise invalid("column contradicts itself", f"{file_bytes:,} bytes", ends[-1])
    return ColumnFile(
        path=path,
        kind=kind,
        records=count,
        block_records=block_records,
        _ends=ends,
        _crc32cs=table["crc32c"],
    )


def _invalid(
    path: str, what: str, expected: object, got: object
) -> InvalidDatasetError:
    return InvalidDatasetError(what, where=path, expected=expected, got=got, cure=_CURE)


def _parse_header(
    head: bytes, path: str, kind: ColumnType, records: RecordsDigest, file_bytes: int
) -> tuple[int, int, int]:
    """Returns records, records of a block, and the checksum of the table of blocks."""
    invalid = functools.partial(_invalid, path)
    if head[:8] != MAGIC or len(head) < HEADER_BYTES:
        raise invalid("not the file of a column", MAGIC, bytes(head[:8]))
    fields = _HEADER.unpack_from(head)
    _, version, dtype, item_bytes, count, block_records, low, high, size, crc = fields
    if version != VERSION:
        raise FormatVersionError.unknown(
            "column", where=path, expected=VERSION, got=version
        )
    got = google_crc32c.value(head[: _HEADER.size])
    (expected,) = struct.unpack_from("<I", head, _HEADER.size)
    if got != expected:
        raise invalid(
            "column has a damaged header", f"{expected:#010x}", f"{got:#010x}"
        )
    if (count, low, high) != (records.records, records.low, records.high):
        found = RecordsDigest(records=count, low=low, high=high)
        raise invalid(
            "column was attached to other records",
            f"{records.records:,} records, {records.hex}",
            f"{count:,} records, {found.hex}",
        )
    found_kind = dtype.rstrip(b"\0").decode("ascii", "replace")
    if (found_kind, item_bytes) != (kind.dtype, kind.item_bytes):
        raise invalid(
            "column has another type than the dataset says",
            f"{kind}, {kind.item_bytes:,} bytes a record",
            f"{found_kind}, {item_bytes:,} bytes a record",
        )
    if size != file_bytes or not 0 < block_records <= _MOST_BLOCK_RECORDS:
        raise invalid("column has the wrong size", f"{size:,} bytes", f"{file_bytes:,}")
    return count, block_records, crc


def decode_column(
    data: bytes, *, path: str, kind: ColumnType, records: RecordsDigest
) -> Values:
    """Returns all values of a shard, given the bytes of its file; see `open_column`."""

    def read(begin: int, end: int) -> bytes:
        return data[begin:end]

    file = open_column(
        read, path=path, kind=kind, records=records, file_bytes=len(data)
    )
    return file.decode(0, file.blocks, data[file.span(0, 0)[0] :])
