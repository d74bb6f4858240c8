"""The plan of documents that share a row of tokens, from their lengths alone.

Best-fit decreasing takes pieces from long to short, and puts each where it leaves the
least space. Pieces of one length are interchangeable, and so are rows with equal space
left, so whole groups are placed at once: the work grows with the number of different
lengths, hardly with that of documents.
"""

from __future__ import annotations

import array
import bisect
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Uint32 = npt.NDArray[np.uint32]
Int64 = npt.NDArray[np.int64]

_CHUNK = 1 << 16


class Packing(NamedTuple):
    """Pieces of documents in the order of rows.

    Attributes:
        row_ends: int64 [rows], end of each row's pieces.
        documents: uint32 [pieces], the number of the document.
        firsts: uint32 [pieces], the place of the first token in its document.
        lengths: uint32 [pieces], in tokens; none is empty.
    """

    row_ends: Int64
    documents: Uint32
    firsts: Uint32
    lengths: Uint32


def plan_rows(lengths: Uint32, *, length: int, method: str) -> Packing:
    """Returns the pieces of documents that make each row.

    - `best-fit`: a document that is longer than a row fills whole rows, and its rest is
      packed like a document. No document that fits a row is cut, and there are no more
      rows than best-fit decreasing over all of these pieces needs.
    - `concat`: documents follow one another, and are cut where a row is full.
    - `none`: each document has a row of its own.

    Rows are in the order of their earliest document, and the pieces of a row in the
    order of their documents, so that rows follow the order of the input.

    Memory: at most 24 bytes a piece besides the lengths.

    Args:
        lengths: uint32 [documents], in tokens. Documents without tokens are in no row.
        length: Maximum tokens of a row.
        method: `best-fit`, `concat` or `none`.

    Raises:
        ValueError: The method is unknown, the length is not positive, or a document is
            longer than a row and the method is `none`.
    """
    if length < 1:
        raise ValueError(f"rows of {length:,} tokens")
    if method == "best-fit":
        return _best_fit(lengths, length)
    if method == "concat":
        return _concat(lengths, length)
    if method != "none":
        raise ValueError(f"unknown method {method!r}: best-fit, concat or none")
    if (longest := int(lengths.max(initial=0))) > length:
        raise ValueError(f"a document of {longest:,} tokens in rows of {length:,}")
    documents, firsts, pieces = _cut(lengths, length)
    row_ends = np.arange(1, len(documents) + 1, dtype=np.int64)
    return Packing(row_ends, documents, firsts, pieces)


def begins_of(lengths: Uint32) -> Int64:
    """Returns int64 [documents], start of each if laid end to end."""
    begins = lengths.astype(np.int64)
    np.cumsum(begins, out=begins)
    begins -= lengths
    return begins


def _cut(
    lengths: Uint32, length: int, heads: Uint32 | None = None
) -> tuple[Uint32, Uint32, Uint32]:
    """Cuts documents into pieces that rows hold.

    Args:
        lengths: uint32 [documents].
        length: Tokens of a row.
        heads: uint32 [documents], maximum tokens of the first piece; by default a row.

    Returns:
        Documents, firsts and lengths of the pieces, in the order of documents.
    """
    step = np.uint32(min(length, 2**32 - 1))
    if heads is None:
        heads = np.broadcast_to(step, lengths.shape)
    counts = np.empty(len(lengths), np.uint32)
    chunks = [slice(begin, begin + _CHUNK) for begin in range(0, len(lengths), _CHUNK)]
    for chunk in chunks:
        rests = np.maximum(lengths[chunk], heads[chunk]) - heads[chunk]
        counts[chunk] = (lengths[chunk] > 0) + rests // step + (rests % step > 0)
    total = int(counts.sum(dtype=np.int64))
    documents, firsts, pieces = (np.empty(total, np.uint32) for _ in range(3))
    end = 0
    for chunk in chunks:
        count = counts[chunk]
        numbers = np.repeat(np.arange(len(count)), count)
        begin, end = end, end + len(numbers)
        # The number of each piece within its document.
        places = (
            np.arange(len(numbers))
            - (np.cumsum(count, dtype=np.int64) - count)[numbers]
        )
        head = heads[chunk][numbers]
        later = head + (places - 1) * int(step)
        first = np.where(places > 0, later, 0)
        documents[begin:end] = numbers + chunk.start
        firsts[begin:end] = first
        room = np.where(places > 0, step, head)
        pieces[begin:end] = np.minimum(lengths[chunk][numbers] - first, room)
    return documents, firsts, pieces


def _concat(lengths: Uint32, length: int) -> Packing:
    begins = begins_of(lengths)
    begins %= length
    heads = (length - begins).astype(np.uint32)
    del begins
    documents, firsts, pieces = _cut(lengths, length, heads)
    at_border = heads == length
    del heads
    row_begins = np.flatnonzero((firsts > 0) | at_border[documents])
    row_ends = np.append(row_begins, len(pieces))[1:]
    return Packing(row_ends, documents, firsts, pieces)


