"""Where samples are taken: everywhere alike, without overlap."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.pipelines.advice.sample_places import (
    offset_of,
    plan_of_parts,
    sample_parts,
)

FILES = st.lists(
    st.tuples(st.integers(0, 5000), st.booleans()), min_size=1, max_size=12
).filter(lambda files: sum(size for size, _ in files) > 0)


@settings(max_examples=50)
@given(
    files=FILES,
    parts=st.integers(1, 20),
    part_bytes=st.integers(1, 2000),
    offset=st.floats(0, 0.999),
)
def test_parts_are_apart_and_stand_for_all_bytes(
    files: list[tuple[int, bool]], parts: int, part_bytes: int, offset: float
) -> None:
    sizes = np.array([size for size, _ in files], np.int64)
    plain = np.array([splittable for _, splittable in files])
    found = sample_parts(
        sizes, plain, parts=parts, part_bytes=part_bytes, offset=offset
    )
    total, ends = int(sizes.sum()), np.cumsum(sizes)
    last = 0
    for begin, end, weight in sorted(found):
        assert last <= begin < end <= total
        assert end - begin <= part_bytes
        assert weight > 0
        last = end
        file = int(np.searchsorted(ends, begin, side="right"))
        if not plain[file]:
            assert begin == ends[file] - sizes[file]
    np.testing.assert_allclose(sum(part.weight for part in found), total)
    if plain.all() and total <= parts * part_bytes:
        assert sum(end - begin for begin, end, _ in found) == total
    # A plan cuts exactly these parts out.
    plan, shards = plan_of_parts(found, sizes, plain)
    for part, shard in zip(found, shards, strict=True):
        assert plan.cut_bytes[shard] == part.begin
        assert plan.cut_bytes[shard + 1] == part.end


def test_the_first_few_parts_are_from_everywhere() -> None:
    sizes, plain = np.full(1000, 10**9, np.int64), np.ones(1000, bool)
    found = sample_parts(sizes, plain, parts=64, part_bytes=1 << 18, offset=0.3)
    assert len(found) == 64
    for count in (8, 16, 64):
        places = np.sort([part.begin / 1e12 for part in found[:count]])
        gaps = np.diff(places, append=places[0] + 1)
        assert gaps.max() < 3 / count
        assert gaps.min() > 0.3 / count


def test_files_are_taken_by_their_size() -> None:
    sizes = np.array([10, 9_000_000, 10, 1_000_000], np.int64)
    found = sample_parts(sizes, np.ones(4, bool), parts=50, part_bytes=1000, offset=0.0)
    in_large = sum(10 <= part.begin < 9_000_010 for part in found)
    assert 43 <= in_large <= 47
    # A large compressed file is one part, which stands for all of it.
    heads = sample_parts(
        sizes, np.zeros(4, bool), parts=50, part_bytes=1000, offset=0.1
    )
    assert [part.begin for part in heads] == [10, 9_000_020]
    assert 8.6e6 < heads[0].weight < 9.4e6


def test_the_same_files_give_the_same_places() -> None:
    assert offset_of("sha256:a") == offset_of("sha256:a")
    assert 0 <= offset_of("sha256:a") != offset_of("sha256:b") < 1
