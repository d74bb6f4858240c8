"""The segment index of a packed shard: the document of each piece of each row.

It also has the source of each document. The file is little-endian, has no
compression, and can be read with numpy alone; docs/reference/format.md has its fields.
In rows whose pieces are in the order of their documents, the row of each piece in the
order of documents is enough: documents take no bytes, and first tokens only if a
document is cut.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import struct
from typing import Any, NamedTuple

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import FormatVersionError, InvalidDatasetError
from gristmill.dataset.base.places import Places

Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]


def require(holds: Any, what: str) -> None:
    """Raises ValueError if a condition does not hold."""
    if not holds:
        raise ValueError(f"expected {what}")


def bytes_for(count: int) -> int:
    """Returns the bytes that numbers below a count take."""
    return max(1, -(-(max(count, 1) - 1).bit_length() // 8))


def narrowed(values: npt.NDArray[Any], width: int) -> npt.NDArray[np.uint8]:
    """Returns the low bytes of each value, little-endian: uint8 [values, width]."""
    return values.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :width]


def widened(data: bytes, at: int, count: int, width: int) -> UInt32:
    """Returns the numbers that `narrowed` encoded."""
    if width in (1, 2, 4):
        return np.frombuffer(data, f"<u{width}", count, at).astype(np.uint32)
    wide = np.zeros((count, 4), np.uint8)
    narrow = np.frombuffer(data, np.uint8, count * width, at)
    wide[:, :width] = narrow.reshape(count, width)
    return wide.view("<u4").ravel().astype(np.uint32)


def encode_steps(steps: Int64) -> tuple[int, bytes, Int64]:
    """Returns the best width for steps, their bytes, and the steps too long for it.

    Each step that is too long is replaced by the largest number of that width.
    """
    far = {width: steps[steps >= _mark(width)] for width in (1, 2, 3, 4)}
    width = min(far, key=lambda width: width * len(steps) + 8 * len(far[width]))
    short = np.minimum(steps, _mark(width))
    return width, narrowed(short, width).tobytes(), far[width]


def _mark(width: int) -> int:
    return (1 << 8 * width) - 1


def decode_steps(data: bytes, at: int, count: int, width: int, far: Int64) -> Int64:
    """Returns the steps that `encode_steps` encoded: int64 [count], none below 0."""
    steps = widened(data, at, count, width).astype(np.int64)
    marked = np.flatnonzero(steps == _mark(width))
    require(len(marked) == len(far), f"{len(marked):,} far steps and not {len(far):,}")
    steps[marked] = far
    require((steps >= 0).all(), "steps above 0")
    return steps


def running_sums(steps: Int64, counts: Int64) -> Int64:
    """Returns the sums of steps, from the start of each group.

    Raises ValueError if one is above 2**63 - 1.
    """
    sums = np.cumsum(steps)  # May wrap around, which the difference reverses.
    ends = np.cumsum(counts)
    before = np.concatenate(([0], sums))[ends - counts]
    sums -= np.repeat(before, counts)
    require((sums >= steps).all(), "places below 2**63")
    return sums


def stable_order(values: UInt32) -> npt.NDArray[np.intp]:
    """Returns the stable order of values. Numpy has a radix sort for 16 bits only."""
    order = np.argsort(values.astype(np.uint16), kind="stable")
    if values.max(initial=0) >> 16:
        high = (values >> 16).astype(np.uint16)
        order = order[np.argsort(high[order], kind="stable")]
    return order


MAGIC = b"GMSEGMT\n"
VERSION = 1
HEADER_BYTES = 64

# magic, version, bytes of a row, of a step between first tokens, two zeros; rows,
# documents, other documents, bytes of the sources, far firsts; crc32c of the body, of
# the header.
_HEADER = struct.Struct("<8sI2BH5qII")
_CRC_AT = 60

_CURE = (
    "delete this file and run the command that made the dataset again: it makes the "
    "shard again"
)


class Pieces(NamedTuple):
    """The pieces of a document, in order. Arrays are int64 [pieces].

    Attributes:
        rows: Row of each in the shard.
        numbers: Number of each within its row.
        firsts: Position of its first token in the document.
    """

    rows: Int64
    numbers: Int64
    firsts: Int64


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentIndex:
    """The document of each piece of each row of a shard, and its source.

    Pieces are in the order of rows, and within a row in that of their documents.
    Documents are numbered in the order in which they were read; those without a token
    are not counted.

    Attributes:
        row_ends: int64 [rows], where the pieces of each row end; no row is empty.
        piece_documents: uint32 [pieces], the document of each.
        piece_firsts: uint32 [pieces], position of its first token in that document. The
            first piece of a document begins with token 0.
        sources: The source of each document; documents that `--map` made of one record
            have the same.
    """

    row_ends: Int64
    piece_documents: UInt32
    piece_firsts: UInt32
    sources: Places

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.row_ends)

    @property
    def pieces(self) -> int:
        """Number of pieces."""
        return len(self.piece_documents)

    @property
    def documents(self) -> int:
        """Number of documents."""
        return len(self.sources.places)

    def row(self, row: int) -> tuple[UInt32, UInt32]:
        """Returns the documents of a row's pieces, and their first tokens there.

        Raises IndexError if there is no such row.
        """
        row = range(self.rows)[row]
        begin = int(self.row_ends[row - 1]) if row else 0
        pieces = slice(begin, int(self.row_ends[row]))
        return self.piece_documents[pieces], self.piece_firsts[pieces]

    def pieces_of(self, document: int) -> Pieces:
        """Returns the pieces of a document, in order; empty if it is in no row."""
        places = np.flatnonzero(self.piece_documents == document)
        firsts = self.piece_firsts[places].astype(np.int64)
        places = places[np.argsort(firsts)]
        rows = np.searchsorted(self.row_ends, places, side="right")
        begins = np.where(rows > 0, self.row_ends[rows - 1], 0)
        return Pieces(rows, places - begins, np.sort(firsts))

    def encode(self) -> bytes:
        """Returns the bytes of the file: about 5 bytes a piece.

        Memory: about 40 bytes a piece.

        Raises:
            ValueError: The pieces are not in order, or do not match the documents.
        """
        sizes = np.diff(self.row_ends, prepend=0)
        require((sizes > 0).all() and sizes.sum() == self.pieces, "rows with pieces")
        require(len(self.piece_firsts) == self.pieces, "a first token of each piece")
        require(self.documents < 1 << 32, "fewer documents")
        keys = self.piece_documents.astype(np.uint64) << np.uint64(32)
        keys |= self.piece_firsts
        rising = keys[1:] > keys[:-1]
        rising[self.row_ends[:-1] - 1] = True
        require(rising.all(), "pieces of a row in the order of their documents")
        order = np.argsort(keys, kind="stable")
        del keys, rising
        in_pieces = np.bincount(self.piece_documents, minlength=self.documents)
        require(len(in_pieces) == self.documents, "pieces of these documents")
        firsts = self.piece_firsts[order].astype(np.int64)
        begins = np.zeros(self.pieces, np.bool_)
        begins[(np.cumsum(in_pieces) - in_pieces)[in_pieces > 0]] = True
        steps = np.diff(firsts, prepend=0)[~begins]
        require(
            ((firsts == 0) == begins).all() and (steps > 0).all(), "whole documents"
        )
        others = np.flatnonzero(in_pieces != 1)
        first_bytes, first_steps, far_firsts = encode_steps(steps)
        row_bytes = bytes_for(self.rows)
        rows = np.repeat(np.arange(self.rows, dtype=np.uint32), sizes)[order]
        sources = self.sources.encode()
        body = b"".join(
            (
                far_firsts.astype("<i8").tobytes(),
                others.astype("<u4").tobytes(),
                in_pieces[others].astype("<u4").tobytes(),
                sources,
                narrowed(rows, row_bytes).tobytes(),
                first_steps,
            )
        )
        header = _HEADER.pack(
            *(MAGIC, VERSION, row_bytes, first_bytes, 0),
            *(self.rows, self.documents, len(others), len(sources)),
            *(len(far_firsts), google_crc32c.value(body), 0),
        )[:_CRC_AT]
        return header + struct.pack("<I", google_crc32c.value(header)) + body

    @classmethod
    def decode(cls, data: bytes, *, where: str) -> SegmentIndex:
        """Reads the index from the bytes of its whole file.

        Memory: 25 bytes a piece, and about 80 while it is decoded.

        Args:
            data: The bytes.
            where: The file, for messages.

        Raises:
            InvalidDatasetError: It is not a segment index, or is damaged.
            FormatVersionError: Its version is unknown.
        """
        invalid = functools.partial(InvalidDatasetError, where=where, cure=_CURE)
        if len(data) < HEADER_BYTES or data[:8] != MAGIC:
            raise invalid("not a segment index", expected=MAGIC, got=bytes(data[:8]))
        _, version, *fields, body_crc, header_crc = _HEADER.unpack_from(data)
        if version != VERSION:
            raise FormatVersionError.unknown(
                "segment index", where=where, expected=VERSION, got=version
            )
        checks = {"header": (data[:_CRC_AT], header_crc)}
        checks["body"] = data[HEADER_BYTES:], body_crc
        for part, (content, expected) in checks.items():
            if (got := google_crc32c.value(bytes(content))) != expected:
                raise invalid(
                    f"segment index has a damaged {part}",
                    expected=f"crc32c {expected:#010x}",
                    got=f"{got:#010x}",
                )
        try:
            return cls._of_body(data, *fields)
        except ValueError as error:
            raise invalid("segment index contradicts itself", got=str(error)) from error

    @classmethod
    def _of_body(
        cls,
        data: bytes,
        row_bytes: int,
        first_bytes: int,
        zero: int,
        *counts: int,
    ) -> SegmentIndex:
        rows, documents, others, sources_bytes, far_firsts = counts
        widths = row_bytes, first_bytes
        require(not zero and {*widths} <= {1, 2, 3, 4}, "widths of 1 to 4 bytes")
        require(min(counts) >= 0, "counts above 0")
        sizes = [8 * far_firsts, 4 * others, 4 * others, sources_bytes]
        require(HEADER_BYTES + sum(sizes) <= len(data), "a file as long as its arrays")
        at = [*itertools.accumulate(sizes, initial=HEADER_BYTES)]
        far_first = np.frombuffer(data, "<i8", far_firsts, at[0])
        other = np.frombuffer(data, "<u4", others, at[1]).astype(np.int64)
        # Before any array of so many documents.
        sources = Places.decode(data[at[3] : at[4]], documents)
        require(
            (np.diff(other, prepend=-1) > 0).all()
            and other.max(initial=-1) < documents,
            "documents in order",
        )
        in_pieces = np.ones(documents, np.int64)
        in_pieces[other] = np.frombuffer(data, "<u4", others, at[2])
        pieces = int(in_pieces.sum())
        later = pieces - int(np.count_nonzero(in_pieces))
        rows_at = at[4]
        firsts_at = rows_at + row_bytes * pieces
        require(firsts_at + first_bytes * later == len(data), "a file without more")
        begins = np.zeros(pieces, bool)
        begins[(np.cumsum(in_pieces) - in_pieces)[in_pieces > 0]] = True
        row_of = widened(data, rows_at, pieces, row_bytes)
        require(row_of.max(initial=0) < max(rows, 1) <= max(pieces, 1), "fewer rows")
        in_row = np.bincount(row_of, minlength=rows)
        require((in_row > 0).all(), "rows with pieces")
        steps = np.zeros(pieces, np.int64)
        steps[~begins] = decode_steps(data, firsts_at, later, first_bytes, far_first)
        firsts = running_sums(steps, in_pieces)
        require(firsts.max(initial=0) < 1 << 32, "documents of at most 2**32 tokens")
        order = stable_order(row_of)
        return cls(
            row_ends=np.cumsum(in_row),
            piece_documents=np.repeat(np.arange(documents, dtype=np.uint32), in_pieces)[
                order
            ],
            piece_firsts=firsts.astype(np.uint32)[order],
            sources=sources,
        )
