"""The tree that deals the positions of a mixture to its datasets, by their weights.

The sequence of datasets is a formula. They are the leaves of a binary tree (that of
Huffman for the weights). Of the first p records that pass a node, its left child gets
``p * left_weight / weight`` rounded to the nearest integer. That count rises by 0 or 1
with p, so it deals every record to one side, and it can be inverted: constant time for
rank (the number of d before p) and for select (the place of the j-th of d), without a
table or a small common denominator.

Exactness: rounding is off by at most 1/2, and a child inherits its parent's error times
its share of the parent. So after p records of a phase, dataset d has been picked

    p * weight_d  give or take  bound_d = 1/2 * sum of weight_d / weight_v

over the nodes v from d up to, but not including, the root. That is at most 1/2 for two
datasets, less than 1 for three, and less than 1.68 for any number with any weights:
along a path of Huffman's tree weights grow at least like Fibonacci's numbers, whose
reciprocals sum to 3.36. Any window within a phase is off by at most twice that, and by
nothing at all if its length is a multiple of the weights' common denominator, wherever
it starts.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import FormatVersionError, InputError
from gristmill.loader.base.indices import (
    POSITION_LIMIT,
    AnyArray,
    IntArray,
)

# Products of a position within a period and a weight fit int64 up to this weight;
# heavier nodes are computed with Python's integers.
_INT64_WEIGHT = 1 << 31
# Up to this weight such positions can be dealt in int64 even so.
_FLOAT_WEIGHT = 1 << 50


class DealingTree:
    """Huffman's tree of the datasets with a weight; equals keep their order.

    A node is a dataset's number, or that of a fork after all datasets. A fork comes
    after what it deals to, so the root is the last.

    Args:
        weights: One for each dataset, together 1.

    Attributes:
        weights: The weight of each node, integers; 0 for a dataset without one.
        root: The node that deals all positions.
        sides: The nodes on the right and on the left of each fork.
        fork_of: The fork above each node.
        kind: The type in which many positions go down at once.
        turned: Returns which of them go left at forks, and their places there.
        forks: The arguments of `turned` for each fork, [4, forks].
        below: The sides of fork f: at 2 * f the right one, then the left one.
    """

    def __init__(self, weights: Sequence[Fraction]):
        denominator = math.lcm(*(weight.denominator for weight in weights))
        self.weights = [int(weight * denominator) for weight in weights]
        heap = [(weight, node) for node, weight in enumerate(self.weights) if weight]
        heapq.heapify(heap)
        self.sides: list[tuple[int, int]] = []
        self.fork_of: dict[int, int] = {}
        lefts = []
        while len(heap) > 1:
            (light, left), (heavy, right) = heapq.heappop(heap), heapq.heappop(heap)
            self.fork_of[left] = self.fork_of[right] = fork = len(self.weights)
            self.sides.append((right, left))
            self.weights.append(light + heavy)
            lefts.append(light)
            heapq.heappush(heap, (light + heavy, fork))
        ((most, self.root),) = heap
        # Quotients of larger weights are computed with Python's integers.
        self.kind = np.int64 if most <= _FLOAT_WEIGHT else object
        exact = most <= _INT64_WEIGHT or self.kind is object
        self.turned = _turned if exact else _turned_wide
        dealt = np.array(self.weights[len(weights) :], self.kind)
        to_left = np.array(lefts, self.kind)
        self.forks = np.array([dealt, to_left, dealt // 2, dealt - to_left])
        self.below = np.ravel(self.sides)


def _turned(rest: Any, weight: Any, left: Any, half: Any, right: Any) -> Any:
    """Returns whether each position of a period goes left, and its place there."""
    dealt = rest * left + half
    before = dealt // weight
    to_left = dealt - before * weight >= right
    return to_left, np.where(to_left, before, rest - before)


def _turned_wide(rest: Any, weight: Any, left: Any, half: Any, right: Any) -> Any:
    """As `_turned`, for weights whose products leave int64.

    The quotient in floating point is off by less than 2. The remainder then fits int64,
    however often it wrapped around on the way.
    """
    before = (rest * (left / weight)).astype(np.int64)
    over = rest * left + half - before * weight
    more = over // weight
    before += more
    to_left = over - more * weight >= right
    return to_left, np.where(to_left, before, rest - before)


# Part of every checkpoint: positions under one version never change.
MIXTURE_VERSION = 1

Weight: TypeAlias = int | float | str | Fraction

# Text with more digits than Python parses as one integer.
_VAST = re.compile(r"(?s).{401}|[eE][-+]?[0-9_]{4}")


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The dataset at each position, by weights.

    Attributes:
        weights: One for each dataset, at least 0; together 1.
    """

    weights: tuple[Fraction, ...]

    @classmethod
    def of(cls, weights: Sequence[Weight]) -> Mixture:
        """Returns a mixture by weights of any sum.

        Args:
            weights: One for each dataset, at least 0, not all 0; divided by their sum.
                Exact: a float means its shortest decimal, so 0.1 is one tenth, and a
                string may be "1/3".

        Raises:
            InputError: A weight is negative or not a number, or none is positive.
        """
        return cls(exact_weights(weights))

    def counts(self, position: int) -> tuple[int, ...]:
        """Returns the number of records of each dataset before a position.

        Args:
            position: From 0 to 2^63, both included.
        """
        tree = self._tree
        counts = [0] * len(tree.weights)
        counts[tree.root] = position
        for right, left in reversed(tree.sides):
            fork = tree.fork_of[left]
            weight, passed = tree.weights[fork], counts[fork]
            counts[left] = (passed * tree.weights[left] + weight // 2) // weight
            counts[right] = passed - counts[left]
        return tuple(counts[: len(self.weights)])

    def locate(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the origin of the records at some positions.

        Args:
            positions: Positions in the mixture, int64 [n].

        Returns:
            The dataset of each, and the position in that dataset's own order: the
            number of its earlier records. Both int64 [n].
        """
        tree, num_datasets = self._tree, len(self.weights)
        if not tree.sides or not positions.size:
            return np.full_like(positions, tree.root), positions
        below, period = tree.below, tree.weights[tree.root]
        periods, rest = None, positions.astype(tree.kind, copy=False)
        if int(positions.max()) >= period:
            periods, rest = rest // period, rest % period
        to_left, places = tree.turned(rest, *tree.forks[:, -1].tolist())
        nodes = np.where(to_left, below[-1], below[-2])
        active = np.flatnonzero(nodes >= num_datasets)
        rest, found = places.take(active), nodes.take(active)
        while active.size:
            forks = found - num_datasets
            to_left, rest = tree.turned(rest, *tree.forks.take(forks, axis=1))
            found = below.take(2 * forks + to_left)
            nodes[active], places[active] = found, rest
            deeper = np.flatnonzero(found >= num_datasets)
            active, rest = active.take(deeper), rest.take(deeper)
            found = found.take(deeper)
        if periods is not None:
            places = places + periods * np.array(tree.weights, tree.kind)[nodes]
        return nodes, places.astype(np.int64, copy=False)

    def select(self, dataset: int, dataset_positions: npt.ArrayLike) -> IntArray:
        """Undoes `locate`: where a dataset's records are in the mixture.

        Args:
            dataset: Number of the dataset.
            dataset_positions: Positions in that dataset's own order, [n].

        Returns:
            int64 [n] positions in the mixture; -1 for those that it never reaches
            (below position 2^63).
        """
        tree, node = self._tree, dataset
        wanted = np.asarray(dataset_positions, np.int64)
        reached = wanted <= self.counts(POSITION_LIMIT)[dataset] - 1
        values: AnyArray = wanted[reached]
        while values.size and node != tree.root:
            fork = tree.fork_of[node]
            weight, own = tree.weights[fork], tree.weights[node]
            # Of p records that pass a fork, the left side has the j-th from 0 on if
            # p * own + half >= (j + 1) * weight; the right one has the others.
            is_left = tree.sides[fork - len(self.weights)][1] == node
            more = weight - 1 - weight // 2 if is_left else weight // 2
            if weight > _INT64_WEIGHT:
                values = values.astype(object)
            values = values // own * weight + (values % own * weight + more) // own
            node = fork
        positions = np.full_like(wanted, -1)
        positions[reached] = values
        return positions

    def to_state(self) -> dict[str, Any]:
        """Returns the state of this mixture for a checkpoint, as JSON values."""
        return {
            "version": MIXTURE_VERSION,
            "weights": [str(weight) for weight in self.weights],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Mixture:
        """Returns the mixture whose `to_state` gave `state`.

        Raises:
            FormatVersionError: Another version of the arithmetic wrote it.
        """
        if state["version"] != MIXTURE_VERSION:
            raise FormatVersionError(
                "another version wrote the mixture's state, it cannot be continued",
                expected=MIXTURE_VERSION,
                got=state["version"],
                cure="resume with the version that wrote it",
            )
        return cls(tuple(map(Fraction, state["weights"])))

    @functools.cached_property
    def _tree(self) -> DealingTree:
        return DealingTree(self.weights)


def _fraction(weight: Weight) -> Fraction:
    """Returns a weight as a fraction; raises ValueError if it is no number."""
    # repr of a float is the shortest decimal that gives that float.
    decimal = repr(float(weight)) if isinstance(weight, float) else weight
    if isinstance(decimal, str) and _VAST.search(decimal):
        raise ValueError(decimal)
    return Fraction(decimal)


def exact_weights(weights: Sequence[Weight]) -> tuple[Fraction, ...]:
    """Returns weights as fractions that sum to 1; see `Mixture.of`.

    >>> exact_weights([0.1, "2/10", 1])
    (Fraction(1, 13), Fraction(2, 13), Fraction(10, 13))
    """
    exact = []
    for weight in weights:
        try:
            exact.append(_fraction(weight))
        except (ValueError, TypeError, ZeroDivisionError):
            raise InputError(
                "weight is not a number",
                expected='such as 3, 0.25, "1/3", with at most 400 characters and '
                "exponents of three digits",
                got=repr(weight)[:100],
                cure="give weights as numbers or as texts of numbers",
            ) from None
    total = sum(exact)
    if total <= 0 or min(exact) < 0:
        raise InputError(
            "weights cannot make a mixture",
            expected="none negative, at least one positive",
            got=list(weights),
            cure="give no weight below 0, and at least one above",
        )
    return tuple(weight / total for weight in exact)
