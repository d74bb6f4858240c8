"""The documents of a packed shard in their order, with their tokens.

Rows come in order, and a document's pieces can be in any of them. So the tokens of all
rows wait in an unnamed file until the last row is added.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterator
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import CorruptShardError, StorageError
from gristmill.dataset.packed.join_documents import piece_place
from gristmill.dataset.packed.row_format import RowBatch, RowFormat
from gristmill.dataset.packed.segment_index import SegmentIndex

_BATCH_TOKENS = 1 << 18  # Bytes handed out together, apart from a longer document.
_MAPPED_TOKENS = 1 << 23  # Bytes read before pages are released.

_CURE = (
    "check the dataset with `gristmill verify`, then restore shard and segment index "
    "from a copy, or pack it again"
)

Int64 = npt.NDArray[np.int64]


class SpooledDocuments(NamedTuple):
    """Consecutive documents of a shard.

    Attributes:
        numbers: int64 [documents], their numbers in the shard.
        lengths: int64 [documents], tokens of each.
        ids: uint32 [tokens], all tokens end to end.
    """

    numbers: Int64
    lengths: Int64
    ids: npt.NDArray[np.uint32]


class DocumentSpool:
    """Joins the documents of one shard from its rows.

    Memory: about 30 bytes a piece, and a few mebibytes. Disk: the tokens of the shard.

    Args:
        segments: The documents of the rows.
        row_format: The encoding of the rows.
        where: The shard, for messages.

    Raises:
        StorageError: The directory for temporary files is missing or full.
    """

    def __init__(self, segments: SegmentIndex, row_format: RowFormat, *, where: str):
        self._segments, self._where = segments, where
        self._dtype = np.dtype("<u2" if row_format.id_bytes == 2 else "<u4")
        self._lengths = np.zeros(segments.pieces, np.uint32)
        self._starts = np.zeros(segments.pieces, np.int64)
        self._removed = np.zeros(segments.documents, bool)
        self._tokens = 0
        try:
            self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        except OSError as e:
            raise _disk_error(e) from e

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def removed_documents(self) -> int:
        """Removed documents of the rows that were added."""
        return int(np.count_nonzero(self._removed))

    def close(self) -> None:
        """Releases the file."""
        self._file.close()

    def add(self, first_row: int, rows: RowBatch) -> None:
        """Adds consecutive rows; those never added are lost.

        Args:
            first_row: Number of the first row in the shard.
            rows: The rows.

        Raises:
            CorruptShardError: They do not match the segment index.
            StorageError: The disk is full.
        """
        index = self._segments
        begin = int(index.row_ends[first_row - 1]) if first_row else 0
        expected = index.row_ends[first_row : first_row + len(rows.row_ends)] - begin
        pieces = slice(begin, begin + len(rows.lengths))
        if not np.array_equal(expected, rows.row_ends) or not np.array_equal(
            index.piece_firsts[pieces], rows.positions
        ):
            raise CorruptShardError(
                "rows do not have the pieces that the segment index has",
                where=f"{self._where}, rows {first_row:,} to "
                f"{first_row + len(rows.row_ends) - 1:,}",
                cure=_CURE,
            )
        lengths = rows.lengths.astype(np.int64)
        removed = rows.removed
        # Treated as rows that were not added: their documents are left out.
        self._lengths[pieces] = np.where(removed, 0, rows.lengths)
        self._removed[index.piece_documents[pieces][removed]] = True
        self._starts[pieces] = self._tokens + np.cumsum(lengths) - lengths
        rest = memoryview(rows.tokens.astype(self._dtype).tobytes())
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as e:
            raise _disk_error(e) from e
        self._tokens += len(rows.tokens)

    def batches(self) -> Iterator[SpooledDocuments]:
        """Yields the documents in their order, about a mebibyte at a time.

        These include documents without a token, but not removed documents, nor those
        with a piece in a row that was not added.

        Raises:
            CorruptShardError: Pieces of a document do not follow one another.
        """
        segments = self._segments
        keys = segments.piece_documents.astype(np.uint64) << np.uint64(32)
        keys |= segments.piece_firsts
        order = np.argsort(keys)
        del keys
        owners = segments.piece_documents[order]
        pieces = np.bincount(owners, minlength=segments.documents)
        piece_ends = np.cumsum(pieces)
        lengths, starts = self._lengths[order].astype(np.int64), self._starts[order]
        there = np.ones(segments.documents, bool)
        there[owners[lengths == 0]] = False  # No piece is empty.
        self._check(order, lengths, there)
        sums = np.concatenate(([0], np.cumsum(lengths)))
        token_ends = sums[piece_ends]
        with _Tokens(self._file.fileno(), self._dtype, self._tokens) as tokens:
            document, documents = 0, segments.documents
            while document < documents:
                done = int(token_ends[document - 1]) if document else 0
                stop = int(np.searchsorted(token_ends, done + _BATCH_TOKENS, "right"))
                # Empty ones count too.
                stop = min(max(stop, document + 1), document + _BATCH_TOKENS, documents)
                numbers = document + np.flatnonzero(there[document:stop])
                own = slice(
                    int(piece_ends[document - 1]) if document else 0,
                    int(piece_ends[stop - 1]),
                )
                good = there[owners[own]]
                ids = tokens.gather(starts[own][good], lengths[own][good])
                before = np.where(numbers > 0, token_ends[numbers - 1], 0)
                yield SpooledDocuments(numbers, token_ends[numbers] - before, ids)
                document = stop

    def _check(
        self, order: npt.NDArray[np.intp], lengths: Int64, there: npt.NDArray[np.bool_]
    ) -> None:
        """Checks that the pieces of each document follow one another, without gaps."""
        index = self._segments
        owners, firsts = index.piece_documents[order], index.piece_firsts[order]
        expected = np.append(0, firsts + lengths)[:-1]
        expected[np.append(True, owners[1:] != owners[:-1])[: len(owners)]] = 0
        if (wrong := np.flatnonzero((firsts != expected) & there[owners])).size:
            at = int(wrong[0])
            raise CorruptShardError(
                "pieces of a document do not follow one another",
                where=f"{self._where}, {piece_place(index, int(order[at]))}",
                expected=f"a piece from token {int(expected[at]):,} on",
                got=f"from token {int(firsts[at]):,} on",
                cure=_CURE,
            )


def _disk_error(error: OSError) -> StorageError:
    return StorageError(
        "documents cannot be kept on disk until they are packed",
        where=tempfile.gettempdir(),
        got=str(error),
        cure="free space there, or set TMPDIR to a directory on a larger disk",
    )


class _Tokens:
    """Tokens in a file, read by their place.

    Args:
        descriptor: Descriptor of the file.
        dtype: Type of a stored token.
        tokens: Number of tokens.
    """

    def __init__(self, descriptor: int, dtype: np.dtype[np.generic], tokens: int):
        size_bytes = tokens * dtype.itemsize
        self._mapped = None
        self._tokens = np.zeros(0, dtype)
        self._read = 0
        if tokens:
            self._mapped = mmap.mmap(descriptor, size_bytes, prot=mmap.PROT_READ)
            self._tokens = np.frombuffer(self._mapped, dtype)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._tokens = np.zeros(0, self._tokens.dtype)
        if self._mapped is not None:
            self._mapped.close()

    def gather(self, starts: Int64, lengths: Int64) -> npt.NDArray[np.uint32]:
        """Returns runs of tokens, end to end."""
        befores = np.cumsum(lengths) - lengths
        places = np.repeat(starts - befores, lengths)
        places += np.arange(len(places))
        self._read += len(places)
        if self._mapped is not None and self._read >= _MAPPED_TOKENS:
            self._mapped.madvise(mmap.MADV_DONTNEED)
            self._read = 0
        found: npt.NDArray[np.uint32] = self._tokens[places].astype(np.uint32)
        return found
