"""The certificate of exact duplicates: which record stands for each that is removed.

The file is little-endian. docs/reference/format.md has the table of its fields. Its
removals are in order of file and place, in blocks with a checksum each.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import json
import struct
from collections.abc import Iterable, Iterator
from typing import Any, Self

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    DataLossError,
    FormatVersionError,
    InputError,
    InvalidDatasetError,
)
from gristmill.dataset.storage.lookup import storage_for

MAGIC = b"GMDUPES\n"
VERSION = 1
# magic, version, removals of a block, size of the file, size of the description,
# removals, digest of all records: records, bytes, low, high; crc of the description,
# crc of the table of blocks.
_HEADER = struct.Struct("<8sIIQQQqqQQII")
HEADER_BYTES = _HEADER.size + 4  # Its own crc follows.
REMOVAL = np.dtype(
    [("file", "<u4"), ("kept_file", "<u4"), ("place", "<i8"), ("kept_place", "<i8")]
)
_TABLE_ROW = np.dtype([("file", "<u4"), ("crc32c", "<u4"), ("place", "<i8")])
BLOCK_REMOVALS = 1 << 14
_CURE = "restore it from a copy, or find the duplicates again"

Removals = npt.NDArray[np.void]
"""Rows of `REMOVAL`: a removed record and the one that is kept, by file and place."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Searched:
    """What duplicates were found in, and how.

    Attributes:
        by: What is alike in duplicates: `record`, `text:FEATURE`, `normalised:FEATURE`.
        source: How records are made of the files, as JSON that their reader reads.
        files: Path, size in bytes and compression of each file, in order.
    """

    by: str
    source: str
    files: tuple[tuple[str, int, str], ...]

    def encode(self) -> bytes:
        """Returns it as compact JSON, in ASCII."""
        fields = dataclasses.asdict(self)
        return json.dumps(fields, separators=(",", ":"), sort_keys=True).encode()

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Parses it; raises builtin errors."""
        fields = json.loads(data)
        files = tuple(
            (str(p), int(size), str(kind)) for p, size, kind in fields["files"]
        )
        return cls(by=fields["by"], source=fields["source"], files=files)


def write_certificate(
    local: str,
    searched: Searched,
    records: RecordsDigest,
    removals: Iterable[Removals],
    *,
    removed: int,
    block_removals: int = BLOCK_REMOVALS,
) -> None:
    """Writes a certificate to a file of this machine.

    Args:
        local: The file.
        searched: What was searched, and how.
        records: Digest of all records, removed or not.
        removals: All removals in order, in arrays of any length.
        removed: How many they are.
        block_removals: Removals of a block.

    Raises:
        DataLossError: The removals are not in order, or not as many.
    """
    about = searched.encode()
    table = np.zeros(-(-removed // block_removals), _TABLE_ROW)
    first = HEADER_BYTES + len(about) + table.nbytes
    number, last = 0, None
    with open(local, "wb") as file:
        file.seek(first)
        for block in _reblocked(removals, block_removals):
            if not _in_order(block, last) or number == len(table):
                raise _lost(local, "more, or in another order", removed)
            data = block.tobytes()
            crc = google_crc32c.value(data)
            table[number] = (block["file"][0], crc, block["place"][0])
            file.write(data)
            number, last = number + 1, block[-1]
        size = file.tell()
        if size != first + removed * REMOVAL.itemsize:
            raise _lost(local, f"{(size - first) // REMOVAL.itemsize:,}", removed)
        header = _HEADER.pack(
            *(MAGIC, VERSION, block_removals, size, len(about), removed),
            *(records.records, records.raw_bytes, records.low, records.high),
            *(google_crc32c.value(about), google_crc32c.value(table.tobytes())),
        )
        file.seek(0)
        crc = google_crc32c.value(header)
        file.write(header + struct.pack("<I", crc) + about + table.tobytes())


def _reblocked(parts: Iterable[Removals], size: int) -> Iterator[Removals]:
    """Yields the same rows in blocks of one size; the last can be shorter."""
    left = np.empty(0, REMOVAL)
    for part in parts:
        left = np.concatenate([left, part])
        whole = len(left) // size * size
        for begin in range(0, whole, size):
            yield left[begin : begin + size]
        left = left[whole:]
    if len(left):
        yield left


def _in_order(rows: Removals, last: np.void | None) -> bool:
    """Returns whether rows ascend, and each record that is kept is before the other."""
    before = rows if last is None else np.concatenate([[last], rows])
    ascending = _before(
        before["file"][:-1],
        before["place"][:-1],
        before["file"][1:],
        before["place"][1:],
    )
    kept = rows["kept_file"], rows["kept_place"], rows["file"], rows["place"]
    return bool(
        ascending.all() and _before(*kept).all() and (rows["kept_place"] >= 0).all()
    )


def _before(file: Any, place: Any, other_file: Any, other_place: Any) -> Any:
    return (file < other_file) | ((file == other_file) & (place < other_place))


def _lost(where: str, got: str, removed: int) -> DataLossError:
    return DataLossError(
        "removals of duplicates were lost or added",
        where=where,
        expected=f"{removed:,} removals, in order",
        got=got,
        cure="run again; if it repeats, please report it",
    )


class Certificate:
    """An open certificate; see `open_certificate`.

    Attributes:
        path: The file.
        searched: What was searched, and how.
        records: Digest of all records, removed or not.
        removed: How many are removed.
    """

    def __init__(
        self,
        path: str,
        searched: Searched,
        records: RecordsDigest,
        removed: int,
        *,
        table: npt.NDArray[np.void],
        block_removals: int,
        begin_bytes: int,
        identity: str,
    ):
        self.path, self.searched = path, searched
        self.records, self.removed, self.identity = records, removed, identity
        self._crc32cs = table["crc32c"]
        self._firsts = [
            *zip(table["file"].tolist(), table["place"].tolist(), strict=True)
        ]
        self._block_removals, self._begin = block_removals, begin_bytes
        self._block = functools.lru_cache(maxsize=4)(self._read)

    @property
    def kept(self) -> int:
        """How many records are kept."""
        return self.records.records - self.removed

    def blocks(self) -> Iterator[Removals]:
        """Yields all removals, a block at a time.

        Raises InvalidDatasetError if they are damaged.
        """
        last = None
        for number in range(len(self._firsts)):
            block = self._read(number)
            if not _in_order(block, last):
                raise _damaged(self.path, f"block {number:,}", "another order")
            last = block[-1]
            yield block

    def between(self, file: int, first: int, last: int) -> Removals:
        """Returns the removals of a file at the places [first, last].

        Raises InvalidDatasetError if they are damaged.
        """
        begin = max(bisect.bisect_right(self._firsts, (file, first)) - 1, 0)
        end = bisect.bisect_right(self._firsts, (file, last))
        found = [np.empty(0, REMOVAL)]
        for number in range(begin, end):
            rows = self._block(number)
            place = rows["place"]
            inside = (rows["file"] == file) & (place >= first) & (place <= last)
            found.append(rows[inside])
        return np.concatenate(found)

    def _read(self, number: int) -> Removals:
        begin = number * self._block_removals
        count = min(self._block_removals, self.removed - begin)
        at, size = self._begin + begin * REMOVAL.itemsize, count * REMOVAL.itemsize
        data = storage_for(self.path).read(self.path, at, at + size)
        if len(data) != size or google_crc32c.value(data) != self._crc32cs[number]:
            raise _damaged(self.path, f"block {number:,}", "another checksum")
        rows = np.frombuffer(data, REMOVAL)
        files = len(self.searched.files)
        if not _in_order(rows, None) or rows["file"][-1] >= files:
            raise _damaged(self.path, f"block {number:,}", "another order")
        return rows


def _damaged(path: str, what: str, got: object) -> InvalidDatasetError:
    return InvalidDatasetError(
        "certificate of duplicates is damaged",
        where=f"{path}, {what}",
        expected="what its checksums and counts say",
        got=got,
        cure=_CURE,
    )


def open_certificate(path: str) -> Certificate:
    """Opens a certificate by its header, description and table of blocks.

    Raises:
        InputError: There is no such file.
        InvalidDatasetError: It is no certificate, or damaged.
        FormatVersionError: Its version is unknown.
    """
    storage = storage_for(path)
    info = storage.stat(path)
    if info is None:
        raise InputError(
            "there is no such certificate", where=path, cure="correct the path"
        )
    head = storage.read(path, 0, HEADER_BYTES)
    if len(head) < HEADER_BYTES or head[: len(MAGIC)] != MAGIC:
        raise _damaged(path, "header", f"{head[:8]!r}")
    _, version, block, size, about_bytes, removed, *rest = _HEADER.unpack_from(head)
    if version != VERSION:
        raise FormatVersionError.unknown(
            "certificate of duplicates", where=path, expected=VERSION, got=version
        )
    (crc,) = struct.unpack_from("<I", head, _HEADER.size)
    if google_crc32c.value(head[: _HEADER.size]) != crc or not block:
        raise _damaged(path, "header", "another checksum")
    table_bytes = -(-removed // block) * _TABLE_ROW.itemsize
    table_begin = HEADER_BYTES + about_bytes
    begin = table_begin + table_bytes
    if size != info.size_bytes or size != begin + removed * REMOVAL.itemsize:
        raise _damaged(path, "size", f"{info.size_bytes:,} bytes")
    data = storage.read(path, HEADER_BYTES, begin)
    about, table = data[:about_bytes], data[about_bytes:]
    if [*map(google_crc32c.value, (about, table))] != rest[4:]:
        raise _damaged(path, "description or table of blocks", "another checksum")
    records = RecordsDigest(**dict(zip(_DIGEST, rest[:4], strict=True)))
    try:
        searched = Searched.decode(about)
    except (KeyError, TypeError, ValueError) as e:
        raise _damaged(path, "description", repr(e)) from e
    if removed > max(records.records - 1, 0):
        raise _damaged(path, "counts", f"{removed:,} of {records.records:,} removed")
    return Certificate(
        path,
        searched,
        records,
        removed,
        table=np.frombuffer(table, _TABLE_ROW),
        block_removals=block,
        begin_bytes=begin,
        identity=f"{crc:08x}{rest[5]:08x}",
    )


_DIGEST = ("records", "raw_bytes", "low", "high")
