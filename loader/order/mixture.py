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
import itertools
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
    IntArray,
)

# Products of a position within a period and a weight fit int64 up to this weight;
# heavier nodes are computed with Python's integers.
_INT64_WEIGHT = 1 << 31
# Up to this weight such positions can be dealt in int64 even so.
_FLOAT_WEIGHT = 1 << 50


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A dataset that has a weight."""

    weight: int
    dataset: int


@dataclasses.dataclass(frozen=True)
class Fork:
    """Deals records to two sides.

    Of the first p records the left side gets (p * left + half) // weight. Divided into
    whole periods and a rest, p = m * weight + r, that is
    m * left + (r * left + half) // weight, whose products stay small.
    """

    weight: int
    left: Node
    right: Node

    def left_count(self, passed: int) -> int:
        """Returns the number of the first `passed` dealt left; see also `_turned`."""
        periods, rest = divmod(passed, self.weight)
        dealt = (rest * self.left.weight + self.weight // 2) // self.weight
        return periods * self.left.weight + dealt

    def left_select(self, dealt: Any) -> Any:
        """Position of the `dealt`-th record, from 0, among those dealt left."""
        # The first p with (p + 1) * left + half >= (dealt + 1) * weight.
        periods, rest = _divided(dealt, self.left.weight)
        short = (rest + 1) * self.weight - self.weight // 2
        return periods * self.weight + -(-short // self.left.weight) - 1

    def right_select(self, dealt: Any) -> Any:
        """Position of the `dealt`-th record, from 0, among those dealt right."""
        # The first p with (p + 1) * right - half > dealt * weight.
        periods, rest = _divided(dealt, self.right.weight)
        reached = rest * self.weight + self.weight // 2
        return periods * self.weight + reached // self.right.weight


Node: TypeAlias = Leaf | Fork


def dealing_tree(weights: Sequence[Fraction]) -> Node:
    """Returns Huffman's tree of the datasets with a weight; equals keep their order."""
    denominator = math.lcm(*(weight.denominator for weight in weights))
    heap: list[tuple[int, int, Node]] = []
    for dataset, weight in enumerate(weights):
        share = int(weight * denominator)
        if share:
            heapq.heappush(heap, (share, dataset, Leaf(share, dataset)))
    made = itertools.count(len(weights))
    while len(heap) > 1:
        light, _, left = heapq.heappop(heap)
        heavy, _, right = heapq.heappop(heap)
        fork = Fork(light + heavy, left, right)
        heapq.heappush(heap, (fork.weight, next(made), fork))
    return heap[0][2]


def _divided(values: Any, by: int) -> tuple[Any, Any]:
    """As `divmod`, which numpy lacks for arrays of Python's integers."""
    return values // by, values % by


