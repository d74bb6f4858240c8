"""The dataset of each record of a mixture, exact for any weights.

A mixture is an endless sequence of datasets: position p holds the next record of one of
them. `dealing_tree` has the formula of the sequence, and how exact it is.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Sequence
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

    @functools.cached_property
    def bounds(self) -> tuple[Fraction, ...]:
        """Largest possible error of each dataset's count."""
        return error_bounds(self._tree, self.num_datasets)

    @property
    def num_datasets(self) -> int:
        """Number of datasets, those of weight 0 included."""
        return len(self.weights)

    def counts(self, position: int) -> tuple[int, ...]:
        """Returns the number of records of each dataset before a position.

        Args:
            position: From 0 to 2^63, both included.
        """
        position = checked_count(position, what="position", least=0)
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
        last = self.num_datasets - 1
        dataset = checked_count(dataset, what="dataset", least=0, most=last)
        wanted = checked_indices(
            dataset_positions, stop=POSITION_LIMIT, what="dataset position"
        )
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
    def from_state(cls, state: object, *, place: str = "mixture") -> Mixture:
        """Returns the mixture whose `to_state` gave `state`; messages say `place`.

        Raises:
            InputError: It is not the state of a mixture; the error names the field.
            FormatVersionError: Another version of the arithmetic wrote it.
        """
        fields = StateFields(state, place)
        version = fields.integer("version", least=None)
        if version != MIXTURE_VERSION:
            raise FormatVersionError(
                "another version wrote the mixture's state, it cannot be continued",
                expected=MIXTURE_VERSION,
                got=version,
                cure="resume with the version that wrote it",
            )
        fields.only("version", "weights")
        texts = fields.items("weights")
        weights = tuple(
            Fraction(text)
            for text in texts
            if isinstance(text, str) and _FRACTION.fullmatch(text)
        )
        if len(weights) != len(texts) or sum(weights) != 1:
            expected = 'a list like ["1/3", "2/3"]'
            raise field_error(fields.place("weights"), expected, texts)
        return cls(weights)

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
