"""A scan for the features of a batch of `tf.train.Example`, all records at once.

The records are joined end to end and read in parallel by numpy: the first feature of
every record, then the second of every record. This reads the encoding that the official
writers use. Records in other encodings that protocol buffers allow are rare: they are
encoded again first.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import DecodeError
from gristmill.dataset.base.example import BYTES, NO_KIND, canonical_example
from gristmill.loader.base.indices import IntArray

BoolArray = npt.NDArray[np.bool_]

# Varints and tags are read before the check that they lie within the record.
PADDING = bytes(16)
_LENGTH_BYTES = 4  # Bytes of a varint below 2^28.
_ENDS = range(6)  # Last letters of a name that go into its hash.
_ODD = np.uint64(0x9E3779B97F4A7C15)  # Multiplier that spreads bits.
_TAG = 0x0A  # Field 1, a message, bytes or a packed list; each further field adds 8.


class FeatureColumn(NamedTuple):
    """One feature of every record of a batch. Arrays are [records].

    Attributes:
        kinds: The kind of its list; `NO_KIND` if the record has no such feature.
        begins: Where its payload begins in the batch: the packed numbers, or the
            encoded list of bytes.
        ends: Where it ends.
    """

    kinds: IntArray
    begins: IntArray
    ends: IntArray


class Scan(NamedTuple):
    """A batch of examples, and where their features are. Arrays are [features].

    Attributes:
        buffer: The records, end to end.
        data: The same, uint8.
        records: Number of records.
        rows: The record of each feature.
        names: Where its name begins and ends: int64 [features, 2].
        words: A hash of its name: uint64.
        kinds: The kind of its list.
        payloads: Where its payload begins and ends: int64 [features, 2].
    """

    buffer: bytes
    data: npt.NDArray[np.uint8]
    records: int
    rows: IntArray
    names: IntArray
    words: npt.NDArray[np.uint64]
    kinds: IntArray
    payloads: IntArray

    def column(self, name: bytes) -> FeatureColumn:
        """Returns a feature by its encoded name; the last one of several."""
        alone = np.frombuffer(b"\0" + name, np.uint8)
        word = _words(alone, np.array([[1, len(alone)]]))[0]
        found = np.flatnonzero(self.words == word)
        letters = self.data[self.names[found, :1] + np.arange(len(name))]
        same = (letters == np.frombuffer(name, np.uint8)).all(axis=1)
        if not same.all():
            found = found[same]
        rows = self.rows[found]
        column = np.zeros((3, self.records), np.int64)
        column[0, rows] = self.kinds[found]
        column[1:, rows] = self.payloads[found].T
        return FeatureColumn(*column)

    def names_of(self, row: int) -> list[str]:
        """Returns the names of a record's features, sorted, for messages."""
        spans = self.names[self.rows == row].tolist()
        return sorted(self.buffer[b:e].decode(errors="replace") for b, e in spans)


def _words(data: npt.NDArray[np.uint8], names: IntArray) -> npt.NDArray[np.uint64]:
    """Returns a hash of each name: from its length, first and last letters."""
    begins, ends = names.T
    words: npt.NDArray[np.uint64] = (ends - begins).astype(np.uint64)
    # An empty name comes after its length, which is 0.
    last, within = ends - 1, np.maximum(ends - begins - 1, 0)
    for at in (
        begins - (begins == ends),
        *(last - np.minimum(within, i) for i in _ENDS),
    ):
        words *= _ODD
        words ^= data.take(at)
    return words


def scan_examples(records: Sequence[bytes]) -> Scan:
    """Finds the features of a batch of examples; other records raise DecodeError."""
    scan, odd = _scan(records)
    if not len(odd):
        return scan
    plain = list(records)
    for row in odd.tolist():
        try:
            plain[row] = canonical_example(records[row])
        except ValueError as e:
            raise DecodeError(
                "record is not a tf.train.Example",
                row=row,
                got=f"{len(records[row]):,} bytes: {e}",
                cure="check what the dataset holds with `gristmill head`; decode other "
                "records by a function of your own",
            ) from e
    scan, odd = _scan(plain)
    if len(odd):
        raise DecodeError(
            "record is too large for a tf.train.Example",
            row=int(odd[0]),
            expected=f"features below {1 << 7 * _LENGTH_BYTES:,} bytes",
            got=f"a record of {len(plain[odd[0]]):,} bytes",
            cure="decode such records by a function of your own",
        )
    return scan


