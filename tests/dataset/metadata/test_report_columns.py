"""Reports as columns say what the reports said, whatever way they came together."""

from __future__ import annotations

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.metadata.report_columns import ReportCollector
from gristmill.dataset.metadata.shard_report import ShardReport
from gristmill.dataset.metadata.shard_table import ShardTable
from tests.support.shards import collected, report

JOB = report(0).job


def reports_of(count: int) -> list[ShardReport]:
    return [report(shard, spans=shard % 4) for shard in range(count)]


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
    whole = ReportCollector(JOB, block_reports=block)
    for collector in collectors:
        whole.extend(pickle.loads(pickle.dumps(collector)))
    found = whole.reports()
    assert list(found) == made
    assert (found[3], found[-1], found[2:4]) == (made[3], made[-1], made[2:4])
    assert found.shard_indices.tolist() == list(range(9))
    assert found.read == RecordsDigest.total(item.read for item in made)
    assert found.table.encode() == ShardTable.of(made).encode()


def test_the_later_report_of_a_shard_counts():
    made = reports_of(3)
    again = dataclasses.replace(made[1], file_bytes=7)
    collector = collected([*made, again], job=JOB)
    assert list(collector.reports()) == [made[0], again, made[2]]


def test_reports_of_another_job_are_refused():
    other = dataclasses.replace(report(0), job="other")
    with pytest.raises(ValueError, match="job other"):
        ReportCollector(JOB).add(other)
    with pytest.raises(ValueError, match="job other"):
        ReportCollector(JOB).extend(ReportCollector("other"))


def test_reports_that_arrive_one_by_one_are_joined():
    # As from bundles of one shard each: as columns, each would take six kilobytes.
    whole = ReportCollector(JOB)
    made = reports_of(1000)
    for each in made:
        one = pickle.dumps(collected([each], job=JOB))
        assert len(one) < 1500
        whole.extend(pickle.loads(one))
    assert len(pickle.dumps(whole)) < 1000 * 130
    assert list(whole.reports()) == made


@pytest.mark.parametrize("mapped", [False, True])
def test_shards_that_do_not_hold_what_was_read(mapped):
    made = reports_of(6)
    changes = [
        {"written": dataclasses.replace(made[1].written, records=9)},
        {"added_records": 2},
        {"dropped_records": 0},
        {"written": dataclasses.replace(made[4].written, high=1)},
    ]
    same = [
        dataclasses.replace(
            report, read=report.written, dropped_records=1, added_records=1
        )
        for report in made
    ]
    for shard, change in enumerate(changes, 1):
        same[shard] = dataclasses.replace(same[shard], **change)
    found = collected(same, job=JOB).reports().miscounted(mapped=mapped)
    # Others may be in it if a function made them.
    assert found == ([1, 2, 3] if mapped else [1, 2, 3, 4])
