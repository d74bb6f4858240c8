"""Where a record goes: keys in their order, and hashes that never change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.arrayrecord.writer_options import ARRAY_RECORD, WriterOptions
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import InputError
from gristmill.transforms.planning.write_plan import (
    WriteJob,
    WritePlan,
    content_hash,
    encode_key,
    pack_count,
)


@given(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
def test_integer_keys_sort_as_numbers(a: int, b: int) -> None:
    assert (encode_key(a) < encode_key(b)) == (a < b)


@given(st.text(max_size=5), st.text(max_size=5))
def test_text_keys_sort_by_code_points(a: str, b: str) -> None:
    assert (encode_key(a) < encode_key(b)) == (a < b)


@pytest.mark.parametrize("key", [1 << 63, None, 1.5, (1,)])
def test_what_is_no_key(key: Any) -> None:
    with pytest.raises(InputError, match="key cannot decide"):
        encode_key(key)


def test_content_hash_is_fixed_for_ever() -> None:
    """Other hashes would give other bytes for the same records."""
    assert content_hash(b"gristmill").hex() == "60b886e3437de9315f45ef1ea77d7ad0"


def test_fingerprint_and_shards_of_a_plan_are_fixed_for_ever() -> None:
    """Another fingerprint would not know the shards of an earlier version."""
    job = WriteJob(
        output="o",
        name="data",
        split="train",
        num_shards=3,
        shard_bytes=1000,
        keyed=False,
        writer=WriterOptions(versions=ARRAY_RECORD),
    )
    last = (1 << 64) - 1
    first = RecordsDigest(records=5, raw_bytes=4321, low=7, high=last)
    third = RecordsDigest(records=2, raw_bytes=4321, low=1, high=2)
    # In any order, and the first group in two parts, whose sums overflow.
    part = RecordsDigest(records=4, raw_bytes=4300, low=9, high=1)
    rest = RecordsDigest(records=1, raw_bytes=21, low=last - 1, high=last - 1)
    assert part + rest == first
    counts = [(2, third), (0, rest), (0, part)]
    rows = b"".join(pack_count(group, digest.pack()) for group, digest in counts)
    plan = WritePlan.of(job, rows, groups=3)
    assert plan.write.fingerprint == "12390a5fcca4cfcd"
    assert plan.write.total == first + third
    tasks = dict(plan.tasks())
    assert [list(tasks[n].shards) for n in range(3)] == [[0, 1, 2, 3, 4], [5], [6, 7]]
    assert [tasks[n].counted for n in range(3)] == [first, RecordsDigest(), third]
