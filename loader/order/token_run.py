"""How many tokens a run has seen at a step, and at which step it has seen so many.

How many tokens a dataset holds is known, and how many of its rows come before a step.
At the end of an epoch these are exactly its tokens. Within an epoch the rows that were
seen count as the mean row: which of them are shorter is not known without reading them.
"""

from __future__ import annotations

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
    """What knows how many tokens its records hold: a `Dataset`."""

    def packed_counts(self, records: int | None = None) -> PackedCounts | None:
        """What its rows hold, None if that is not known."""
        ...


class HeldTokens(NamedTuple):
    """What the first rows of a dataset hold.

    Attributes:
        rows: How many rows.
        tokens: Tokens in them.
        targets: Those with a successor in their piece, which is predicted.
    """

    rows: int
    tokens: int
    targets: int


class TokenRun(NamedTuple):
    """The first steps of batches, and the tokens in their rows.

    Tokens and targets are exact where a dataset has ended an epoch, and those of mean
    rows within one; rounded down.

    Attributes:
        steps: How many steps.
        rows: Rows of their global batches.
        tokens: Tokens in these rows, those that packing added included, without
            padding.
        targets: Those with a successor in their piece, which is predicted.
        epochs: How many epochs each dataset has seen.
        tokens_of: The tokens of each dataset.
    """

    steps: int
    rows: int
    tokens: int
    targets: int
    epochs: tuple[float, ...]
    tokens_of: tuple[int, ...]


def held_tokens(
    dataset: HasTokens,
    name: str,
    first_rows: Sequence[int] | None,
    tokens_per_row: TokensPerRow | None,
) -> list[HeldTokens]:
    """Returns how many tokens some first rows of a dataset hold, or all by default.

    Raises InputError if that is not known.
    """
    known: int | None = None
    if isinstance(tokens_per_row, Mapping):
        known = tokens_per_row.get(name)
    elif tokens_per_row is not None:
        known = tokens_per_row
    found = []
    for rows in [len(dataset)] if first_rows is None else first_rows:
        counts = dataset.packed_counts(rows)
        if counts is not None:
            found.append(HeldTokens(rows, counts.tokens, counts.targets))
        elif known is not None:
            each = checked_count(known, what="tokens_per_row")
            found.append(HeldTokens(rows, rows * each, rows * (each - 1)))
        else:
            raise InputError(
                "it is not known how many tokens the dataset holds",
                where=repr(dataset),
                expected="a dataset that `gristmill pack` made",
                got="other records",
                cure="give tokens_per_row, or --tokens-per-row, if all have as many",
            )
    return found


def run_of_steps(
    schedule: Schedule, held: Sequence[Sequence[HeldTokens]], *, steps: int
) -> TokenRun:
    """Returns what is in the first steps.

    Args:
        schedule: Which rows are in which step.
        held: Of each dataset, what it holds at step 0 and after each extension.
        steps: How many steps.

    Raises:
        InputError: There are not so many steps.
    """
    limit = schedule.step_limit
    steps = checked_count(steps, what="steps", least=0, most=limit)
    position = min(schedule.sizes.start(steps), schedule.stop)
    counts = schedule.counts(position)
    epochs, tokens, targets = [], [], []
    for order, known, count in zip(schedule.grown, held, counts, strict=True):
        epochs.append(float(order.epochs_before(count)))
        until = {0: HeldTokens(0, 0, 0)} | {one.rows: one for one in known}
        seen = [Fraction(0), Fraction(0)]
        for rows, passed in order.records_before(count):
            # Where records were removed, all have as many tokens.
            whole = rows.start in until and rows.stop in until
            rows = rows if whole else range(known[-1].rows)
            begin, end = until[rows.start], until[rows.stop]
            seen[0] += Fraction(passed * (end.tokens - begin.tokens), len(rows))
            seen[1] += Fraction(passed * (end.targets - begin.targets), len(rows))
        tokens.append(seen[0])
        targets.append(seen[1])
    return TokenRun(
        steps=steps,
        rows=position,
        tokens=int(sum(tokens)),
        targets=int(sum(targets)),
        epochs=tuple(epochs),
        tokens_of=tuple(map(int, tokens)),
    )


def run_of_tokens(
    schedule: Schedule, held: Sequence[Sequence[HeldTokens]], *, tokens: int
) -> TokenRun:
    """Returns the fewest first steps that have so many tokens.

    Args:
        schedule: Which rows are in which step.
        held: Of each dataset, what it holds at step 0 and after each extension.
        tokens: How many tokens.

    Raises:
        InputError: All steps together have fewer.
    """
    wanted = checked_count(tokens, what="tokens", least=0)
    few, enough = -1, schedule.step_limit
    whole = run_of_steps(schedule, held, steps=enough)
    if whole.tokens < wanted:
        raise InputError(
            "all batches together have fewer tokens",
            expected=f"at most {whole.tokens:,} tokens, which are in "
            f"{whole.steps:,} steps",
            got=f"{wanted:,}",
            cure="choose more epochs, or none for no end",
        )
    while enough - few > 1:
        middle = (few + enough) // 2
        if run_of_steps(schedule, held, steps=middle).tokens < wanted:
            few = middle
        else:
            enough = middle
    return run_of_steps(schedule, held, steps=enough)
