"""A scan for the features of a batch of `tf.train.Example`, all records at once.

The records are joined end to end and read in parallel by numpy: the first feature of
every record, then the second of every record. This reads the encoding that the official
writers use. Records in other encodings that protocol buffers allow are rare: they are
encoded again first.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import DecodeError, InputError
from gristmill.dataset.base.example import (
    BYTES,
    FLOATS,
    INTS,
    NO_KIND,
    canonical_example,
)
from gristmill.dataset.base.varints import varint_at
from gristmill.loader.base.indices import AnyArray, BoolArray, IntArray

ByteArray = npt.NDArray[np.uint8]

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
    data: ByteArray
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


def _words(data: ByteArray, names: IntArray) -> npt.NDArray[np.uint64]:
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


def lengths_at(data: ByteArray, at: IntArray) -> tuple[IntArray, IntArray, BoolArray]:
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
    data: ByteArray, at: IntArray, limits: IntArray
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


_KINDS = {"b": INTS, "i": INTS, "u": INTS, "f": FLOATS, "O": BYTES}


def checked_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Returns the checked dtype of a feature's values; bytes are objects."""
    try:
        found: np.dtype[Any] | None = np.dtype(dtype)
    except (SyntaxError, TypeError, ValueError):  # By its spelling.
        found = None
    if found is not None and found.kind == "S" and not found.itemsize:
        return np.dtype(object)
    if found is None or found.kind not in _KINDS:
        raise InputError(
            "no feature of a tf.train.Example has values of this type",
            expected="bytes, bool, an integer or a floating-point type",
            got=repr(dtype) if found is None else found,
            cure="give a type such as bytes, numpy.int64 or numpy.float32",
        )
    return found


def kind_of(dtype: np.dtype[Any]) -> int:
    """Returns the kind of list that has values for a dtype."""
    return _KINDS[dtype.kind]


def name_of(dtype: np.dtype[Any]) -> str:
    """Returns the name of a dtype in messages."""
    return "bytes" if dtype.kind == "O" else dtype.name


def constant(value: Any, dtype: np.dtype[Any], *, shape: tuple[int, ...]) -> AnyArray:
    """Returns a value, or values of the shape, as an array of the dtype."""
    try:
        given = np.array(value, object)
        array = given.astype(dtype)
        same = dtype.kind == "f" or bool((array == given).all())
        if dtype.kind == "O":
            same = all(isinstance(item, bytes) for item in given.flat)
        if same:
            return np.broadcast_to(array, shape)
    except (OverflowError, TypeError, ValueError):
        pass  # Raised below, as for any other value that does not fit.
    raise InputError(
        "default does not fit the feature",
        expected=f"{name_of(dtype)}" + (f" of shape {shape}, or one" if shape else ""),
        got=repr(value),
        cure="give a value of this type and shape, or change those of the feature",
    )


def limits_of(dtype: np.dtype[Any]) -> tuple[int, int]:
    """Returns the least and the largest integer that a dtype holds, within int64."""
    if dtype.kind == "b":
        return 0, 1
    info = np.iinfo(dtype)
    return int(info.min), min(int(info.max), (1 << 63) - 1)


def first_outside(values: AnyArray, dtype: np.dtype[Any]) -> int | None:
    """Returns the number of the first value that a dtype cannot hold, or None.

    Values are int64, float32, or int32 in [0, 2^28); the dtype is of the same kind.
    """
    if dtype.kind not in "biu" or not values.size:
        return None
    least, most = limits_of(dtype)
    if values.dtype == np.int32 and most >= 1 << 28:
        return None
    if least <= values.min() and values.max() <= most:
        return None
    return int(np.argmax((values < least) | (values > most)))


def cast(values: Any, dtype: np.dtype[Any]) -> AnyArray:
    """Returns values, a list if they are bytes, as an array of a dtype."""
    if dtype.kind == "O":
        out = np.empty(len(values), object)
        out[:] = values
        return out
    # Overflow of floats gives infinity, as any conversion to such a type does.
    with np.errstate(over="ignore"):
        array: AnyArray = values.astype(dtype, copy=False)
    return array


# Payloads up to this size are gathered byte by byte, larger ones as slices.
_SMALL_BYTES = 48
# Numbers decoded together: their arrays stay in the processor's cache.
_BLOCK = 1 << 14
_MOST_VARINT_BYTES = 10
# With fewer records left than this, numpy costs more than a loop.
_FEW = 8


class BrokenListError(ValueError):
    """The list of the record `row` has an invalid encoding."""

    def __init__(self, row: int, what: str) -> None:
        super().__init__(what)
        self.row = row


class Values(NamedTuple):
    """The values of a feature, record after record.

    Attributes:
        values: int64, int32 or float32 [values]; bytes as a list.
        counts: int64 [records], number of values of each record.
    """

    values: Any
    counts: IntArray


def values_of(scan: Scan, column: FeatureColumn, kind: int) -> Values:
    """Decodes a feature of one kind: `BYTES`, `FLOATS` or `INTS`.

    A record without it has no values. Integers are int32 if all are in [0, 2^28). A
    list that is not a valid encoding is a BrokenListError.
    """
    if kind == BYTES:
        return _bytes(scan, column)
    sizes = column.ends - column.begins
    payload = _gather(scan, column.begins, sizes)
    if kind == FLOATS:
        counts, left = np.divmod(sizes, 4)
        if left.any():
            raise BrokenListError(
                int(np.argmax(left > 0)), "a truncated list of floats"
            )
        return Values(payload.view("<f4"), counts)
    return _ints(payload, sizes)


