"""The file of one shard's values: read by blocks, each with a checksum.

The file is little-endian. docs/reference/format.md has the table of its fields. Its
header names the digest of the records that the values belong to.
"""

from __future__ import annotations

import dataclasses
import itertools
import struct
from collections.abc import Callable, Sequence
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import FormatVersionError, InvalidDatasetError
from gristmill.dataset.columns.column_type import ColumnType

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
            wanted: Those to decode; others are left as they come. None for all.

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

    def invalid(what: str, expected: object, got: object) -> InvalidDatasetError:
        return InvalidDatasetError(
            what, where=path, expected=expected, got=got, cure=_CURE
        )

    # Most tables of blocks are in the first 64 KiB.
    head = read(0, min(file_bytes, 1 << 16))
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
    blocks = -(-count // block_records) if block_records else 0
    first = HEADER_BYTES + blocks * _TABLE_ROW.itemsize
    if size != file_bytes or not 0 < block_records <= _MOST_BLOCK_RECORDS:
        raise invalid("column has the wrong size", f"{size:,} bytes", f"{file_bytes:,}")
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
