"""The parts of the inputs that are read as a sample: pure functions.

Input files lie end to end, as for a plan of shards, and places are spread evenly over
all stored bytes, whatever the order of the files: place k is at the part
`(offset + k * 0.618...) mod 1` of them. Every first few of these places are spread well
too, so a sample that is cut short is still one of the whole input. A record is in the
sample if it begins in a chosen part, so short and long records have the same chance.

A compressed file can only be read from its start. There the part is its first bytes.
"""

from __future__ import annotations

import hashlib
import itertools
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.transforms.planning.shard_plan import ShardPlan

Int64 = npt.NDArray[np.int64]

_GOLDEN = (5**0.5 - 1) / 2
# Maximum share of the input for all parts: more would overlap.
_MOST_SHARE = 3


class InputPart(NamedTuple):
    """A part of the stored bytes of all input files, end to end: [begin, end).

    Attributes:
        begin: Its first byte.
        end: The byte after its last.
        weight: Number of stored bytes that it stands for.
    """

    begin: int
    end: int
    weight: float


def sample_parts(
    sizes: Int64,
    splittable: npt.NDArray[np.bool_],
    *,
    parts: int,
    part_bytes: int,
    offset: float,
) -> list[InputPart]:
    """Chooses parts of input files, the most useful first.

    Args:
        sizes: int64 [files], bytes as stored.
        splittable: bool [files], whether reading can begin in the middle.
        parts: Maximum number of parts. A small input has fewer, and is taken as a whole
            if it is not larger than all of them.
        part_bytes: Size of a part.
        offset: In [0, 1): moves all places.

    Returns:
        Parts that do not overlap. Their weights add up to the size of the input.
    """
    total = int(sizes.sum())
    edges = np.concatenate(([0], np.cumsum(sizes)))
    if total <= parts * part_bytes:
        return _all_parts(edges, splittable, part_bytes)
    count = max(1, min(parts, total // (_MOST_SHARE * part_bytes)))
    weight = total / count
    chosen: dict[tuple[int, int], float] = {}
    for number in range(count):
        place = int((offset + number * _GOLDEN) % 1 * total)
        file = int(np.searchsorted(edges, place, side="right")) - 1
        begin = min(place, max(int(edges[file]), total - part_bytes))
        end = min(begin + part_bytes, total)
        if not splittable[file]:
            begin = int(edges[file])
            end = min(begin + part_bytes, int(edges[file + 1]))
        else:
            # It ends before the head of a compressed file, which is a part by itself.
            last = int(np.searchsorted(edges, end, side="left")) - 1
            closed = np.flatnonzero(~splittable[file : last + 1])
            if len(closed):
                end = int(edges[file + int(closed[0])])
        chosen[begin, end] = chosen.get((begin, end), 0.0) + weight
    return _apart([InputPart(*part, given) for part, given in chosen.items()])


def _all_parts(
    edges: Int64, splittable: npt.NDArray[np.bool_], part_bytes: int
) -> list[InputPart]:
    """Returns parts of a small input: all of it, or the heads of compressed files."""
    found = []
    for begin, end, plain in zip(
        edges[:-1].tolist(), edges[1:].tolist(), splittable.tolist(), strict=True
    ):
        if not plain:
            if end > begin:
                found.append(
                    InputPart(begin, min(begin + part_bytes, end), end - begin)
                )
            continue
        cuts = [*range(begin, end, part_bytes), end]
        found += [InputPart(a, b, b - a) for a, b in itertools.pairwise(cuts) if b > a]
    # As above: an early stop leaves parts from everywhere.
    order = np.argsort(np.arange(len(found)) * _GOLDEN % 1, kind="stable")
    return [found[number] for number in order.tolist()]


def _apart(parts: list[InputPart]) -> list[InputPart]:
    """Moves the end of parts that reach into the next one."""
    begins = sorted(part.begin for part in parts)
    last = max(part.end for part in parts)
    after = dict(zip(begins, [*begins[1:], last], strict=True))
    return [part._replace(end=min(part.end, after[part.begin])) for part in parts]


def offset_of(digest: str) -> float:
    """Returns a number in [0, 1) that depends only on a list of files."""
    return int(hashlib.sha256(digest.encode()).hexdigest()[:12], 16) / 16**12


def plan_of_parts(
    parts: list[InputPart], sizes: Int64, splittable: npt.NDArray[np.bool_]
) -> tuple[ShardPlan, list[int]]:
    """Returns a plan of shards that cuts parts out, and the shard that each one is."""
    total = int(sizes.sum())
    edges = {edge for part in parts for edge in (part.begin, part.end)}
    cuts = np.array(sorted(edges | {0, total}), np.int64)
    plan = ShardPlan(
        sizes=sizes,
        splittable=splittable,
        cut_bytes=cuts,
    )
    return plan, [int(np.searchsorted(cuts, part.begin)) for part in parts]
