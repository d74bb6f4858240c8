"""Plans by count, against brute force: exactly so many records in every shard."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.transforms.conversion.count_records import (
    stride_for,
)
from gristmill.transforms.planning.plan_by_records import (
    RecordCounts,
    plan_by_records,
)
from gristmill.transforms.planning.shard_plan import ShardPlan, SourceRange

_PART_BYTES = 9
_STRIDE = 4


class Record:
    """A record of an imagined file: its frame, and what is damaged before it."""

    def __init__(self, begin: int, end: int):
        self.begin, self.end = begin, end


def counts_of(files) -> RecordCounts:
    """Counts files part by part, as workers do: a record is in that of its begin."""
    numbers, records, offsets = [], [], []
    for file, (found, size, cut) in enumerate(files):
        step = _PART_BYTES if cut else max(size, 1)
        for begin in range(0, max(size, 1), step):
            last = begin + step if cut else found[-1].end if found else 0
            begins = [r.begin for r in found if begin <= r.begin < last]
            numbers.append(file)
            records.append(len(begins))
            offsets.append(begins[::_STRIDE] if cut else begins[:1])
    return RecordCounts(
        files=np.array(numbers, np.int64),
        records=np.array(records, np.int64),
        offsets=np.array(list(itertools.chain(*offsets)), np.int64),
        offset_ends=np.cumsum([len(found) for found in offsets]),
        stride_records=_STRIDE,
    )


@st.composite
def counted_files(draw) -> list[tuple[list[Record], int, bool]]:
    """Draws files as (records, size, whether it can be cut), some with damage."""
    files = []
    for _ in range(draw(st.integers(1, 5))):
        end, records = 0, []
        for _ in range(draw(st.integers(0, 12))):
            begin = end + draw(st.sampled_from([0, 0, 0, 3]))
            end = begin + draw(st.integers(1, 4))
            records.append(Record(begin, end))
        size = end + draw(st.sampled_from([0, 0, 2]))
        files.append((records, size, size == 0 or draw(st.booleans())))
    return files


def taken(
    part: SourceRange, records: Sequence[Record], size: int
) -> tuple[int, list[int]]:
    """Reads a range as its definition says; returns where it began and what it took."""
    end = size if part.end_bytes < 0 else part.end_bytes
    inside = [i for i, r in enumerate(records) if part.begin_bytes <= r.begin < end]
    after = [i for i, r in enumerate(records) if r.begin >= end]
    found = [*inside, *after[: part.extra_records]]
    return part.begin_bytes, found[part.skip_records :]


class TestPlanByRecords:
    def plan(self, files, records_per_shard: int) -> ShardPlan:
        return plan_by_records(
            records_per_shard,
            np.array([size for _, size, _ in files], np.int64),
            np.array([cut for _, _, cut in files], bool),
            counts_of(files),
        )

    @given(files=counted_files(), records_per_shard=st.integers(1, 20))
    def test_shards_hold_exactly_their_records(self, files, records_per_shard):
        plan = self.plan(files, records_per_shard)
        everything = [
            (file, record)
            for file, (records, _, _) in enumerate(files)
            for record in range(len(records))
        ]
        assert plan.shards == max(1, -(-len(everything) // records_per_shard))
        for shard in range(plan.shards):
            got = []
            for part in plan.ranges(shard):
                records, size, _ = files[part.file_index]
                _, numbers = taken(part, records, size)
                got += [(part.file_index, number) for number in numbers]
            begin = shard * records_per_shard
            assert got == everything[begin : begin + records_per_shard]

    @given(files=counted_files(), records_per_shard=st.integers(1, 20))
    def test_readers_go_from_frame_to_frame(self, files, records_per_shard):
        plan = self.plan(files, records_per_shard)
        for shard in range(plan.shards):
            for part in plan.ranges(shard):
                records, size, cut = files[part.file_index]
                assert part.exact
                begins = {0, *(record.begin for record in records)}
                assert part.begin_bytes in begins
                if cut:
                    assert part.end_bytes in {*begins, size}
                else:
                    # Entered at the beginning, and left in the middle by counting.
                    assert part.begin_bytes == 0
                    assert part.end_bytes in (0, -1)

    @given(files=counted_files(), records_per_shard=st.integers(1, 20))
    def test_every_file_is_read_to_its_end_by_somebody(self, files, records_per_shard):
        plan = self.plan(files, records_per_shard)
        last: dict[int, SourceRange] = {}
        for shard in range(plan.shards):
            for part in plan.ranges(shard):
                last[part.file_index] = part
        for file, (_, size, cut) in enumerate(files):
            if size:
                assert last[file].end_bytes == (size if cut else -1)
                assert last[file].extra_records == 0

    def test_cuts_within_one_stride_share_an_offset(self):
        # Two parts: from 0 to 9, where all but the last begin, and the rest.
        begins = [0, 1, 2, 3, 4, 5, 6, 9, 10]
        records = [Record(a, b) for a, b in itertools.pairwise([*begins, 12])]
        plan = self.plan([(records, 12, True)], 1)
        assert plan.cut_bytes.tolist() == [0, 0, 0, 0, 4, 4, 4, 9, 9, 12]
        assert plan.cut_records.tolist() == [0, 1, 2, 3, 0, 1, 2, 0, 1, 0]
        (part,) = plan.ranges(5)
        assert part == SourceRange(
            file_index=0,
            begin_bytes=4,
            end_bytes=4,
            exact=True,
            skip_records=1,
            extra_records=2,
        )

    def test_one_compressed_file_in_many_shards_is_always_entered_at_its_start(self):
        records = [Record(i * 10, i * 10 + 10) for i in range(11)]
        plan = self.plan([(records, 37, False)], 3)
        parts = [plan.ranges(shard) for shard in range(plan.shards)]
        assert [(p.begin_bytes, p.end_bytes) for (p,) in parts] == [
            *((0, 0), (0, 0), (0, 0)),
            (0, -1),
        ]
        assert [(p.skip_records, p.extra_records) for (p,) in parts] == [
            *((0, 3), (3, 6), (6, 9)),
            (9, 0),
        ]

    @pytest.mark.alone
    @pytest.mark.slow
    def test_a_million_shards_are_planned_quickly(self):
        records = 2_000_000
        offsets = np.arange(0, records * 100, 102_400, dtype=np.int64)
        counts = RecordCounts(
            files=np.arange(10),
            records=np.full(10, records),
            offsets=np.tile(offsets, 10),
            offset_ends=np.arange(1, 11) * len(offsets),
            stride_records=stride_for(20),
        )
        sizes = np.full(10, records * 100, np.int64)
        began = time.process_time()
        plan = plan_by_records(20, sizes, np.ones(10, bool), counts)
        assert plan.shards == 1_000_000
        assert time.process_time() - began < 2


def test_a_shard_needs_few_offsets_and_passes_over_few_records():
    assert stride_for(1) == stride_for(8 * 1024) == 1024
    assert stride_for(1_000_000) == 125_000
