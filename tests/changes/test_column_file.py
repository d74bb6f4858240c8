"""The file of a shard's values: written, read by blocks, and damaged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    FormatVersionError,
    InvalidDatasetError,
)
from gristmill.dataset.columns.column_file import (
    NUMBERS,
    ColumnType,
    decode_column,
    encode_column,
    open_column,
)

RANDOM = np.random.default_rng(7)


def digest_of(records: int) -> RecordsDigest:
    return RecordsDigest(records=records, raw_bytes=9 * records, low=3, high=records)


def texts(*values: str) -> np.ndarray[Any, Any]:
    out = np.empty(len(values), object)
    out[:] = values
    return out


def numbers(kind: str, count: int, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    found = RANDOM.integers(0, 100, (count, *shape)) % (2 if kind == "bool" else 100)
    return found.astype(kind)


@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (0,)])
@pytest.mark.parametrize("kind", NUMBERS)
def test_numbers_come_back(kind: str, shape: tuple[int, ...]) -> None:
    for count in (0, 1, 5_000):
        values = numbers(kind, count, shape)
        column = ColumnType(kind, shape)
        data = encode_column(column, values, digest_of(count))
        back = decode_column(data, path="c", kind=column, records=digest_of(count))
        assert back.dtype == values.dtype
        assert np.array_equal(back, values)


def test_texts_come_back() -> None:
    long = "x" * 50_000
    values = texts("", "Grüße", "\0end\0", long, "\ud800", *map(str, range(9_000)))
    kind = ColumnType("text")
    data = encode_column(kind, values, digest_of(len(values)))
    back = decode_column(data, path="c", kind=kind, records=digest_of(len(values)))
    assert back.tolist() == values.tolist()


def test_blocks_are_read_alone() -> None:
    values = np.arange(20_000, dtype=np.int64)
    kind = ColumnType("int64")
    data = encode_column(kind, values, digest_of(len(values)))
    asked = []

    def read(begin: int, end: int) -> bytes:
        asked.append((begin, end))
        return data[begin:end]

    opened = open_column(
        read, path="c", kind=kind, records=digest_of(20_000), file_bytes=len(data)
    )
    assert opened.blocks > 5
    assert asked == [(0, 1 << 16)]
    begin, end = opened.span(3, 5)
    got = opened.decode(3, 5, data[begin:end])
    first = 3 * opened.block_records
    assert np.array_equal(got, values[first : first + len(got)])
    some = opened.decode(3, 5, data[begin:end], wanted=np.array([4]))
    rows = slice(opened.block_records, None)
    assert np.array_equal(some[rows], got[rows])


@pytest.mark.parametrize(
    ("dtype", "values"),
    [("float64", np.arange(40.0)), ("text", texts("a", "bc", "", "de"))],
)
def test_every_changed_byte_is_found(dtype: str, values: np.ndarray[Any, Any]) -> None:
    kind, records = ColumnType(dtype), digest_of(len(values))
    data = encode_column(kind, values, records)
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 0x20]) + data[at + 1 :]
        with pytest.raises((InvalidDatasetError, FormatVersionError)):
            decode_column(changed, path="c", kind=kind, records=records)
    for end in (0, 1, 60, len(data) - 1):
        with pytest.raises(InvalidDatasetError):
            decode_column(data[:end], path="c", kind=kind, records=records)
    with pytest.raises(InvalidDatasetError, match="size"):
        decode_column(data + b"\0", path="c", kind=kind, records=records)


def test_other_records_and_types_are_refused() -> None:
    kind, values = ColumnType("float32"), np.zeros(4, np.float32)
    data = encode_column(kind, values, digest_of(4))
    other = RecordsDigest(records=4, raw_bytes=36, low=4, high=4)
    with pytest.raises(InvalidDatasetError, match="attached to other records"):
        decode_column(data, path="c", kind=kind, records=other)
    with pytest.raises(InvalidDatasetError, match="another type"):
        decode_column(data, path="c", kind=ColumnType("int32"), records=digest_of(4))
    with pytest.raises(ValueError, match="3 values for 4 records"):
        encode_column(kind, values[:3], digest_of(4))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"dtype": "complex64", "shape": []},
        {"dtype": "float32", "shape": [-1]},
        {"dtype": "float32", "shape": [1 << 40]},
        {"dtype": "float32", "shape": [True]},
        {"dtype": "text", "shape": [2]},
        {"dtype": 3, "shape": []},
        {"dtype": "float32", "shape": "2"},
    ],
)
def test_types_that_cannot_be(fields: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError)):
        ColumnType.parse(fields)
