"""Plans against brute force: every byte, and every frame, in exactly one shard."""

import gzip
import os
from itertools import groupby

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gristmill.dataset import InputError
from gristmill.transforms import PlanOptions
from gristmill.transforms.conversion.begin import plan_notes
from gristmill.transforms.planning.shard_plan import plan_by_bytes
from tests.conversion.format_files import put
from tests.support.conversion import job_of, prepared_of
from tests.support.records import frames_of
from tests.support.told import told

GB = 10**9


def plan_of(kind, value, files):
    """Plans files, each with its size and whether it can be cut."""
    # An empty file is never recognised as compressed.
    return plan_by_bytes(
        PlanOptions(kind=kind, value=value),  # type: ignore[arg-type]
        np.array([size for size, _ in files], np.int64),
        np.array([size == 0 or cut for size, cut in files], bool),
    )


@given(
    plan=st.one_of(
        st.just(("match_shards", None)),
        st.tuples(st.just("num_shards"), st.integers(1, 12)),
        st.tuples(st.just("shard_bytes"), st.integers(1, 60)),
    ),
    files=st.lists(
        st.tuples(st.integers(0, 30), st.booleans()), min_size=1, max_size=8
    ),
)
# Two cuts move to the same end of a file.
@example(
    plan=("shard_bytes", 10), files=[(4, True), (11, False), (11, False), (4, True)]
)
def test_every_byte_is_in_one_shard_in_order(plan, files):
    kind, value = plan
    total = sum(size for size, _ in files)
    if kind == "num_shards" and value > max(1, total):
        with told(InputError, "at most"):
            plan_of(kind, value, files)
        return
    made, found = plan_of(kind, value, files), []
    for shard in range(made.shards):
        for number, part in enumerate(made.ranges(shard)):
            size, cut = files[part.file_index]
            assert (part.cut, part.from_start) == (cut, not cut)
            # Only the first range of a shard can begin within a file.
            assert part.begin_bytes == 0 or number == 0
            assert cut or part.end_bytes != size
            end = part.end_bytes if part.end_bytes >= 0 else size
            assert part.begin_bytes < end <= size
            places = range(part.begin_bytes, end)
            found += [(part.file_index, byte, shard) for byte in places]
    places = [(n, byte) for n, (size, _) in enumerate(files) for byte in range(size)]
    assert [(file, byte) for file, byte, _ in found] == places

    # A pass is the shards that begin in one compressed file, or a shard.
    def begin_of(shard):
        first, *_ = made.ranges(shard) or [None]
        return first.file_index if first and first.from_start else f"shard {shard}"

    passes = [list(found) for _, found in groupby(range(made.shards), begin_of)]
    assert [list(made.pass_of(first)) for first in made.pass_begins] == passes

    # The number of shards, and their sizes.
    sizes, every = np.diff(made.cut_bytes), all(cut for _, cut in files)
    if kind == "match_shards":
        assert made.shards == len(files)
        assert all(file == shard for file, _, shard in found)
        return
    assert not total or (sizes > 0).all()
    if kind == "num_shards":
        assert made.shards == value
        assert not every or sizes.max() - sizes.min() <= 1
        shard_bytes = total // value
    else:
        most = max(1, -(-total // value))
        assert made.shards == most if every else made.shards <= most
        assert sizes.max() <= value * (1 if every else 2)
        shard_bytes = total // most
    # Compressed files stay whole up to the size of a shard.
    for file, (size, cut) in enumerate(files):
        begin = sum(size for size, _ in files[:file])
        cuts = [c - begin for c in made.cut_bytes if begin < c < begin + size]
        assert made.cuts_within(file) == ([] if cut else cuts)
        assert cut or not cuts or size > shard_bytes


@pytest.mark.parametrize(
    ("sizes", "count", "cuts"),
    [
        ([100, 1, 1], 3, [0, 34, 68, 102]),
        ([70, 10, 70, 10], 4, [0, 40, 80, 120, 160]),
        ([10, 10, 10, 10], 3, [0, 10, 30, 40]),
        ([10, 20, 10], 2, [0, 10, 40]),
        ([0, 0], 1, [0, 0]),
    ],
)
def test_compressed_files_are_cut_where_they_are_larger_than_a_shard(
    sizes, count, cuts
):
    plan = plan_of("num_shards", count, [(size, size == 0) for size in sizes])
    assert plan.cut_bytes.tolist() == cuts


def test_huge_totals_do_not_overflow():
    plan = plan_of("num_shards", 3, [(1 << 61, True)] * 2)
    assert plan.cut_bytes.tolist() == [(1 << 62) * n // 3 for n in range(4)]


def test_too_many_shards_are_refused_with_numbers():
    said = "1,006 shards", "at most 1,005", "3 files, 1,005", "`num_shards`"
    with told(InputError, *said):
        plan_of("num_shards", 1006, [(1000, False), (0, True), (5, False)])


@pytest.mark.parametrize(
    ("plan", "files", "said"),
    [
        (("match_shards", None), [(GB, False), (GB // 4, True)], ()),
        (
            ("match_shards", None),
            [(GB, True), (50, True), (3 * GB, True), (9 * GB, False)],
            (
                "2 files that are read from their start are larger than 256 MiB",
                "in/2 (3,000,000,000 bytes) becomes one shard",
            ),
        ),
        (("match_shards", None), [(GB, True)], ("1 file that is read from its",)),
        (
            ("shard_bytes", GB),
            [(4 * GB, True), (99 * GB, False), (7 * GB, True)],
            (
                "2 files that are read from their start are cut into 4 shards",
                "in/2 (7,000,000,000 bytes) is the longest",
                "7 of 110",
            ),
        ),
    ],
)
def test_large_files_that_one_worker_reads_are_noted(tmp_path, plan, files, said):
    frames = frames_of([b"one"])
    data = [gzip.compress(frames) if compressed else frames for _, compressed in files]
    inputs = put(tmp_path / "in", {f"{n}": each for n, each in enumerate(data)})
    for number, (size, _) in enumerate(files):
        os.truncate(inputs / f"{number}", size)  # No disk holds the zeros.
    notes = plan_notes(prepared_of(job_of(inputs, tmp_path / "out", plan=plan)))
    assert len(notes) == bool(said)
    assert all(part in notes[0] for part in said)
