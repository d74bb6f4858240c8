"""Records that only one of two lists has, against a count of each record."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.pipelines.diff.differing import (
    Change,
    Keys,
    RecordPart,
    Records,
    differing,
    keys_of,
    match,
)

# So few checksums and lengths that records of equal checksums often differ.
_RECORDS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2), st.integers(0, 1)))


class Told:
    """A list of records that notes whose lengths it was asked for."""

    def __init__(self, rows: list[tuple[int, int, int]], parts: int = 1):
        columns = np.array(rows, np.int64).reshape(-1, 3).T
        self.crc32cs, self.lengths = columns[0].astype(np.uint32), columns[1]
        self.files, self.parts = columns[2], parts
        self.asked = 0

    def records(self) -> Records:
        return Records(
            digest=RecordsDigest.of(self.crc32cs, self.lengths),
            part=self._part,
            lengths_of=self._lengths_of,
        )

    def _part(self, number: int) -> RecordPart:
        rows = np.flatnonzero(self.crc32cs % self.parts == number)
        return RecordPart(rows, self.crc32cs[rows], self.files[rows])

    def _lengths_of(self, numbers):
        assert (np.diff(numbers) > 0).all()
        self.asked += len(numbers)
        return self.lengths[numbers]

    def counted(self, rows) -> Counter:
        pairs = zip(self.crc32cs[rows], self.lengths[rows], strict=True)
        return Counter((int(crc32c), int(length)) for crc32c, length in pairs)


def left_of(*sides: Told) -> tuple[Change, Change]:
    before, after = (side.records() for side in sides)
    return differing(before, after, parts=sides[0].parts)


@given(_RECORDS, _RECORDS, st.sampled_from([1, 3]))
def test_what_is_left_is_what_counts_say(before, after, parts):
    sides = Told(before, parts), Told(after, parts)
    found = left_of(*sides)
    all_of = [side.counted(slice(None)) for side in sides]
    wanted = [all_of[0] - all_of[1], all_of[1] - all_of[0]]
    for side, left, counts in zip(sides, found, wanted, strict=True):
        assert side.counted(left.records) == counts
        assert (np.diff(left.records) > 0).all()
        rows = left.records
        assert left.digest == RecordsDigest.of(side.crc32cs[rows], side.lengths[rows])
    both = len(before) + len(after)
    assert sum(side.asked for side in sides) <= both + both // 2


@given(_RECORDS)
def test_equal_records_of_the_same_file_stay(rows):
    before, after = Told(rows), Told([row for row in rows if row[2] == 0])
    removed, added = left_of(before, after)
    assert not len(added.records)
    assert (before.files[removed.records] == 1).all()


def test_lengths_are_asked_of_the_fewer():
    many = [(n, 7, 0) for n in range(1000)]
    for after, asked in (
        (many[:-2], 2),  # Two went.
        ([*many[1:], (5000, 1, 0)], 2),  # One of each.
        ([(n + 999, 7, 0) for n in range(1000)], 2),  # One stays.
        ([(n + 1000, 7, 0) for n in range(1000)], 0),  # None stays.
    ):
        sides = Told(many), Told(after)
        left_of(*sides)
        assert sum(side.asked for side in sides) == asked


def test_records_of_one_checksum_and_two_lengths():
    sides = Told([(1, 5, 0), (2, 5, 0), (3, 5, 0)]), Told([(1, 6, 0), (2, 5, 0)])
    removed, added = left_of(*sides)
    assert (removed.records.tolist(), added.records.tolist()) == ([0, 2], [0])


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_first_ones_are_paired(before, after):
    keys = keys_of([np.array(before, np.int64)], [np.array(after, np.int64)])
    assert isinstance(keys, Keys)
    for own, other, paired in zip(
        (before, after), (after, before), match(keys), strict=True
    ):
        wanted = [own[:n].count(item) < other.count(item) for n, item in enumerate(own)]
        assert paired.tolist() == wanted


def test_keys_of_rows_are_equal_where_all_columns_are():
    keys = keys_of(
        [np.array([1, 1, 2]), np.array([5, 6, 5])], [np.array([2, 1]), np.array([5, 5])]
    )
    assert keys.before[[2, 0]].tolist() == keys.after.tolist()
    assert len({*keys.before.tolist()}) == 3
