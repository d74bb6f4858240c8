"""The dataset of each record of a mixture, exact for any weights.

A mixture is an endless sequence of datasets: position p holds the next record of one of
them. `dealing_tree` has the formula of the sequence, and how exact it is.
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
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
    checked_count,
    checked_indices,
)
from gristmill.loader.base.state_fields import StateFields, field_error
from gristmill.loader.order.dealing_tree import (
    Node,
    TreeColumns,
    counts_after,
    dealing_tree,
    error_bounds,
    select,
)

# Part of every checkpoint: positions under one version never change.
MIXTURE_VERSION = 1

Weight: TypeAlias = int | float | str | Fraction

# As `to_state` writes weights. Python refuses to parse integers that are much longer.
# A text that stands for more digits than a state can have.
_VAST = re.compile(r"(?s).{401}|[eE][-+]?[0-9_]{4}")
_FRACTION = re.compile(r"[0-9]{1,4000}(/[1-9][0-9]{0,3999})?")


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
        return error_bounds(self._tree, len(self.weights))

    @functools.cached_property
    def _tree(self) -> Node:
        return dealing_tree(self.weights)

    @functools.cached_property
    def _columns(self) -> TreeColumns:
        return TreeColumns(self._tree, len(self.weights))


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
                cure="give phases by rising from_position, each with a weight for "
                "every dataset",
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
        """Returns the number of records of each dataset before a position.

        Args:
            position: From 0 to 2^63, both included.
        """
        position = checked_count(position, what="position", least=0)
        number = self._phase_at(position)
        within = position - self._starts[number]
        before = self._counts_before[number]
        return counts_after(self.phases[number]._tree, within, before)

    def locate(self, positions: IntArray) -> tuple[IntArray, IntArray]:
        """Returns the origin of the records at some positions.

        Args:
            positions: Positions in the mixture, int64 of any shape.

        Returns:
            The dataset of each, and the position in that dataset's own order: the
            number of its earlier records. Both int64, of the shape of `positions`.
        """
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
        """As `locate`, for [n] positions from a first to a last one."""
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
        datasets, places = phase._columns.deal(within, last - phase.from_position)
        if number:
            places = places + self._before[number][datasets]
        return datasets, places

    def select(self, dataset: int, dataset_positions: npt.ArrayLike) -> IntArray:
        """Undoes `locate`: where a dataset's records are in the mixture.

        Args:
            dataset: Number of the dataset.
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
        # Phases without the dataset leave `before` as it is: the last of equal ones has
        # it.
        numbers = np.searchsorted(np.array(before), flat, side="right") - 1
        numbers[flat > total - 1] = -1
        for number in np.unique(numbers[numbers >= 0]).tolist():
            phase = self.phases[number]
            rows = np.flatnonzero(numbers == number)
            within = select(phase._tree, dataset, flat[rows] - before[number])
            positions[rows] = within + phase.from_position
        return positions.reshape(wanted.shape)

    def to_state(self) -> dict[str, Any]:
        """Returns the state of this mixture for a checkpoint, as JSON values."""
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
        """The number of records of each dataset before each phase."""
        before = [(0,) * self.num_datasets]
        for phase, following in zip(self.phases, self.phases[1:], strict=False):
            length = following.from_position - phase.from_position
            before.append(counts_after(phase._tree, length, before[-1]))
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
