"""Plans against brute force: every byte, and every frame, in exactly one shard."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.commit.write import Write
from gristmill.transforms.conversion.begin import plan_notes
from gristmill.transforms.jobs.conversion_job import PreparedJob
from gristmill.transforms.planning.shard_plan import (
    PlanOptions,
    ShardPlan,
    SourceRange,
    plan_by_bytes,
)
from gristmill.transforms.sources.input_files import InputFiles
from tests.support.conversion import job_of

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


def owners(plan: ShardPlan) -> list[tuple[int, int, int]]:
    """Returns each byte of a file that a shard reads, and the shard."""
    return [
        (part.file_index, byte, shard)
        for shard in range(plan.shards)
        for part in plan.ranges(shard)
        for byte in range(part.begin_bytes, end_of(plan, part))
    ]


def end_of(plan: ShardPlan, part: SourceRange) -> int:
    return part.end_bytes if part.end_bytes >= 0 else int(plan.sizes[part.file_index])


@given(options=PLANS, files=FILES)
def test_every_byte_is_in_one_shard_in_order(options, files):
    total = sum(size for size, _ in files)
    if options.kind == "num_shards" and options.value > max(1, total):
        with pytest.raises(InputError):
            plan_of(options, files)
        return
    plan = plan_of(options, files)
    found = owners(plan)
    places = [(n, byte) for n, (size, _) in enumerate(files) for byte in range(size)]
    assert [(file, byte) for file, byte, _ in found] == places
    # What a reader needs.
    for shard in range(plan.shards):
        for number, part in enumerate(plan.ranges(shard)):
            size, cut = files[part.file_index]
            assert (part.cut, part.from_start) == (cut, not cut)
            # Only the first range of a shard can begin within a file.
            assert part.begin_bytes == 0 or number == 0
            assert cut or part.end_bytes != size
            assert part.begin_bytes < end_of(plan, part) <= size
    # The number of shards, and their sizes.
    sizes, every = np.diff(plan.cut_bytes), all(cut for _, cut in files)
    if options.kind == "match_shards":
        assert plan.shards == len(files)
        assert all(file == shard for file, _, shard in found)
        return
    if options.kind == "num_shards":
        assert plan.shards == options.value
        assert not total or (sizes > 0).all()
        assert not every or sizes.max() - sizes.min() <= 1
        shard_bytes = total // options.value
    else:
        most = max(1, -(-total // options.value))
        assert plan.shards == most if every else plan.shards <= most
        assert sizes.max() <= options.value * (1 if every else 2)
        shard_bytes = total // most
    # Compressed files stay whole up to the size of a shard.
    for file, (size, cut) in enumerate(files):
        if total and (cut or size <= shard_bytes):
            assert plan.cuts_within(file) == []
        begin = sum(size for size, _ in files[:file])
        cuts = [c - begin for c in plan.cut_bytes if begin < c < begin + size]
        assert cut or plan.cuts_within(file) == cuts


@given(options=PLANS, files=FILES)
def test_passes_are_the_shards_that_begin_in_one_compressed_file(options, files):
    assume(
        options.kind != "num_shards"
        or options.value <= max(1, sum(size for size, _ in files))
    )
    plan = plan_of(options, files)
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
    sizes, count, cuts
):
    files = [(size, size == 0) for size in sizes]
    plan = plan_of(PlanOptions(kind="num_shards", value=count), files)
    assert plan.cut_bytes.tolist() == cuts


def test_too_many_shards_are_refused_with_numbers():
    options = PlanOptions(kind="num_shards", value=1006)
    with pytest.raises(InputError) as caught:
        plan_of(options, [(1000, False), (0, True), (5, False)])
    for part in ("1,006 shards", "at most 1,005", "3 files, 1,005", "`num_shards`"):
        assert part in str(caught.value)


@pytest.mark.parametrize("options", [("num_shards", 1), ("shard_bytes", 5)])
def test_only_empty_files_make_one_empty_shard(options):
    kind, value = options
    plan = plan_of(PlanOptions(kind=kind, value=value), [(0, True), (0, True)])
    assert (plan.shards, plan.ranges(0)) == (1, ())


@pytest.mark.parametrize("total_bytes", [(1 << 40) - 2, 1 << 40, 7 << 50, 1 << 62])
def test_huge_totals_do_not_overflow(total_bytes):
    count = 1_000_003
    options = PlanOptions(kind="num_shards", value=count)
    plan = plan_of(options, [(total_bytes // 2, True)] * 2)
    for shard in (0, 1, 2, count // 3, count - 1, count):
        assert plan.cut_bytes[shard] == total_bytes * shard // count


@pytest.mark.slow
@pytest.mark.alone
def test_a_million_shards_of_a_petabyte_are_planned_quickly():
    sizes = np.full(100_000, 10**10, np.int64)
    splittable = np.arange(100_000) % 2 == 0
    began = time.process_time()
    options = PlanOptions(kind="shard_bytes", value=10**9)
    plan = plan_by_bytes(options, sizes, splittable)
    assert plan.shards > 500_000
    assert all(plan.ranges(shard) for shard in range(0, plan.shards, 100))
    assert time.process_time() - began < 3


@pytest.mark.parametrize(
    ("kind", "value"),
    [("num_shards", 0), ("num_shards", -1), ("num_shards", None), ("match_shards", 3)],
)
def test_numbers_that_make_no_sense(kind, value):
    with pytest.raises(InputError, match=kind):
        PlanOptions(kind=kind, value=value)


GB = 10**9


@pytest.mark.parametrize(
    ("plan", "files", "said"),
    [
        (("match_shards", None), [(GB, False), (9 * GB, False)], ()),
        (("match_shards", None), [(GB // 4, True)], ()),
        (
            ("match_shards", None),
            [(GB, True), (50, True), (3 * GB, True), (9 * GB, False)],
            (
                "2 files that are read from their start are larger than 256 MiB",
                "in/2 (3,000,000,000 bytes) becomes one shard",
            ),
        ),
        (
            ("match_shards", None),
            [(GB, True)],
            ("1 file that is read from its start is larger",),
        ),
        (
            ("shard_bytes", GB),
            [(4 * GB, True), (99 * GB, False), (7 * GB, True)],
            (
                "2 files that are read from their start are cut into 4 shards",
                "in/2 (7,000,000,000 bytes) is the longest",
                "7 of 110",
            ),
        ),
        (("shard_bytes", GB), [(3 * GB, True), (99 * GB, False)], ()),
        (("num_shards", 2), [(3 * GB, True), (99 * GB, False)], ()),
    ],
)
def test_large_files_that_one_worker_reads_are_noted(plan, files, said):
    options = PlanOptions(kind=plan[0], value=plan[1])
    listed = InputFiles(
        paths=[f"in/{number}" for number in range(len(files))],
        sizes=np.array([size for size, _ in files], np.int64),
        versions=[""] * len(files),
        compressions=np.array([compressed for _, compressed in files], np.uint8),
        noted_ns=np.zeros(len(files), np.int64),
    )
    prepared = PreparedJob(
        job=job_of("in/*", "out", plan=plan),
        files=listed,
        plan=plan_by_bytes(options, listed.sizes, listed.splittable),
        write=Write(output="out", name="data", split="train"),
    )
    notes = plan_notes(prepared)
    assert len(notes) == bool(said)
    assert all(part in notes[0] for part in said)