def _wide(node: Node, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values in a type whose products with the node's weights are exact."""
    return values if node.weight <= _INT64_WEIGHT else values.astype(object)


def counts_after(tree: Node, passed: int, before: tuple[int, ...]) -> tuple[int, ...]:
    """Adds the count of each dataset of a tree among the first `passed` records."""
    counts = list(before)
    stack = [(tree, passed)]
    while stack:
        node, count = stack.pop()
        if isinstance(node, Leaf):
            counts[node.dataset] += count
            continue
        left = node.left_count(count)
        stack += [(node.left, left), (node.right, count - left)]
    return tuple(counts)


class TreeColumns:
    """A tree as columns, by which many positions go down it at once.

    A side of a fork is a dataset's number, or that of a fork after all datasets.
    """

    def __init__(self, tree: Node, num_datasets: int):
        self.num_datasets, self.tree = num_datasets, tree
        forks: list[Fork] = [tree] if isinstance(tree, Fork) else []
        sides: list[tuple[int, int]] = []
        self.shares = [0] * num_datasets
        for fork in forks:
            codes = []
            for side in (fork.left, fork.right):
                if isinstance(side, Leaf):
                    codes.append(side.dataset)
                    self.shares[side.dataset] = side.weight
                else:
                    codes.append(num_datasets + len(forks))
                    forks.append(side)
            sides.append((codes[0], codes[1]))
        # Quotients of larger weights are computed with Python's integers.
        self.kind = np.int64 if tree.weight <= _FLOAT_WEIGHT else object
        exact = tree.weight <= _INT64_WEIGHT or self.kind is object
        self.turned = _turned if exact else _turned_wide
        weights = np.array([fork.weight for fork in forks], self.kind)
        lefts = np.array([fork.left.weight for fork in forks], self.kind)
        self.forks = np.array([weights, lefts, weights // 2, weights - lefts])
        self.root = self.forks[:, 0].tolist() if forks else []
        # The sides of fork f are at 2 * f, the right one, and 2 * f + 1.
        self.sides = np.array([(right, left) for left, right in sides]).ravel()

    def deal(self, positions: IntArray, last: int) -> tuple[IntArray, IntArray]:
        """Returns the dataset at each position, and its count before it.

        `last` is the last of the positions, or a later one.
        """
        if isinstance(self.tree, Leaf):
            return np.full_like(positions, self.tree.dataset), positions
        if not positions.size:
            return positions, positions
        periods, rest = None, positions.astype(self.kind, copy=False)
        if last >= self.tree.weight:
            periods, rest = _divided(rest, self.tree.weight)
        to_left, places = self.turned(rest, *self.root)
        codes = np.where(to_left, self.sides[1], self.sides[0])
        active = np.flatnonzero(codes >= self.num_datasets)
        rest, found = places.take(active), codes.take(active)
        while active.size:
            forks = found - self.num_datasets
            to_left, rest = self.turned(rest, *self.forks.take(forks, axis=1))
            found = self.sides.take(2 * forks + to_left)
            codes[active], places[active] = found, rest
            deeper = np.flatnonzero(found >= self.num_datasets)
            active, rest = active.take(deeper), rest.take(deeper)
            found = found.take(deeper)
        if periods is not None:
            places = places + periods * np.array(self.shares, self.kind)[codes]
        return codes, places.astype(np.int64, copy=False)


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


def select(tree: Node, dataset: int, places: IntArray) -> IntArray:
    """Returns the positions in a tree of the `places` of one dataset's leaf."""
    values: npt.NDArray[Any] = places
    for fork, is_left in reversed(_path(tree, dataset)):
        values = _wide(fork, values)
        values = fork.left_select(values) if is_left else fork.right_select(values)
    return values.astype(np.int64)


def _path(tree: Node, dataset: int) -> list[tuple[Fork, bool]]:
    """The forks from the root to a dataset's leaf, and whether it lies to the left."""
    stack: list[tuple[Node, list[tuple[Fork, bool]]]] = [(tree, [])]
    while stack:
        node, path = stack.pop()
        if isinstance(node, Fork):
            stack.append((node.left, [*path, (node, True)]))
            stack.append((node.right, [*path, (node, False)]))
        elif node.dataset == dataset:
            return path
    raise InputError(
        "the dataset has no weight in this phase",
        got=dataset,
        cure="choose a dataset with a weight above 0, or a step of another phase",
    )


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

    @property
    def num_datasets(self) -> int:
        """Number of datasets, those of weight 0 included."""
        return len(self.weights)

    def counts(self, position: int) -> tuple[int, ...]:
        """Returns the number of records of each dataset before a position.

        Args:
            position: From 0 to 2^63, both included.
        """
        return counts_after(self._tree, position, (0,) * self.num_datasets)

    def locate(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the origin of the records at some positions.

        Args:
            positions: Positions in the mixture, int64 [n].

        Returns:
            The dataset of each, and the position in that dataset's own order: the
            number of its earlier records. Both int64 [n].
        """
        if self.num_datasets == 1 or not positions.size:
            return np.zeros_like(positions), positions
        return self._columns.deal(positions, int(positions.max()))

    def select(self, dataset: int, dataset_positions: npt.ArrayLike) -> IntArray:
        """Undoes `locate`: where a dataset's records are in the mixture.

        Args:
            dataset: Number of the dataset.
            dataset_positions: Positions in that dataset's own order, [n].

        Returns:
            int64 [n] positions in the mixture; -1 for those that it never reaches
            (below position 2^63).
        """
        wanted = np.asarray(dataset_positions, np.int64)
        positions = np.full_like(wanted, -1)
        reached = wanted <= self.counts(POSITION_LIMIT)[dataset] - 1
        if reached.any():
            positions[reached] = select(self._tree, dataset, wanted[reached])
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
    def _tree(self) -> Node:
        return dealing_tree(self.weights)

    @functools.cached_property
    def _columns(self) -> TreeColumns:
        return TreeColumns(self._tree, self.num_datasets)


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