def _gather(scan: Scan, begins: IntArray, sizes: IntArray) -> ByteArray:
    """Returns the payloads of all records end to end."""
    total = int(sizes.sum())
    if total <= _SMALL_BYTES * len(sizes):
        if total and (sizes == sizes[0]).all():
            return scan.data[begins[:, None] + np.arange(sizes[0])].reshape(-1)
        before = np.cumsum(sizes) - sizes
        return scan.data[np.repeat(begins - before, sizes) + np.arange(total)]
    view = memoryview(scan.buffer)
    pieces = zip(begins.tolist(), (begins + sizes).tolist(), strict=True)
    # A bytearray, so that the result is writable.
    joined = bytearray().join([view[begin:end] for begin, end in pieces])
    return np.frombuffer(joined, np.uint8)


def _ints(payload: ByteArray, sizes: IntArray) -> Values:
    bounds = np.cumsum(sizes)
    ends = np.flatnonzero(payload < 0x80)
    filled = sizes > 0
    cut = np.flatnonzero(payload[bounds[filled] - 1] >= 0x80)
    if len(cut):
        row = int(np.flatnonzero(filled)[cut[0]])
        raise BrokenListError(row, "a list of integers that ends within a number")
    until = np.searchsorted(ends, bounds)
    counts = np.diff(until, prepend=0)
    values = _varints(payload, ends)
    if values is None:
        lengths = np.diff(ends, prepend=-1)
        number = int(np.argmax(lengths > _MOST_VARINT_BYTES))
        row = int(np.searchsorted(until, number, side="right"))
        raise BrokenListError(
            row, f"an integer of more than {_MOST_VARINT_BYTES} bytes"
        )
    return Values(values, counts)


def _varints(payload: ByteArray, ends: IntArray) -> Any:
    """Decodes varints, given where they end; None if one is too long."""
    values: AnyArray = np.empty(len(ends), np.int32)
    for at in range(0, len(ends), _BLOCK):
        block = ends[at : at + _BLOCK]
        if values.dtype == np.int32 and not _varint_block(
            payload, block, 4, values[at : at + _BLOCK]
        ):
            values = values.astype(np.int64)
        if values.dtype == np.int64 and not _varint_block(
            payload, block, _MOST_VARINT_BYTES, values[at : at + _BLOCK]
        ):
            return None
    return values


def _varint_block(
    payload: ByteArray,
    ends: IntArray,
    most_bytes: int,
    out: AnyArray,
) -> bool:
    """Decodes varints into `out`, from their last byte to their first."""
    out[:] = payload.take(ends)
    going: BoolArray | None = None
    for index in range(1, most_bytes + 1):
        # Before the first byte this wraps around; no varint continues there.
        byte = payload.take(ends - index, mode="wrap")
        more = byte >= 0x80
        going = more if going is None else going & more
        if not going.any():
            return True
        if index == most_bytes:
            return False
        ones = going.view(np.uint8)
        # Without a branch for each number: those that have ended are shifted by 0 bits.
        np.left_shift(out, ones * np.uint8(7), out=out)
        byte &= 0x7F
        byte *= ones
        np.bitwise_or(out, byte, out=out)
    return True


def _bytes(scan: Scan, column: FeatureColumn) -> Values:
    """Decodes lists of bytes: the first value of every record, then the second."""
    rows = np.flatnonzero(column.begins < column.ends)
    at, limits = column.begins[rows], column.ends[rows]
    found: list[IntArray] = []
    while len(rows) > _FEW:
        length, begin, good = lengths_at(scan.data, at + 1)
        end = begin + length
        good &= (scan.data[at] == 0x0A) & (end <= limits)
        if not good.all():
            raise BrokenListError(int(rows[np.argmin(good)]), "a broken list of bytes")
        found.append(np.stack([rows, begin, end]))
        left = end < limits
        rows, at, limits = rows[left], end[left], limits[left]
    rest = zip(rows.tolist(), at.tolist(), limits.tolist(), strict=True)
    found += [_bytes_of(scan, row, begin, end) for row, begin, end in rest]
    table = np.hstack(found) if found else np.zeros((3, 0), np.int64)
    if len(found) > 1:
        table = table[:, np.argsort(table[0], kind="stable")]
    buffer = scan.buffer
    values = [
        buffer[begin:end]
        for begin, end in zip(table[1].tolist(), table[2].tolist(), strict=True)
    ]
    return Values(values, np.bincount(table[0], minlength=scan.records))


def _bytes_of(scan: Scan, row: int, at: int, limit: int) -> IntArray:
    """Returns the row, start and end of each value of a record: int64 [3, values]."""
    data, found = scan.buffer, []
    with contextlib.suppress(ValueError):  # A length of 2^35 or more.
        while at < limit and data[at] == 0x0A:
            size, begin = varint_at(data, at + 1, bits=35)
            at = begin + size
            found.append((row, begin, at))
    if at != limit:
        raise BrokenListError(row, "a broken list of bytes")
    return np.array(found, np.int64).T
