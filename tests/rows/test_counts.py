"""Counts of packed rows: as values, in reports, in tables."""

from __future__ import annotations

import dataclasses
import random

import pytest

from gristmill.dataset.base.columns import columns_of
from gristmill.dataset.base.errors import InvalidDatasetError
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.packed.counts import (
    OPTIONAL,
    PACKED_COLUMNS,
    PackedCounts,
)
from tests.support.shards import collected, report

NAMES = [field.name for field in dataclasses.fields(PackedCounts)]


def made_up(seed: int) -> PackedCounts:
    rng = random.Random(seed)
    return PackedCounts(**{name: rng.getrandbits(40) for name in NAMES})


def packed_report(shard: int) -> ShardReport:
    return dataclasses.replace(
        report(shard),
        packed=made_up(shard),
        segments_bytes=1 << 40 | shard,
        segments_crc32c=(1 << 32) - 1 - shard,
    )


def test_they_add_up() -> None:
    parts = [made_up(seed) for seed in range(5)]
    total = sum(parts, PackedCounts())
    for name in NAMES:
        expected = sum(getattr(part, name) for part in parts)
        if name == "most_pieces":
            expected = max(part.most_pieces for part in parts)
        assert getattr(total, name) == expected
    assert total.targets == total.tokens - total.pieces
    assert PackedCounts.of_dict(total.as_dict() | {"other": 1}) == total


def test_reports_and_tables_keep_them() -> None:
    reports = [packed_report(shard) for shard in range(3)]
    one = ShardReport.from_json(reports[1].to_json(), where="here")
    assert one == reports[1]
    table = collected(reversed(reports), job=reports[0].job).table()
    table = ShardTable.decode(table.encode(), where="here")
    assert table.is_packed
    assert list(table.packed(1, 3)) == [each.packed for each in reports[1:]]
    expected = sum((made_up(shard) for shard in range(3)), PackedCounts())
    assert table.packed_total() == expected


@pytest.mark.parametrize(
    "column", [*PACKED_COLUMNS, "segments_bytes", "segments_crc32c"]
)
def test_tables_that_make_no_sense(column: str) -> None:
    table = ShardTable.of([packed_report(0)])
    lost = table.columns.pop(column)
    known = {f"packed_{name}" for name in OPTIONAL}
    if column not in known:  # Those can be missing.
        with pytest.raises(InvalidDatasetError, match=f"lacks.*{column}"):
            ShardTable.decode(table.encode(), where="here")
    if lost.dtype == "<i8":
        table.columns.update(columns_of({column: "<i8"}, [[-1]]))
        with pytest.raises(InvalidDatasetError, match=f"impossible.*{column}"):
            ShardTable.decode(table.encode(), where="here")
