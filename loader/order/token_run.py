"""The tokens that a run has seen at a step, and the step for a number of tokens.

The tokens of a dataset are known, and the number of its rows before a step. At the end
of an epoch the result is exact. Within an epoch, each row counts as a mean row, as only
reading tells which rows are shorter.
"""

from __future__ import annotations

import bisect
import sys
from collections.abc import Mapping, Sequence, Sized
from fractions import Fraction
from typing import NamedTuple, Protocol, TypeAlias

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.loader.base.indices import checked_count
from gristmill.loader.order.schedule import Schedule

TokensPerRow: TypeAlias = int | Mapping[str, int]
"""Tokens of each record of datasets that are not packed rows, for all or by name."""


class HasTokens(Sized, Protocol):
    """An object that knows the tokens of its records, such as a `Dataset`."""

    def packed_counts(self) -> PackedCounts | None:
        """Counts of its rows, None if not known."""
        ...


class HeldTokens(NamedTuple):
    """The counts of a dataset.

    Attributes:
        rows: Number of rows.
        tokens: Tokens in these rows.
        targets: Those with a successor in their piece, which is predicted.
    """

    rows: int
    tokens: int
    targets: int


class TokenRun(NamedTuple):
    """The first steps of batches, and the tokens in their rows.

    Tokens and targets are exact at the end of a dataset's epoch; within one, they are
    those of mean rows, rounded down.

    Attributes:
        steps: Number of steps.
        rows: Rows of their global batches.
        tokens: Tokens in these rows, including those added by packing, without padding.
        targets: Those with a successor in their piece, which is predicted.
        epochs: How often each dataset was seen.
        tokens_of: The tokens of each dataset.
    """

    steps: int
    rows: int
    tokens: int
    targets: int
    epochs: tuple[float, ...]
    tokens_of: tuple[int, ...]


def held_tokens(
    dataset: HasTokens, name: str, tokens_per_row: TokensPerRow | None
) -> HeldTokens:
    """Returns the tokens of a dataset; raises InputError if they are not known."""
    known: int | None = None
    if isinstance(tokens_per_row, Mapping):
        known = tokens_per_row.get(name)
    elif tokens_per_row is not None:
        known = tokens_per_row
    rows, counts = len(dataset), dataset.packed_counts()
    if counts is not None:
        return HeldTokens(rows, counts.tokens, counts.targets)
    if known is not None:
        each = checked_count(known, what="tokens_per_row")
        return HeldTokens(rows, rows * each, rows * (each - 1))
    raise InputError(
        "it is not known how many tokens the dataset holds",
        where=repr(dataset),
        expected="a dataset that `gristmill pack` made",
        got="other records",
        cure="give tokens_per_row, or --tokens-per-row, if all have as many",
    )


def run_of_steps(
    schedule: Schedule, held: Sequence[HeldTokens], *, steps: int
) -> TokenRun:
    """Returns the totals of the first steps.

    Args:
        schedule: The rows of each step.
        held: Counts of each dataset.
        steps: Number of steps.

    Raises:
        InputError: There are fewer steps.
    """
    limit = schedule.step_limit
    steps = checked_count(steps, what="steps", least=0, most=limit)
    position = min(schedule.start(steps), schedule.stop)
    rows = [0] * len(held)
    for number, _, count in schedule.passed(position):
        rows[number] += count
    parts = [
        (Fraction(seen, one.rows), one) for seen, one in zip(rows, held, strict=True)
    ]
    tokens = [epochs * one.tokens for epochs, one in parts]
    return TokenRun(
        steps=steps,
        rows=position,
        tokens=int(sum(tokens)),
        targets=int(sum(epochs * one.targets for epochs, one in parts)),
        epochs=tuple(float(epochs) for epochs, _ in parts),
        tokens_of=tuple(map(int, tokens)),
    )


def run_of_tokens(
    schedule: Schedule, held: Sequence[HeldTokens], *, tokens: int
) -> TokenRun:
    """Returns the smallest number of first steps that have some tokens.

    Args:
        schedule: The rows of each step.
        held: Counts of each dataset.
        tokens: Number of tokens.

    Raises:
        InputError: All steps together have fewer.
    """
    wanted = checked_count(tokens, what="tokens", least=0)
    limit = schedule.step_limit
    whole = run_of_steps(schedule, held, steps=limit)
    if whole.tokens < wanted:
        raise InputError(
            "all batches together have fewer tokens",
            expected=f"at most {whole.tokens:,} tokens, which are in "
            f"{whole.steps:,} steps",
            got=f"{wanted:,}",
            cure="choose more epochs, or none for no end",
        )
    most = min(limit, sys.maxsize)

    def run(steps: int) -> TokenRun:
        return run_of_steps(schedule, held, steps=steps)

    return run(bisect.bisect_left(range(most), wanted, key=lambda n: run(n).tokens))
