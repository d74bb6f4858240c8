"""The plan of a conversion: which bytes of which input files make which shard.

Imagine all input files, sorted, laid end to end. A plan is a list of cuts
in that line of bytes; shard i holds the frames that begin between cut i and cut i + 1.
Cuts need not fall between frames: a frame belongs to the shard in which its first byte
lies, and the reader of a range searches for its first frame.

```
files   |-------- a --------|--- b ---|------------ c ------------|
cuts    0             1              2              3             4
shards  |----- 0 -----|----- 1 ------|----- 2 ------|----- 3 -----|
```

Positions count stored bytes. A cut within a compressed file is the point at which that
many of its bytes have been decompressed. Like tar and CSV, such a file can only be read
from its start, so the shards that begin in it are made in one pass.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError

Int64 = npt.NDArray[np.int64]

PlanKind = Literal["match_shards", "num_shards", "shard_bytes"]
DEFAULT_SHARD_BYTES = 256 << 20  # 256 MiB


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """How many shards to make.

    Attributes:
        kind: `match_shards`, one shard per input file; `num_shards`; or `shard_bytes`
            of stored input per shard.
        value: The number of shards, or of bytes, by default 256 MiB; None for
            `match_shards`.
    """

    kind: PlanKind = "shard_bytes"
    value: int | None = None

    def __post_init__(self) -> None:
        if self.kind == "shard_bytes" and self.value is None:
            object.__setattr__(self, "value", DEFAULT_SHARD_BYTES)
        wanted = self.kind != "match_shards"
        if wanted and (self.value is None or self.value < 1):
            raise InputError(
                f"plan {self.kind} needs a positive number",
                got=self.value,
                cure="give 1 or more as value",
            )
        if not wanted and self.value is not None:
            raise InputError(
                "plan match_shards takes no number",
                got=self.value,
                cure="give None as value",
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceRange:
    """A part of one input file. Offsets count bytes as they are stored.

    Attributes:
        file_index: Number of the file in the sorted list.
        begin_bytes: Begin of the range; for a compressed file the point at which that
            many of its bytes have been decompressed.
        end_bytes: End of the range; -1 for the end of a file that is read from its
            start.
        cut: Whether begin and end can be at any byte, so that the first record after
            each has to be searched for. Otherwise records begin there.
        from_start: Whether reading begins at the start of the file.
    """

    file_index: int
    begin_bytes: int
    end_bytes: int
    cut: bool = False
    from_start: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """The cuts between shards.

    Attributes:
        sizes: int64 [files], size of each input file as stored.
        splittable: bool [files], whether reading can begin in the middle.
        cut_bytes: int64 [shards + 1], positions in the line of all stored bytes.
        joined: bool [shards], whether a shard is made in the pass of the shard before,
            as both come from one row group; None if none is.
    """

    sizes: Int64
    splittable: npt.NDArray[np.bool_]
    cut_bytes: Int64
    joined: npt.NDArray[np.bool_] | None = None

    @property
    def shards(self) -> int:
        """Number of shards."""
        return len(self.cut_bytes) - 1

    @functools.cached_property
    def _file_ends(self) -> Int64:
        return np.cumsum(self.sizes)

    @functools.cached_property
    def pass_begins(self) -> Int64:
        """The first shards of all passes: int64 [passes], ascending.

        A pass makes the shards that begin in the same file if that is read from its
        start, those that are `joined`, or one shard.
        """
        files = np.searchsorted(self._file_ends, self.cut_bytes[:-1], side="right")
        whole = np.append(self.splittable, True)[files]
        goes_on = (files[1:] == files[:-1]) & ~whole[1:]
        if self.joined is not None:
            goes_on |= self.joined[1:]
        return np.flatnonzero(np.append(self.shards > 0, ~goes_on))

    def pass_of(self, shard: int) -> range:
        """Returns the shards of a pass from one of them on, to the last."""
        begins = self.pass_begins
        after = int(np.searchsorted(begins, shard, side="right"))
        return range(shard, int(begins[after]) if after < len(begins) else self.shards)

    def cuts_within(self, file: int) -> list[int]:
        """Returns the cuts of a file that is read from its start, ascending."""
        if self.splittable[file]:
            return []
        end = int(self._file_ends[file])
        begin = end - int(self.sizes[file])
        first, last = np.searchsorted(self.cut_bytes, (begin, end), side="right")
        cuts = self.cut_bytes[first:last] - begin
        return [cut for cut in cuts.tolist() if cut < end - begin]

    def ranges(self, shard: int) -> tuple[SourceRange, ...]:
        """Returns the parts of input files that make a shard, in order."""
        first, last = (int(cut) for cut in self.cut_bytes[shard : shard + 2])
        file_ends = self._file_ends
        begin_file = int(np.searchsorted(file_ends, first, side="right"))
        end_file = int(np.searchsorted(file_ends, last, side="left"))
        ranges = []
        for file in range(begin_file, min(end_file + 1, len(self.sizes))):
            size = int(self.sizes[file])
            file_begin = int(file_ends[file]) - size
            begin = max(first - file_begin, 0)
            end = min(last - file_begin, size)
            if begin >= end:
                continue
            from_start = not self.splittable[file]
            if from_start and end == size:
                end = -1
            ranges.append(
                SourceRange(
                    file_index=file,
                    begin_bytes=begin,
                    end_bytes=end,
                    cut=not from_start,
                    from_start=from_start,
                )
            )
        return tuple(ranges)


def plan_by_bytes(
    options: PlanOptions,
    sizes: Int64,
    splittable: npt.NDArray[np.bool_],
) -> ShardPlan:
    """Plans shards from the sizes of the input files alone.

    Args:
        options: How many shards to make.
        sizes: int64 [files], size of each file as stored.
        splittable: bool [files], whether reading can begin in the middle.

    Raises:
        InputError: There are fewer bytes than shards.
    """
    total = int(sizes.sum())
    edges = np.concatenate(([0], np.cumsum(sizes)))
    value = options.value or 1
    if options.kind == "match_shards":
        # An empty file keeps its shard, so that the numbers match.
        cuts = edges
    elif options.kind == "num_shards":
        cuts = _distinct_cuts(value, edges, splittable)
    else:
        count = max(1, -(-total // value))
        cuts = _snap(_even_cuts(total, count), edges, splittable)
        # They ascend. `np.unique` would import numpy.ma, which is slow.
        cuts = cuts[np.diff(cuts, prepend=-1) > 0]
        cuts = cuts if len(cuts) > 1 else np.array([0, total])
    return ShardPlan(
        sizes=sizes,
        splittable=splittable,
        cut_bytes=cuts.astype(np.int64),
    )


def _even_cuts(total: int, count: int) -> Int64:
    """Returns int64 [count + 1] cuts that divide bytes evenly."""
    # Not total * i // count, which passes 2**63 at petabytes.
    numbers = np.arange(count + 1, dtype=np.int64)
    return total // count * numbers + total % count * numbers // count


def _snap(cuts: Int64, edges: Int64, splittable: npt.NDArray[np.bool_]) -> Int64:
    """Moves cuts in compressed files to the file's nearer end, if that is near.

    Near is at most half a shard away. So a file no larger than a shard stays whole, and
    larger neighbours rarely share a shard.
    """
    files = _file_at(cuts, edges)
    begins, ends = edges[files], edges[files + 1]
    nearer = np.where(cuts - begins <= ends - cuts, begins, ends)
    is_far = np.abs(cuts - nearer) > edges[-1] // (2 * max(1, len(cuts) - 1))
    return np.where(splittable[files] | is_far, cuts, nearer)


def _distinct_cuts(
    count: int, edges: Int64, splittable: npt.NDArray[np.bool_]
) -> Int64:
    """Returns int64 [count + 1] different cuts, as even as the files allow.

    Raises:
        InputError: There are fewer places where the files can be cut.
    """
    sizes, total = np.diff(edges), int(edges[-1])
    if count > max(1, total):
        raise InputError(
            f"cannot make {count:,} shards of these files",
            expected=f"at most {total:,}: one for each byte",
            got=f"{len(sizes):,} files, {total:,} bytes in all",
            cure="ask for fewer with --num-shards",
        )
    # Places are numbered: each byte of a file is one, but a compressed file no larger
    # than a shard has only one.
    can_be_cut = splittable | (sizes > total // count)
    places = np.where(can_be_cut, sizes, sizes > 0)
    place_edges = np.concatenate(([0], np.cumsum(places)))
    cuts = _even_cuts(total, count)
    if count == 1:
        return cuts
    cuts = _snap(cuts, edges, splittable)
    files = _file_at(cuts, edges)
    within = np.where(can_be_cut[files], cuts - edges[files], cuts > edges[files])
    wanted = place_edges[files] + within
    # Strictly ascending: their differences from 0, 1, 2, ... must not descend.
    numbers = np.arange(count + 1, dtype=np.int64)
    rising = np.maximum.accumulate(wanted - numbers)
    found = np.minimum(rising, place_edges[-1] - count) + numbers
    files = _file_at(found, place_edges)
    within = found - place_edges[files]
    moved: Int64 = np.where(can_be_cut[files], within, within * sizes[files])
    return edges[files] + moved


def _file_at(positions: Int64, edges: Int64) -> Int64:
    """Returns the file of each position; the end is in the last file."""
    files = np.searchsorted(edges, positions, side="right") - 1
    last = np.searchsorted(edges, edges[-1]) - 1
    return np.clip(files, 0, max(0, int(last)))
