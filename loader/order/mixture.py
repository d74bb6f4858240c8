"""Which dataset each record of a mixture comes from, exact for any weights.

A mixture is an endless sequence of datasets: position p holds the next record of one of
them. The sequence is a formula. The datasets are the leaves of a binary tree (that of
Huffman for the weights). Of the first p records that pass a node, its left child gets
``p * left_weight / weight`` rounded to the nearest integer. That count rises by 0 or 1
with p, so it deals every record to one side, and it can be inverted: constant time for
rank (how many of d before p) and for select (where the j-th of d is), no table, no
common denominator that would have to be small.

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

import bisect
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

from gristmill.dataset.errors import FormatVersionError, InputError
from gristmill.loader.indices import (
    POSITION_LIMIT,
    IntArray,
    checked_count,
    checked_indices,
)
from gristmill.loader.state_fields import StateFields, field_error

# Part of every checkpoint: positions under one version never change.
MIXTURE_VERSION = 1

Weight: TypeAlias = int | float | str | Fraction

# As `to_state` writes weights. Python refuses to parse integers that are much longer.
_FRACTION = re.compile(r"[0-9]{1,4000}(/[1-9][0-9]{0,3999})?")

# Products of a position within a period and a weight fit int64 up to this weight;
# heavier nodes are computed with Python's integers.
_INT64_WEIGHT = 1 << 31
# Up to this weight such positions can be dealt in int64 even so.
_FLOAT_WEIGHT = 1 << 50


@dataclasses.dataclass(frozen=True)
class Phase:
    """Weights that hold from a position on.

    Attributes:
        from_position: First position of the mixture with these weights.
        weights: One for each dataset, at least 0; together 1.
    """

    from_position: int
    weights: tuple[Fraction, ...]

    def __post_init__(self) -> None:
        start = checked_count(
            self.from_position, what="from_position", least=0, most=POSITION_LIMIT - 1
        )
        object.__setattr__(self, "from_position", start)
        object.__setattr__(self, "weights", exact_weights(self.weights))

    @functools.cached_property
    def bounds(self) -> tuple[Fraction, ...]:
        """Largest possible error of each dataset's count since the phase began."""
        bounds = [Fraction(0)] * len(self.weights)
        stack = [(self._tree, Fraction(0))]
        while stack:
            node, inherited = stack.pop()
            if isinstance(node, _Leaf):
                bounds[node.dataset] = inherited
                continue
            for child in (node.left, node.right):
                share = Fraction(child.weight, node.weight)
                stack.append((child, inherited * share + Fraction(1, 2)))
        return tuple(bounds)

    @functools.cached_property
    def _tree(self) -> _Node:
        """Huffman's tree of the datasets with a weight; equals keep their order."""
        denominator = math.lcm(*(weight.denominator for weight in self.weights))
        heap: list[tuple[int, int, _Node]] = []
        for dataset, weight in enumerate(self.weights):
            share = int(weight * denominator)
            if share:
                heapq.heappush(heap, (share, dataset, _Leaf(share, dataset)))
        made = itertools.count(len(self.weights))
        while len(heap) > 1:
            light, _, left = heapq.heappop(heap)
            heavy, _, right = heapq.heappop(heap)
            fork = _Fork(light + heavy, left, right)
            heapq.heappush(heap, (fork.weight, next(made), fork))
        return heap[0][2]

    @functools.cached_property
    def _deal(self) -> _Deal:
        return _Deal(self._tree, len(self.weights))


