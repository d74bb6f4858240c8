"""A gathered table says what the reports said, whatever way they came together."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardCollector, ShardTable
from tests.support.shards import collected, report

JOB = report(0).job


def reports_of(count: int) -> list[ShardReport]:
    return [report(shard, spans=shard % 4) for shard in range(count)]


def encoded(reports: list[ShardReport]) -> bytes:
    return ShardTable.of(reports).encode(gathered=True)


@pytest.mark.slow
@given(
    order=st.permutations(range(9)).map(lambda order: [*order, *order[:3]]),
    cuts=st.lists(st.integers(0, 12), max_size=3),
    block=st.integers(1, 5),
)
def test_any_order_and_any_parts(order, cuts, block):
    made = reports_of(9)
    collectors, begin = [], 0
    for end in [*sorted(cuts), len(order)]:
        part = [made[shard] for shard in order[begin:end]]
        collectors.append(collected(part, job=JOB, block_reports=block))
        begin = end
    whole = ShardCollector(JOB, block_reports=block)
    for collector in collectors:
        whole.extend(pickle.loads(pickle.dumps(collector)))
    assert whole.table().encode(gathered=True) == encoded(made)


def test_the_later_report_of_a_shard_counts():
    made = reports_of(3)
    again = dataclasses.replace(made[1], file_bytes=7)
    collector = collected([*made, again], job=JOB)
    table = collector.table()
    assert table.encode(gathered=True) == encoded([made[0], again, made[2]])


def test_reports_that_arrive_one_by_one_are_joined():
    # As from bundles of one shard each: as columns, each would take six kilobytes.
    whole = ShardCollector(JOB)
    made = reports_of(1000)
    for each in made:
        one = pickle.dumps(collected([each], job=JOB))
        assert len(one) < 1500
        whole.extend(pickle.loads(one))
    assert len(pickle.dumps(whole)) < 1000 * 120
    assert whole.table().encode(gathered=True) == encoded(made)
