"""The rows of a Parquet file that lie in a range of its bytes: pure functions.

A row has no place of its own in a file: its columns are stored apart, each among those
of the other rows of a row group. So rows are given places. The row groups of a file
share its bytes, in proportion to their uncompressed sizes, and the rows of a row group
share those evenly. These places rise with the rows, and every range of a file holds
about as much as any other of its size.

```
bytes      0                         600                1,000
file       |------ row group 0 -------|--- row group 1 ---|
rows       0     1     2     3     4  5         6          7
```
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class RowGroup(NamedTuple):
    """The rows of a file that are stored together.

    Attributes:
        number: Number of the row group in the file.
        first_row: Number of its first row in the file.
        rows: Number of its rows.
        begin_bytes: Start of the places of its rows; see the module.
        end_bytes: Start of those of the next row group, or the end of the file.
        raw_bytes: Its size when it is not compressed.
    """

    number: int
    first_row: int
    rows: int
    begin_bytes: int
    end_bytes: int
    raw_bytes: int

    @property
    def end_row(self) -> int:
        """Number of the row after its last."""
        return self.first_row + self.rows


@dataclasses.dataclass(frozen=True)
class RowPlaces:
    """The places of the rows of a file.

    Attributes:
        groups: The row groups that have rows, in order.
    """

    groups: tuple[RowGroup, ...]

    @classmethod
    def of(
        cls, rows: Sequence[int], raw_bytes: Sequence[int], size_bytes: int
    ) -> RowPlaces:
        """Returns the places of the rows of a file.

        Args:
            rows: [row groups], the number of rows of each.
            raw_bytes: [row groups], their sizes when they are not compressed.
            size_bytes: Size of the file.
        """
        # Some writers do not say how large a row group is.
        known = all(
            size > 0 for size, count in zip(raw_bytes, rows, strict=True) if count
        )
        parts = raw_bytes if known else rows
        edges = list(itertools.accumulate(parts, initial=0))
        begins = [size_bytes * edge // max(1, edges[-1]) for edge in edges]
        first_rows = itertools.accumulate(rows, initial=0)
        found = zip(
            itertools.count(),
            first_rows,
            rows,
            begins,
            begins[1:],
            raw_bytes,
            strict=False,
        )
        return cls(tuple(RowGroup(*group) for group in found if group[2]))

    @property
    def rows(self) -> int:
        """Number of rows of the file."""
        return self.groups[-1].end_row if self.groups else 0

    @functools.cached_property
    def _begins(self) -> list[int]:
        return [group.begin_bytes for group in self.groups]

    @functools.cached_property
    def _first_rows(self) -> list[int]:
        return [group.first_row for group in self.groups]

    def rows_before(self, offset: int) -> int:
        """Returns the number of rows that have a place before a byte offset.

        The place of row i of the n rows of a row group in bytes [b, e) is
        b + i * (e - b) // n.
        """
        at = bisect.bisect_left(self._begins, offset) - 1
        if at < 0:
            return 0
        group = self.groups[at]
        if offset >= group.end_bytes:
            return group.end_row
        # i * length // rows < distance, just as i * length < distance * rows.
        length = group.end_bytes - group.begin_bytes
        distance = offset - group.begin_bytes
        return group.first_row + -(-distance * group.rows // length)

    def groups_from(self, row: int) -> Iterator[RowGroup]:
        """Yields the row groups with rows after it, in order."""
        if row < self.rows:
            yield from self.groups[bisect.bisect_right(self._first_rows, row) - 1 :]

    def cuts(self, range_bytes: int) -> Iterator[int]:
        """Yields where row groups begin, keeping a distance between them.

        Args:
            range_bytes: Minimum bytes between two of them, and from 0 to the first.
        """
        last = 0
        for begin in self._begins:
            if begin - last >= range_bytes:
                yield begin
                last = begin