@dataclasses.dataclass(frozen=True)
class Mixture:
    """The dataset at each position, by weights that may change from a position on.

    Attributes:
        phases: In the order of their positions, the first from position 0.
    """

    phases: tuple[Phase, ...]

    def __post_init__(self) -> None:
        starts = [phase.from_position for phase in self.phases]
        widths = {len(phase.weights) for phase in self.phases}
        if starts[:1] != [0] or sorted(set(starts)) != starts or len(widths) != 1:
            raise InputError(
                "the phases of a mixture do not follow one another",
                expected="rising positions from 0, the same number of weights in each",
                got=[
                    (phase.from_position, len(phase.weights)) for phase in self.phases
                ],
            )

    @classmethod
    def of(cls, weights: Sequence[Weight]) -> Mixture:
        """Returns a mixture of one phase.

        Args:
            weights: One for each dataset, at least 0, not all 0; divided by their sum.
                Exact: a float means its shortest decimal, so 0.1 is one tenth, and a
                string may be "1/3".

        Raises:
            InputError: A weight is negative or not a number, or none is positive.
        """
        return cls((Phase(0, exact_weights(weights)),))

    def reweighted(self, weights: Sequence[Weight], *, from_position: int) -> Mixture:
        """Returns this mixture with other weights from a position on.

        Every dataset continues where it stands there. Phases from that position on
        are replaced.
        """
        added = Phase(from_position, exact_weights(weights))
        kept = [old for old in self.phases if old.from_position < added.from_position]
        return Mixture((*kept, added))

    @property
    def num_datasets(self) -> int:
        """Number of datasets, those of weight 0 included."""
        return len(self.phases[0].weights)

    def counts(self, position: int) -> tuple[int, ...]:
        """Returns how many records of each dataset come before a position.

        Args:
            position: From 0 to 2^63, both included.
        """
        position = checked_count(position, what="position", least=0)
        number = self._phase_at(position)
        within = position - self._starts[number]
        before = self._counts_before[number]
        return _counts_after(self.phases[number]._tree, within, before)

    def locate(self, positions: npt.ArrayLike) -> tuple[IntArray, IntArray]:
        """Returns where the records at some positions come from.

        Args:
            positions: Positions in the mixture, integers of any shape.

        Returns:
            The dataset of each, and the position in that dataset's own order: how many
            records of it come before. Both int64, of the shape of `positions`.
        """
        return self.locate_unchecked(
            checked_indices(positions, stop=POSITION_LIMIT, what="position")
        )

    def locate_unchecked(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """As `locate`, of int64 positions that are known to be in range."""
        if self.num_datasets == 1:
            return np.zeros_like(positions), positions
        flat = positions.ravel()
        if not flat.size:
            return positions, positions
        datasets, places = self.locate_between(flat, int(flat.min()), int(flat.max()))
        return datasets.reshape(positions.shape), places.reshape(positions.shape)

    def locate_between(
        self, positions: IntArray, first: int, last: int
    ) -> tuple[IntArray, IntArray]:
        """As `locate_unchecked`, of [n] positions from a first to a last one."""
        number = self._phase_at(first)
        if number != self._phase_at(last):
            datasets, places = np.empty_like(positions), np.empty_like(positions)
            numbers = np.searchsorted(self._starts, positions, side="right") - 1
            for number in np.unique(numbers).tolist():
                rows = np.flatnonzero(numbers == number)
                here = positions[rows]
                ends = int(here.min()), int(here.max())
                datasets[rows], places[rows] = self.locate_between(here, *ends)
            return datasets, places
        phase = self.phases[number]
        within = positions - phase.from_position if number else positions
        datasets, places = phase._deal.deal(within, last - phase.from_position)
        if number:
            places = places + self._before[number][datasets]
        return datasets, places

    def select(self, dataset: int, dataset_positions: npt.ArrayLike) -> IntArray:
        """Undoes `locate`: where a dataset's records are in the mixture.

        Args:
            dataset: Which dataset.
            dataset_positions: Positions in that dataset's own order, any shape.

        Returns:
            int64 positions in the mixture, of the same shape; -1 for those that it
            never reaches (below position 2^63).
        """
        last = self.num_datasets - 1
        dataset = checked_count(dataset, what="dataset", least=0, most=last)
        wanted = checked_indices(
            dataset_positions, stop=POSITION_LIMIT, what="dataset position"
        )
        flat = wanted.ravel()
        before = [counts[dataset] for counts in self._counts_before]
        total = self.counts(POSITION_LIMIT)[dataset]
        positions = np.full_like(flat, -1)
        # Phases without the dataset leave `before` as it is: the last of equals has it.
        numbers = np.searchsorted(np.array(before), flat, side="right") - 1
        numbers[flat > total - 1] = -1
        for number in np.unique(numbers[numbers >= 0]).tolist():
            phase = self.phases[number]
            rows = np.flatnonzero(numbers == number)
            within = _select(phase._tree, dataset, flat[rows] - before[number])
            positions[rows] = within + phase.from_position
        return positions.reshape(wanted.shape)

    def to_state(self) -> dict[str, Any]:
        """Returns what a checkpoint keeps of this mixture, as JSON values."""
        return {
            "version": MIXTURE_VERSION,
            "phases": [
                {
                    "from_position": phase.from_position,
                    "weights": [str(weight) for weight in phase.weights],
                }
                for phase in self.phases
            ],
        }

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> Mixture:
        """Returns the mixture whose `to_state` gave `state`.

        Raises:
            InputError: It is not the state of a mixture; the error names the field.
            FormatVersionError: Another version of the arithmetic wrote it.
        """
        fields = StateFields(state, "mixture")
        version = fields.integer("version", least=None)
        if version != MIXTURE_VERSION:
            raise FormatVersionError(
                "another version wrote the mixture's state, it cannot be continued",
                expected=MIXTURE_VERSION,
                got=version,
                cure="resume with the version that wrote it",
            )
        fields.only("version", "phases")
        return cls(tuple(map(_phase_of, fields.objects("phases"))))

    def _phase_at(self, position: int) -> int:
        return bisect.bisect_right(self._starts, position) - 1

    @functools.cached_property
    def _before(self) -> IntArray:
        """As `_counts_before`, int64 [phases, datasets]."""
        return np.array(self._counts_before, np.int64)

    @functools.cached_property
    def _starts(self) -> list[int]:
        return [phase.from_position for phase in self.phases]

    @functools.cached_property
    def _counts_before(self) -> list[tuple[int, ...]]:
        """How many records of each dataset come before each phase."""
        before = [(0,) * self.num_datasets]
        for phase, following in zip(self.phases, self.phases[1:], strict=False):
            length = following.from_position - phase.from_position
            before.append(_counts_after(phase._tree, length, before[-1]))
        return before


def _phase_of(fields: StateFields) -> Phase:
    fields.only("from_position", "weights")
    position = fields.integer("from_position", most=POSITION_LIMIT - 1)
    texts = fields.items("weights")
    weights = []
    for text in texts:
        if isinstance(text, str) and _FRACTION.fullmatch(text):
            weights.append(Fraction(text))
    if len(weights) != len(texts) or sum(weights) != 1:
        raise field_error(fields.place("weights"), 'a list like ["1/3", "2/3"]', texts)
    return Phase(position, tuple(weights))


def exact_weights(weights: Sequence[Weight]) -> tuple[Fraction, ...]:
    """Returns weights as fractions that sum to 1; see `Mixture.of`.

    >>> exact_weights([0.1, "2/10", 1])
    (Fraction(1, 13), Fraction(2, 13), Fraction(10, 13))
    """
    exact = []
    for weight in weights:
        try:
            # repr of a float is the shortest decimal that gives that float.
            decimal = repr(float(weight)) if isinstance(weight, float) else weight
            exact.append(Fraction(decimal))
        except (ValueError, TypeError, ZeroDivisionError):
            raise InputError(
                "weight is not a number",
                expected='such as 3, 0.25, "1/3"',
                got=repr(weight),
            ) from None
    total = sum(exact)
    if total <= 0 or min(exact) < 0:
        raise InputError(
            "weights cannot make a mixture",
            expected="none negative, at least one positive",
            got=list(weights),
        )
    return tuple(weight / total for weight in exact)


@dataclasses.dataclass(frozen=True)
class _Leaf:
    weight: int
    dataset: int


@dataclasses.dataclass(frozen=True)
class _Fork:
    """Deals records to two sides.

    Of the first p records the left side gets (p * left + half) // weight. Divided into
    whole periods and a rest, p = m * weight + r, that is
    m * left + (r * left + half) // weight, whose products stay small.
    """

    weight: int
    left: _Node
    right: _Node

    def left_count(self, passed: int) -> int:
        """How many of the first `passed` are dealt left; see `_turned` for the next."""
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


_Node: TypeAlias = _Leaf | _Fork


def _divided(values: Any, by: int) -> tuple[Any, Any]:
    """As `divmod`, which numpy lacks for arrays of Python's integers."""
    return values // by, values % by


def _wide(node: _Node, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The values in a type whose products with the node's weights are exact."""
    return values if node.weight <= _INT64_WEIGHT else values.astype(object)


def _counts_after(tree: _Node, passed: int, before: tuple[int, ...]) -> tuple[int, ...]:
    """Adds how many of the first `passed` records each dataset of a tree gets."""
    counts = list(before)
    stack = [(tree, passed)]
    while stack:
        node, count = stack.pop()
        if isinstance(node, _Leaf):
            counts[node.dataset] += count
            continue
        left = node.left_count(count)
        stack += [(node.left, left), (node.right, count - left)]
    return tuple(counts)


class _Deal:
    """A tree as columns, by which many positions go down it at once.

    A side of a fork is a dataset's number, or that of a fork after all datasets.
    """

    def __init__(self, tree: _Node, num_datasets: int):
        self.num_datasets, self.tree = num_datasets, tree
        forks: list[_Fork] = [tree] if isinstance(tree, _Fork) else []
        sides: list[tuple[int, int]] = []
        self.shares = [0] * num_datasets
        for fork in forks:
            codes = []
            for side in (fork.left, fork.right):
                if isinstance(side, _Leaf):
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
        """Returns the dataset at each position, and how many of it come before.

        `last` is the last of the positions, or a later one.
        """
        if isinstance(self.tree, _Leaf):
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
    """As `_turned`, of weights whose products leave int64.

    The quotient in floating point is off by less than 2. What is left over is then so
    small that int64 holds it, however often it wrapped around on the way.
    """
    before = (rest * (left / weight)).astype(np.int64)
    over = rest * left + half - before * weight
    more = over // weight
    before += more
    to_left = over - more * weight >= right
    return to_left, np.where(to_left, before, rest - before)


def _select(tree: _Node, dataset: int, places: IntArray) -> IntArray:
    """Positions in a tree of the `places` of one dataset's leaf."""
    values: npt.NDArray[Any] = places
    for fork, is_left in reversed(_path(tree, dataset)):
        values = _wide(fork, values)
        values = fork.left_select(values) if is_left else fork.right_select(values)
    return values.astype(np.int64)


def _path(tree: _Node, dataset: int) -> list[tuple[_Fork, bool]]:
    """The forks from the root to a dataset's leaf, and whether it lies to the left."""
    stack: list[tuple[_Node, list[tuple[_Fork, bool]]]] = [(tree, [])]
    while stack:
        node, path = stack.pop()
        if isinstance(node, _Fork):
            stack.append((node.left, [*path, (node, True)]))
            stack.append((node.right, [*path, (node, False)]))
        elif node.dataset == dataset:
            return path
    raise InputError("the dataset has no weight in this phase", got=dataset)
