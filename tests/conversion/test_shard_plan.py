"""Plans against brute force: every byte, and every frame, in exactly one shard."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.planning.shard_plan import (
    PlanOptions,
    ShardPlan,
    SourceRange,
    plan_by_bytes,
)

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


def planned(options: PlanOptions, files: Files) -> ShardPlan:
    """Returns a plan; skips what is refused, if it has to be."""
    try:
        return plan_of(options, files)
    except InputError:
        assert options.kind == "num_shards"
        assert options.value is not None
        assume(options.value <= max(1, total_of(files)))
        raise


def total_of(files: Files) -> int:
    return sum(size for size, _ in files)


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
        plan = planned(options, files)
        shards = [shard for _, shard in sorted(owners(plan).items())]
        assert all(len(found) == 1 for found in shards)
        assert shards == sorted(shards)

    @given(options=PLANS, files=FILES)
    def test_ranges_are_what_a_reader_needs(self, options, files):
        plan = planned(options, files)
        for shard in range(plan.shards):
            ranges = plan.ranges(shard)
            assert [r.file_index for r in ranges] == sorted(
                {r.file_index for r in ranges}
            )
            for number, part in enumerate(ranges):
                size, cut = files[part.file_index]
                assert (part.cut, part.from_start) == (cut, not cut)
                # Only the first range of a shard can begin within a file.
                assert part.begin_bytes == 0 or number == 0
                end = part.end_bytes
                if not cut:
                    assert end != size
                    end = size if end < 0 else end
                assert 0 <= part.begin_bytes < end <= size

    @given(options=PLANS, files=FILES)
    def test_number_of_shards(self, options, files):
        plan = planned(options, files)
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

    @given(options=PLANS, files=FILES)
    def test_compressed_files_stay_whole_up_to_the_size_of_a_shard(
        self, options, files
    ):
        plan = planned(options, files)
        total = total_of(files)
        if options.kind == "match_shards" or not total:
            return
        if options.kind == "num_shards":
            shard_bytes = total // options.value
        else:
            shard_bytes = total // -(-total // options.value)
            # Of files that stay whole or not: never as large as a large file.
            assert np.diff(plan.cut_bytes).max() <= 2 * options.value
        for file, (size, cut) in enumerate(files):
            if cut or size <= shard_bytes:
                assert plan.cuts_within(file) == []
            begin = sum(size for size, _ in files[:file])
            cuts = [c - begin for c in plan.cut_bytes if begin < c < begin + size]
            assert cut or plan.cuts_within(file) == cuts

    @given(options=PLANS, files=FILES)
    def test_passes_are_the_shards_that_begin_in_one_compressed_file(
        self, options, files
    ):
        plan = planned(options, files)
        found = [list(plan.pass_of(shard)) for shard in plan.pass_begins.tolist()]
        assert list(itertools.chain(*found)) == list(range(plan.shards))
        begun: list[int] = []
        for shards in found:
            begins = [plan.ranges(shard)[:1] for shard in shards]
            first = {part.file_index for part, *_ in filter(None, begins)}
            if len(shards) > 1:
                (file,) = first
                assert not files[file][1]
            begun += [file for file in first if not files[file][1]]
        assert len(begun) == len(set(begun))  # No file is in two passes.

    @given(files=FILES)
    def test_matching_shards_hold_one_file_each(self, files):
        plan = plan_of(PlanOptions(kind="match_shards", value=None), files)
        for shard, (size, cut) in enumerate(files):
            whole = SourceRange(
                file_index=shard,
                begin_bytes=0,
                end_bytes=size if cut else -1,
                cut=cut,
                from_start=not cut,
            )
            assert plan.ranges(shard) == ((whole,) if size else ())

    @given(files=FILES, count=st.integers(1, 12))
    def test_shards_of_files_that_can_be_cut_are_even(self, files, count):
        files = [(size, True) for size, _ in files]
        if total_of(files) < count:
            return
        plan = plan_of(PlanOptions(kind="num_shards", value=count), files)
        sizes = np.diff(plan.cut_bytes)
        assert sizes.max() - sizes.min() <= 1

    @pytest.mark.parametrize(
        ("sizes", "count", "cuts"),
        [
            ([100, 1, 1], 3, [0, 34, 68, 102]),
            ([1, 1, 100], 3, [0, 34, 68, 102]),
            ([90, 90, 90], 4, [0, 90, 135, 180, 270]),
            ([70, 10, 70, 10], 4, [0, 40, 80, 120, 160]),
            ([100], 100, list(range(101))),
            ([50, 0, 50, 0], 2, [0, 50, 100]),
            ([10, 10, 10, 10], 2, [0, 20, 40]),
            ([10, 10, 10, 10], 3, [0, 10, 30, 40]),
        ],
    )
    def test_compressed_files_are_cut_where_they_are_larger_than_a_shard(
        self, sizes, count, cuts
    ):
        files = [(size, size == 0) for size in sizes]
        plan = plan_of(PlanOptions(kind="num_shards", value=count), files)
        assert plan.cut_bytes.tolist() == cuts

    def test_too_many_shards_are_refused_with_numbers(self):
        with pytest.raises(InputError) as caught:
            plan_of(
                PlanOptions(kind="num_shards", value=1006),
                [(1000, False), (0, True), (5, False)],
            )
        message = str(caught.value)
        assert "cannot make 1,006 shards" in message
        assert "at most 1,005" in message
        assert "3 files, 1,005 bytes" in message
        assert "`num_shards`" in message

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

    @pytest.mark.slow
    @pytest.mark.alone
    def test_a_million_shards_of_a_petabyte_are_planned_quickly(self):
        sizes = np.full(100_000, 10**10, np.int64)
        splittable = np.arange(100_000) % 2 == 0
        began = time.process_time()
        plan = plan_by_bytes(
            PlanOptions(kind="shard_bytes", value=10**9), sizes, splittable
        )
        assert plan.shards > 500_000
        ranges = [plan.ranges(shard) for shard in range(0, plan.shards, 100)]
        assert all(ranges)
        assert time.process_time() - began < 3


class TestPlanOptions:
    @pytest.mark.parametrize(
        ("kind", "value"),
        [
            ("num_shards", 0),
            ("num_shards", -1),
            ("num_shards", None),
            ("match_shards", 3),
        ],
    )
    def test_numbers_that_make_no_sense(self, kind, value):
        with pytest.raises(InputError, match=kind):
            PlanOptions(kind=kind, value=value)