def _best_fit(lengths: Uint32, length: int) -> Packing:
    order, row_ends = _input_order(_best_fit_rows(lengths, length))
    # Cut only now, to save memory during the search for rows.
    documents, firsts, pieces = _cut(lengths, length)
    documents = _take(documents, order)
    firsts = _take(firsts, order)
    pieces = _take(pieces, order)
    return Packing(row_ends, documents, firsts, pieces)


def _input_order(rows: Uint32) -> tuple[Uint32, Int64]:
    """Orders rows by their first piece, and the pieces of a row among themselves.

    Args:
        rows: uint32 [pieces], the row of each. No row is empty.

    Returns:
        uint32 [pieces], the order of the pieces; and the ends of rows.
    """
    count = int(rows.max(initial=0)) + 1 if len(rows) else 0
    earliest = np.full(count, len(rows), np.int64)
    np.minimum.at(earliest, rows, np.arange(len(rows)))
    numbers = np.empty(count, np.uint64)
    numbers[np.argsort(earliest)] = np.arange(count, dtype=np.uint64)
    del earliest
    keys = numbers[rows]
    del rows
    row_ends = np.cumsum(np.bincount(keys.view(np.int64), minlength=count))
    return _stable_order(keys), row_ends


def _take(values: Uint32, order: Uint32) -> Uint32:
    """Returns `values[order]`, for which NumPy would copy all of `order` as int64."""
    found = np.empty(len(order), np.uint32)
    for begin in range(0, len(order), _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        found[chunk] = values[order[chunk]]
    return found


def _stable_order(keys: npt.NDArray[np.uint64]) -> Uint32:
    """Returns uint32 [n], the stable order of keys below 2**32, which are overwritten.

    As `argsort` does, in half the time and memory.
    """
    keys <<= np.uint64(32)
    keys += np.arange(len(keys), dtype=np.uint32)
    keys.sort()
    return keys.astype(np.uint32)  # The lower half of each.


def _best_fit_rows(lengths: Uint32, length: int) -> Uint32:
    """Returns uint32 [pieces], the row of each piece by best-fit decreasing."""
    pieces = _cut(lengths, length)[2]
    order = _stable_order(np.uint64(length) - pieces)
    pieces = _take(pieces, order)
    begins = np.flatnonzero(np.diff(pieces, prepend=np.uint32(0)))
    counts = np.diff(begins, append=len(pieces))
    sizes = pieces[begins]
    del pieces
    first_rows, row_counts, shares = _place(sizes.tolist(), counts.tolist(), length)
    # Numbers of rows in the order of steps, each repeated for its pieces.
    jumps = first_rows - (np.cumsum(row_counts) - row_counts)
    visits = np.repeat(jumps.astype(np.uint32), row_counts)
    visits += np.arange(len(visits), dtype=np.uint32)
    shares = np.repeat(shares.astype(np.uint32), row_counts)
    rows = np.empty(len(order), np.uint32)
    end = 0
    for begin in range(0, len(visits), _CHUNK):
        chunk = slice(begin, begin + _CHUNK)
        found = np.repeat(visits[chunk], shares[chunk])
        begin, end = end, end + len(found)
        rows[order[begin:end]] = found
    return rows


def _place(
    sizes: Sequence[int], counts: Sequence[int], length: int
) -> tuple[Int64, Int64, Int64]:
    """Places pieces in rows, all of one size at a time.

    Strict best fit puts a piece where the least space is left. So pieces of one size
    fill a row as far as possible before the next row gets any.

    Args:
        sizes: Sizes of pieces, descending.
        counts: Number of pieces of each size.
        length: Tokens of a row.

    Returns:
        Steps, in the order of pieces: int64 [steps] each, the first of some consecutive
        rows, their number, and the number of pieces for each.
    """
    steps = array.array("q")
    # Space left -> ranges of such rows; and these spaces, ascending, at most as many as
    # the square root of all tokens.
    ranges: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    spaces: list[int] = []
    end_row = 0
    for size, count in zip(sizes, counts, strict=True):
        while count:
            place = bisect.bisect_left(spaces, size)
            if is_new := place == len(spaces):
                space, begin, end = length, end_row, end_row + count
            else:
                space = spaces[place]
                begin, end = ranges[space].pop()
            share = space // size
            rows = min(count // share, end - begin)
            if not rows:
                rows, share = 1, count
            steps.extend((begin, rows, share))
            count -= rows * share
            if is_new:
                end_row += rows
            elif begin + rows < end:
                ranges[space].append((begin + rows, end))
            elif not ranges[space]:
                del spaces[place]
            if left := space - share * size:
                if not ranges[left]:
                    bisect.insort(spaces, left)
                ranges[left].append((begin, begin + rows))
    first_rows, row_counts, shares = np.array(steps, np.int64).reshape(-1, 3).T
    return first_rows, row_counts, shares
