"""The certificate of duplicates: its bytes, its order, and damage to any of them."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import numpy as np
import pytest

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    DataLossError,
    FormatVersionError,
    GristmillError,
    InputError,
)
from gristmill.dataset.duplicates.certificate import (
    HEADER_BYTES,
    REMOVAL,
    Searched,
    open_certificate,
    write_certificate,
)

FILES = (("a/\udcff.tfrecord", 120, "none"), ("b.tfrecord.gz", 7, "gzip"))
SEARCHED = Searched(by="text:text", source='{"format":"tfrecord"}', files=FILES)
RECORDS = RecordsDigest(records=1000, raw_bytes=5000, low=1 << 63, high=3)
ROWS = [(0, 0, 16, 0), (0, 0, 30, 16), (1, 0, 0, 30), (1, 1, 9, 0), (1, 0, 12, 0)]
GOLDEN = (
    "474d44555045530a010000000200000079010000000000007d0000000000000005000000"
    "00000000e803000000000000881300000000000000000000000000800300000000000000"
    "319074d3536887a3325907557b226279223a22746578743a74657874222c2266696c6573"
    "223a5b5b22612f5c75646366662e74667265636f7264222c3132302c226e6f6e65225d2c"
    "5b22622e74667265636f72642e677a222c372c22677a6970225d5d2c22736f7572636522"
    "3a227b5c22666f726d61745c223a5c2274667265636f72645c227d227d000000007ebdf6"
    "f5100000000000000001000000e7b51573000000000000000001000000acad55710c0000"
    "000000000000000000000000001000000000000000000000000000000000000000000000"
    "001e000000000000001000000000000000010000000000000000000000000000001e0000"
    "000000000001000000010000000900000000000000000000000000000001000000000000"
    "000c000000000000000000000000000000"
)


def removals(rows: list[Any]) -> np.ndarray[Any, Any]:
    return np.array(rows, REMOVAL)


def written(path: pathlib.Path, rows: list[Any] = ROWS, **options: Any) -> str:
    parts = [removals(rows[:1]), removals(rows[1:1]), removals(rows[1:])]
    options = {"removed": len(rows), "block_removals": 2, **options}
    write_certificate(str(path), SEARCHED, RECORDS, parts, **options)
    return str(path)


def everything(path: str) -> Any:
    found = open_certificate(path)
    rows = [row for block in found.blocks() for row in block.tolist()]
    return found.searched, found.records, found.removed, found.kept, rows


@pytest.mark.parametrize("count", range(len(ROWS) + 1))
def test_removals_come_back(tmp_path: pathlib.Path, count: int) -> None:
    path = written(tmp_path / "c", ROWS[:count])
    rows = ROWS[:count]
    assert everything(path) == (SEARCHED, RECORDS, count, 1000 - count, rows)


def test_bytes_are_those_of_the_format(tmp_path: pathlib.Path) -> None:
    data = pathlib.Path(written(tmp_path / "c")).read_bytes()
    assert data.hex() == GOLDEN
    assert len(data) - 5 * 24 - 3 * 16 - HEADER_BYTES == len(SEARCHED.encode())


def test_removals_between_places(tmp_path: pathlib.Path) -> None:
    rng = random.Random(3)
    for round_ in range(50):
        places = sorted({(rng.randrange(4), rng.randrange(60)) for _ in range(40)})
        rows = [(f, 0, p, -1) for f, p in places]
        rows = [(f, 0, p, 0) for f, p, _, _ in [(f, p, 0, 0) for f, _, p, _ in rows]]
        rows = [row for row in rows if (row[0], row[2]) > (0, 0)]
        size = rng.randrange(1, 9)
        path = tmp_path / f"c{round_}"
        searched = Searched(by="record", source="{}", files=FILES * 2)
        write_certificate(
            *(str(path), searched, RECORDS, [removals(rows)]),
            removed=len(rows),
            block_removals=size,
        )
        found = open_certificate(str(path))
        for _ in range(20):
            file, first = rng.randrange(5), rng.randrange(70)
            last = first + rng.randrange(20)
            expected = [r for r in rows if r[0] == file and first <= r[2] <= last]
            assert found.between(file, first, last).tolist() == expected


@pytest.mark.parametrize(
    "rows",
    [
        [ROWS[1], ROWS[0]],
        [ROWS[0], ROWS[0]],
        [*ROWS[:3], ROWS[2], ROWS[4]],
        [(0, 0, 16, 16)],
        [(0, 1, 16, 0)],
        [(0, 0, 16, -1)],
    ],
)
def test_another_order_is_not_written(tmp_path: pathlib.Path, rows: list[Any]) -> None:
    with pytest.raises(DataLossError, match="lost or added"):
        written(tmp_path / "c", rows)


@pytest.mark.parametrize("removed", [4, 6, 7, 0])
def test_another_number_is_not_written(tmp_path: pathlib.Path, removed: int) -> None:
    with pytest.raises(DataLossError, match="lost or added"):
        written(tmp_path / "c", removed=removed)


def test_no_changed_byte_is_silent(tmp_path: pathlib.Path) -> None:
    path = pathlib.Path(written(tmp_path / "c"))
    data = path.read_bytes()
    changed = [data[:n] for n in range(0, len(data), 7)]
    changed += [data + b"\0", data[:-24], data + data[-24:]]
    for at in range(len(data)):
        other = bytearray(data)
        other[at] ^= 1 << (at % 8)
        changed.append(bytes(other))
    for other in changed:
        path.write_bytes(other)
        with pytest.raises(GristmillError):
            everything(str(path))


def test_unknown_versions_and_missing_files(tmp_path: pathlib.Path) -> None:
    path = pathlib.Path(written(tmp_path / "c"))
    data = bytearray(path.read_bytes())
    data[8] = 2
    path.write_bytes(data)
    with pytest.raises(FormatVersionError):
        open_certificate(str(path))
    with pytest.raises(InputError, match="no such certificate"):
        open_certificate(str(tmp_path / "missing"))
