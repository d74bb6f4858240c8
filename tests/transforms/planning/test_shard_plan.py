"""Plans against brute force: every byte, and every frame, in exactly one shard."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.errors import InputError
from gristmill.transforms.planning.shard_plan import (
    FileCount,
    PlanOptions,
    ShardPlan,
    SourceRange,
    plan_by_bytes,
    plan_by_records,
)
from tests.support.memory import peak_memory

# Size and whether the file can be cut.
Files = list[tuple[int, bool]]
FILES = st.lists(st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=8)
PLANS = st.one_of(
    st.just(PlanOptions(kind="match_shards", value=None)),
    st.integers(1, 12).map(lambda n: PlanOptions(kind="num_shards", value=n)),
    st.integers(1, 60).map(lambda n: PlanOptions(kind="shard_bytes", value=n)),
)


def plan_of(options: PlanOptions, files: Files) -> ShardPlan:
    # An empty file is never recognised as compressed.
    return plan_by_bytes(
        options,
        np.array([size for size, _ in files], np.int64),
        np.array([size == 0 or cut for size, cut in files], bool),
    )


def places(files: Files) -> int:
    return sum(size if cut else size > 0 for size, cut in files)


def owners(plan: ShardPlan) -> dict[tuple[int, int], list[int]]:
    """Returns which shards each byte of each file is in, byte by byte."""
    found: dict[tuple[int, int], list[int]] = {
        (file, byte): []
        for file, size in enumerate(plan.sizes.tolist())
        for byte in range(size)
    }
    for shard in range(plan.shards):
        for part in plan.ranges(shard):
            end = part.end_bytes
            if end < 0:
                end = int(plan.sizes[part.file_index])
            for byte in range(part.begin_bytes, end):
                found[part.file_index, byte].append(shard)
    return found


class TestPlanByBytes:
    @given(options=PLANS, files=FILES)
    def test_every_byte_is_in_one_shard_in_order(self, options, files):
        try:
            plan = plan_of(options, files)
        except InputError:
            assert options.kind == "num_shards"
            assert options.value > max(1, places(files))
            return
        shards = [shard for _, shard in sorted(owners(plan).items())]
        assert all(len(found) == 1 for found in shards)
        assert shards == sorted(shards)

    @given(options=PLANS, files=FILES)
    def test_ranges_are_what_a_reader_needs(self, options, files):
        try:
            plan = plan_of(options, files)
        except InputError:
            return
        for shard in range(plan.shards):
            ranges = plan.ranges(shard)
            assert [r.file_index for r in ranges] == sorted(
                {r.file_index for r in ranges}
            )
            for number, part in enumerate(ranges):
                size, cut = files[part.file_index]
                assert part.exact == (part.begin_bytes == 0)
                assert (part.skip_records, part.extra_records) == (0, 0)
                # Only the first range of a shard can begin within a file.
                assert part.begin_bytes == 0 or number == 0
                if not cut:
                    assert (part.begin_bytes, part.end_bytes) == (0, -1)
                else:
                    assert 0 <= part.begin_bytes < part.end_bytes <= size

    @given(options=PLANS, files=FILES)
    def test_number_of_shards(self, options, files):
        try:
            plan = plan_of(options, files)
        except InputError:
            return
        total = sum(size for size, _ in files)
        if options.kind == "match_shards":
            assert plan.shards == len(files)
        elif options.kind == "num_shards":
            assert plan.shards == options.value
            if total:
                assert (np.diff(plan.cut_bytes) > 0).all()
        else:
            assert plan.shards <= max(1, -(-total // options.value))
            if all(cut for _, cut in files):
                assert plan.shards == max(1, -(-total // options.value))
                assert np.diff(plan.cut_bytes).max() <= options.value

    @given(files=FILES)
    def test_matching_shards_hold_one_file_each(self, files):
        plan = plan_of(PlanOptions(kind="match_shards", value=None), files)
        for shard, (size, cut) in enumerate(files):
            whole = SourceRange(
                file_index=shard,
                begin_bytes=0,
                end_bytes=size if cut else -1,
                exact=True,
            )
            assert plan.ranges(shard) == ((whole,) if size else ())

    @given(files=FILES, count=st.integers(1, 12))
    def test_shards_of_files_that_can_be_cut_are_even(self, files, count):
        files = [(size, True) for size, _ in files]
        if places(files) < count:
            return
        plan = plan_of(PlanOptions(kind="num_shards", value=count), files)
        sizes = np.diff(plan.cut_bytes)
        assert sizes.max() - sizes.min() <= 1

    @pytest.mark.parametrize(
        ("sizes", "count", "cuts"),
        [
            ([100, 1, 1], 3, [0, 100, 101, 102]),
            ([1, 1, 100], 3, [0, 1, 2, 102]),
            ([1, 100, 1], 3, [0, 1, 101, 102]),
            ([50, 0, 50, 0], 2, [0, 50, 100]),
            ([10, 10, 10, 10], 2, [0, 20, 40]),
        ],
    )
    def test_compressed_files_give_as_many_shards_as_there_are(
        self, sizes, count, cuts
    ):
        files = [(size, size == 0) for size in sizes]
        plan = plan_of(PlanOptions(kind="num_shards", value=count), files)
        assert plan.cut_bytes.tolist() == cuts

    def test_too_many_shards_are_refused_with_numbers(self):
        with pytest.raises(InputError) as caught:
            plan_of(
                PlanOptions(kind="num_shards", value=4),
                [(1000, False), (0, True), (5, False)],
            )
        message = str(caught.value)
        assert "cannot make 4 shards" in message
        assert "at most 2" in message
        assert "3 files, 2 of them compressed, 1,005 bytes" in message
        assert "--num-shards" in message
        assert "--records-per-shard" in message

    def test_absurdly_many_shards_are_refused_before_they_are_laid_out(self):
        with peak_memory() as peak, pytest.raises(InputError):
            plan_of(PlanOptions(kind="num_shards", value=10**15), [(10**12, True)])
        assert peak.bytes < 1 << 20

    @pytest.mark.parametrize("options", [("num_shards", 1), ("shard_bytes", 5)])
    def test_only_empty_files_make_one_empty_shard(self, options):
        kind, value = options
        plan = plan_of(PlanOptions(kind=kind, value=value), [(0, True), (0, True)])
        assert plan.shards == 1
        assert plan.ranges(0) == ()

    @pytest.mark.parametrize("total_bytes", [(1 << 40) - 1, 1 << 40, 7 << 50, 1 << 62])
    def test_huge_totals_do_not_overflow(self, total_bytes):
        count = 1_000_003
        options = PlanOptions(kind="num_shards", value=count)
        plan = plan_of(options, [(total_bytes // 2, True), (total_bytes // 2, True)])
        total = total_bytes // 2 * 2
        for shard in (0, 1, 2, count // 3, count - 1, count):
            assert plan.cut_bytes[shard] == total * shard // count

    @pytest.mark.alone
    def test_a_million_shards_of_a_petabyte_are_planned_quickly(self):
        sizes = np.full(100_000, 10**10, np.int64)
        splittable = np.arange(100_000) % 2 == 0
        began = time.perf_counter()
        plan = plan_by_bytes(
            PlanOptions(kind="shard_bytes", value=10**9), sizes, splittable
        )
        assert plan.shards > 500_000
        ranges = [plan.ranges(shard) for shard in range(0, plan.shards, 100)]
        assert all(ranges)
        assert time.perf_counter() - began < 3


class TestPlanOptions:
    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            ("num_shards", 0),
            ("num_shards", -1),
            ("shard_bytes", None),
            ("records_per_shard", None),
            ("match_shards", 3),
        ],
    )
    def test_numbers_that_make_no_sense(self, kind, value):
        with pytest.raises(InputError, match=kind):
            PlanOptions(kind=kind, value=value)


class Record:
    """A record of an imagined file: its frame, and what is damaged before it."""

    def __init__(self, begin: int, end: int):
        self.begin, self.end = begin, end


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
        counts = []
        for records, _, cut in files:
            offsets = [record.begin for record in records][::4]
            counts.append(
                FileCount(
                    records=len(records), offsets=tuple(offsets if cut else offsets[:1])
                )
            )
        return plan_by_records(
            records_per_shard,
            np.array([size for _, size, _ in files], np.int64),
            np.array([cut for _, _, cut in files], bool),
            counts,
            stride_records=4,
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
        records = [Record(i * 10, i * 10 + 10) for i in range(8)]
        plan = self.plan([(records, 80, True)], 1)
        assert plan.cut_bytes.tolist() == [0, 0, 0, 0, 40, 40, 40, 40, 80]
        assert plan.cut_records.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
        (part,) = plan.ranges(6)
        assert part == SourceRange(
            file_index=0,
            begin_bytes=40,
            end_bytes=40,
            exact=True,
            skip_records=2,
            extra_records=3,
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
        offsets = tuple(range(0, records * 100, 400))
        began = time.perf_counter()
        plan = plan_by_records(
            20,
            np.full(10, records * 100, np.int64),
            np.ones(10, bool),
            [FileCount(records=records, offsets=offsets)] * 10,
        )
        assert plan.shards == 1_000_000
        assert time.perf_counter() - began < 10


def test_ranges_of_all_shards_tile_every_file():
    # The same, end to end, as the commit sees it: by offsets alone.
    sizes = np.array([100, 0, 7, 1000], np.int64)
    plan = plan_by_bytes(
        PlanOptions(kind="num_shards", value=9), sizes, np.ones(4, bool)
    )
    parts = list(itertools.chain(*map(plan.ranges, range(9))))
    for file, size in enumerate(sizes.tolist()):
        edges = [(p.begin_bytes, p.end_bytes) for p in parts if p.file_index == file]
        assert [begin for begin, _ in edges[1:]] == [end for _, end in edges[:-1]]
        assert (not edges) == (not size)
        if edges:
            assert (edges[0][0], edges[-1][1]) == (0, size)
