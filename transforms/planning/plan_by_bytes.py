"""A plan of shards by bytes: of so many, of a size, or one for each input file."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.planning.shard_plan import Int64, PlanOptions, ShardPlan


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
        # An empty file keeps its shard, so that numbers match.
        cuts = edges
    elif options.kind == "num_shards":
        cuts = _distinct_cuts(value, edges, splittable)
    else:
        count = max(1, -(-total // value))
        cuts = np.unique(_snap(_even_cuts(total, count), edges, splittable))
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

    That is, at most half a shard away. So a file that is not a larger than a shard
    stays whole, and of larger ones next to each other few share a shard.
    """
    files = _file_at(cuts, edges)
    begins, ends = edges[files], edges[files + 1]
    nearer = np.where(cuts - begins <= ends - cuts, begins, ends)
    is_far = np.abs(cuts - nearer) > edges[-1] // (2 * max(1, len(cuts) - 1))
    return np.where(splittable[files] | is_far, cuts, nearer)


def _distinct_cuts(
    count: int, edges: Int64, splittable: npt.NDArray[np.bool_]
) -> Int64:
    """Returns int64 [count + 1] cuts as even as the files allow, no two the same.

    Raises:
        InputError: There are not so many places where the files can be cut.
    """
    sizes, total = np.diff(edges), int(edges[-1])
    if count > max(1, total):
        raise InputError(
            f"cannot make {count:,} shards of these files",
            expected=f"at most {total:,}: one for each byte",
            got=f"{len(sizes):,} files, {total:,} bytes in all",
            cure="ask for fewer with --num-shards",
        )
    # Places are numbered: each byte of a file is one, but a compressed file that is not
    # a larger than a shard has only one.
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
    # Strictly rising numbers: what is added to 0, 1, 2, ... must not fall.
    numbers = np.arange(count + 1, dtype=np.int64)
    rising = np.maximum.accumulate(wanted - numbers)
    found = np.minimum(rising, place_edges[-1] - count) + numbers
    files = _file_at(found, place_edges)
    within = found - place_edges[files]
    moved: Int64 = np.where(can_be_cut[files], within, within * sizes[files])
    return edges[files] + moved


def _file_at(positions: Int64, edges: Int64) -> Int64:
    """Returns the file that each position lies in; the end lies in the last one."""
    files = np.searchsorted(edges, positions, side="right") - 1
    last = np.searchsorted(edges, edges[-1]) - 1
    return np.clip(files, 0, max(0, int(last)))
