"""Changes of a split: no number twice, no state lost that is kept."""

from __future__ import annotations

import dataclasses
import functools
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.commit import editions
from gristmill.dataset.commit.editions import rolled_back, without_replaced
from gristmill.dataset.commit.write import Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.splits import Split

WHERE = "/data, split train"
with_parts = functools.partial(editions.with_parts, where=WHERE)


def with_write(split: Split, made: Split, *, keep: bool = False, **given) -> Split:
    id_ = made.source["job"]
    write = Write(output="/data", name="c4", split="train", id=id_, **given)
    return editions.with_write(split, made, write, keep=keep)


def edition(number: int) -> Split:
    """An edition with a shard, described by its number alone."""
    return Split(
        shards=1,
        records=number,
        raw_bytes=number,
        file_bytes=number,
        records_digest=f"{number:032x}",
        shards_digest=f"sha256:{number:064x}",
        table=layout.table_path("c4", layout.write_key("train", f"{number:016x}")),
        table_bytes=1,
        table_crc32c=1,
        writer_options="",
        source={"job": f"{number:016x}"},
        edition=number,
        write=f"{number:016x}",
    )


changes = st.lists(
    st.tuples(
        st.sampled_from(["append", "replace", "remove", "back", "clean"]),
        st.booleans(),
        st.integers(0, 2**16),
    ),
    max_size=8,
)


@given(changes)
def test_any_history(steps) -> None:
    """States are lists of numbers here, and each that was is kept, or was given up."""
    split = edition(1)
    now, kept, last = (1,), {(1,)}, 1
    for what, keep, choice in steps:
        before = now
        if what == "append":
            last += 1
            now = (*now, last)
            split = with_write(split, edition(last), base=max(before))
            # What it begins with is found in it.
        elif what == "replace":
            last += 1
            now = (last,)
            made = edition(last)
            split = with_write(split, made, base=max(before), replaces=True, keep=keep)
        elif what == "remove":
            chosen = [number for n, number in enumerate(now) if choice >> n & 1]
            if not chosen:
                continue
            numbers = dict(zip(chosen, itertools.count(last + 1)))
            now = tuple(numbers.get(n, n) for n in now)
            last = max(now)
            parts = {n: edition(number) for n, number in numbers.items()}
            split, keep = with_parts(split, parts, before=split), True
        elif what == "back":
            keep = True
            now = sorted(kept)[choice % len(kept)]
            split = rolled_back(split, max(now))
        else:
            split = without_replaced(split)
            kept = {now}
        if what in ("replace", "remove") and not keep:
            kept.discard(before)
            # The begin of what was given up is given up, unless another state has it.
            kept = {s for s in kept if _is_found(split, s)}
        kept.add(now)
        kept = {s for s in kept if what != "clean" or s == now}
        assert split.numbers == now
        assert split.edition == max(now)
        assert split.last_edition == last
        for state in kept:
            assert split.until(max(state)).numbers == state
        assert {n for s in kept for n in s} <= split.known.keys()
    manifest = Manifest(name="c4", splits={"train": split})
    assert Manifest.decode(manifest.encode(), where="here") == manifest


def _is_found(split: Split, state: tuple[int, ...]) -> bool:
    try:
        return split.until(max(state)).numbers == state
    except IndexError:
        return False


def without_some(number: int, *bases: int) -> Split:
    """An edition that leaves records of another out, which did so, and so on."""
    removed = None
    for base in reversed(bases):
        removed = {"edition": base, "records": 1, "before": removed}
    return dataclasses.replace(edition(number), removed=removed)


def test_a_removal_is_one_change() -> None:
    one, two = edition(1), edition(2)
    before = Split.of_editions([one, two])
    removals = {1: without_some(3, 1), 2: without_some(4, 2)}
    after = with_parts(before, removals, before=before)
    assert after.numbers == (3, 4)
    with pytest.raises(IndexError):
        after.until(3)  # The records of edition 2 were there then.
    assert after.until(2) == before
    assert after.until(1) == one
    grown = with_write(after, edition(5), base=4)
    assert grown.until(4).numbers == (3, 4)
    removals = {4: without_some(6, 4, 2), 5: without_some(7, 5)}
    more = with_parts(grown, removals, before=grown)
    for number in (3, 6):
        with pytest.raises(IndexError):
            more.until(number)
    assert more.until(5) == grown.alone