def lengths_at(
    data: npt.NDArray[np.uint8], at: IntArray
) -> tuple[IntArray, IntArray, BoolArray]:
    """Reads the varint at each position.

    Returns values, the positions after them, and whether each is below 2^28; otherwise
    value and position are undefined.
    """
    byte = data[at]
    values = (byte & 0x7F).astype(np.int64)
    after = at + 1
    more = byte >= 0x80
    for index in range(1, _LENGTH_BYTES):
        if not more.any():
            break
        byte = data[after]
        values |= np.where(more, (byte & 0x7F).astype(np.int64) << (7 * index), 0)
        after = after + more
        more &= byte >= 0x80
    return values, after, ~more


def _scan(records: Sequence[bytes]) -> tuple[Scan, IntArray]:
    """Returns the scan of those records that it can read, and the other rows."""
    buffer = b"".join(itertools.chain(records, (PADDING,)))
    data = np.frombuffer(buffer, np.uint8)
    sizes = np.fromiter(map(len, records), np.int64, len(records))
    limits = np.cumsum(sizes)
    starts = limits - sizes
    length, at, good = lengths_at(data, starts + 1)
    good &= (data[starts] == _TAG) & (at + length == limits)
    good |= sizes == 0
    rows = np.flatnonzero(good & (at < limits))
    at, limits = at[rows], limits[rows]
    found = []
    while len(rows):
        entry, entry_good = _entries(data, at, limits)
        if not entry_good.all():
            good[rows[~entry_good]] = False
            rows, limits = rows[entry_good], limits[entry_good]
            entry = entry[:, entry_good]
        found.append(np.vstack([rows, entry]))
        at = entry[-1]
        left = at < limits
        if not left.all():
            rows, at, limits = rows[left], at[left], limits[left]
    table = np.hstack(found) if found else np.zeros((6, 0), np.int64)
    odd = np.flatnonzero(~good)
    if len(odd):
        table = table[:, good[table[0]]]
    names = table[1:3].T
    scan = Scan(
        buffer=buffer,
        data=data,
        records=len(records),
        rows=table[0],
        names=names,
        words=_words(data, names),
        kinds=table[3],
        payloads=table[4:6].T,
    )
    return scan, odd


def _entries(
    data: npt.NDArray[np.uint8], at: IntArray, limits: IntArray
) -> tuple[IntArray, BoolArray]:
    """Reads the entry of the map of features that begins at each position.

    Returns int64 [5, entries]: begin and end of the name, kind, begin and end of the
    payload, which is the end of the entry; and whether the entry is valid.
    """
    length, name_tag, good = lengths_at(data, at + 1)
    good &= (data[at] == _TAG) & (name_tag + length <= limits)
    ends = np.minimum(name_tag + length, limits)
    length, name, short = lengths_at(data, name_tag + 1)
    good &= short & (data[name_tag] == _TAG) & (name + length < ends)
    value = np.minimum(name + length, ends)
    length, feature, short = lengths_at(data, value + 1)
    good &= short & (data[value] == _TAG + 8) & (feature + length == ends)
    kinds, wires = np.divmod(data[feature].astype(np.int64), 8)
    unset = length == 0
    length, items, short = lengths_at(data, feature + 1)
    good &= unset | (
        short
        & (wires == 2)
        & (kinds >= BYTES)
        & (kinds <= 3)
        & (items + length == ends)
    )
    begins = items
    packed = (kinds != BYTES) & (length > 0) & ~unset
    if packed.any():
        items = np.minimum(items, ends)
        length, numbers, short = lengths_at(data, items + 1)
        good &= ~packed | (short & (data[items] == _TAG) & (numbers + length == ends))
        begins = np.where(packed, numbers, begins)
    if unset.any():
        kinds, begins = np.where(unset, NO_KIND, kinds), np.where(unset, ends, begins)
    return np.stack([name, value, kinds, begins, ends]), good
