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
from gristmill.dataset.base.places import Places, decode_column, encode_column

Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]

MAGIC = b"GMSEGMT\n"
VERSION = 1
HEADER_BYTES = 40

# magic, version, crc32c of all that follows; documents, pieces, bytes of the sources.
_HEADER = struct.Struct("<8sII3q")
_CHECKED = 16

_CURE = (
    "delete this file and run the command that made the dataset again: it makes the "
    "shard again"
)


def require(holds: Any, what: str) -> None:
    """Raises ValueError if a condition does not hold."""
    if not holds:
        raise ValueError(f"expected {what}")


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

        Memory: about 60 bytes a piece.

        Raises:
            ValueError: The pieces are not in order, or do not match the documents.
        """
        sizes = np.diff(self.row_ends, prepend=0)
        require((sizes > 0).all() and sizes.sum() == self.pieces, "rows with pieces")
        require(len(self.piece_firsts) == self.pieces, "a first token of each piece")
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
        later = _later(in_pieces)
        steps = np.diff(firsts, prepend=0)[later]
        require(((firsts > 0) == later).all() and (steps > 0).all(), "whole documents")
        rows = np.repeat(np.arange(self.rows), sizes)[order]
        sources = self.sources.encode()
        columns = map(encode_column, (in_pieces, rows, steps))
        body = b"".join([sources, *itertools.chain(*columns)])
        counts = struct.pack("<3q", self.documents, self.pieces, len(sources))
        crc = google_crc32c.value(counts + body)
        return struct.pack("<8sII", MAGIC, VERSION, crc) + counts + body

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
        _, version, crc, *counts = _HEADER.unpack_from(data)
        if version != VERSION:
            raise FormatVersionError.unknown(
                "segment index", where=where, expected=VERSION, got=version
            )
        if (got := google_crc32c.value(bytes(data[_CHECKED:]))) != crc:
            raise invalid(
                "segment index is damaged",
                expected=f"crc32c {crc:#010x}",
                got=f"{got:#010x}",
            )
        try:
            return cls._of_body(data, *counts)
        except (ValueError, IndexError, struct.error) as error:
            raise invalid("segment index contradicts itself", got=str(error)) from error

    @classmethod
    def _of_body(
        cls, data: bytes, documents: int, pieces: int, sources_bytes: int
    ) -> SegmentIndex:
        require(min(documents, pieces, sources_bytes) >= 0, "counts above 0")
        at = HEADER_BYTES + sources_bytes
        # Checked before any array of that many documents is made.
        sources = Places.decode(data[HEADER_BYTES:at], documents)
        in_pieces, at = decode_column(data, at, documents)
        known = in_pieces.min(initial=0) >= 0 and in_pieces.max(initial=0) <= pieces
        require(known and in_pieces.sum() == pieces, "pieces of documents")
        later = _later(in_pieces)
        row_of, at = decode_column(data, at, pieces)
        steps = np.zeros(pieces, np.int64)
        steps[later], at = decode_column(data, at, int(later.sum()))
        require(at == len(data), "a file without more")
        rows = row_of.max(initial=-1) + 1
        require(row_of.min(initial=0) >= 0 and rows <= pieces, "fewer rows")
        in_row = np.bincount(row_of, minlength=rows)
        require((in_row > 0).all(), "rows with pieces")
        known = steps[later].min(initial=1) > 0 and steps.max(initial=0) < 1 << 32
        require(known, "pieces that follow one another")
        firsts = np.cumsum(steps)
        firsts -= np.repeat(firsts[~later], in_pieces[in_pieces > 0])
        require(firsts.max(initial=0) < 1 << 32, "documents of at most 2**32 tokens")
        order = np.argsort(row_of, kind="stable")
        owners = np.repeat(np.arange(documents, dtype=np.uint32), in_pieces)
        return cls(
            row_ends=np.cumsum(in_row),
            piece_documents=owners[order],
            piece_firsts=firsts.astype(np.uint32)[order],
            sources=sources,
        )


def _later(in_pieces: Int64) -> npt.NDArray[np.bool_]:
    """Returns which pieces, in the order of documents, do not begin their document."""
    later = np.ones(int(in_pieces.sum()), np.bool_)
    later[(np.cumsum(in_pieces) - in_pieces)[in_pieces > 0]] = False
    return later
