"""The tokens that a run has seen at a step, and the step for a number of tokens.

The tokens of a dataset are known, and the number of its rows before a step. At the end
of an epoch the result is exact. Within an epoch, each row counts as a mean row, as only
reading tells which rows are shorter.
"""

from __future__ import annotations

import bisect
import functools
import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeAlias, cast

from gristmill.dataset.base.errors import InputError
from gristmill.loader.base.indices import checked_count, not_opened
from gristmill.loader.data.batches import Batches
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.order.mixture import Weight, exact_weights
from gristmill.loader.order.schedule import Schedule

TokensPerRow: TypeAlias = int | Mapping[str, int]
"""Tokens of each record of datasets that are not packed rows, for all or by name."""


class _HeldTokens(NamedTuple):
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


def token_run(
    batches: Batches,
    *,
    tokens: int | None = None,
    steps: int | None = None,
    tokens_per_row: TokensPerRow | None = None,
) -> TokenRun:
    """Returns the fewest first steps that have some tokens, or the tokens of steps.

    Args:
        batches: The global batches.
        tokens: Tokens to train on: the fewest steps that have as many. They are those
            in the rows of packed datasets, without padding.
        steps: Instead, how many steps.
        tokens_per_row: Tokens of each record of the datasets that are not packed rows:
            a number, or by their names in a mixture.

    Raises:
        InputError: Neither or both of `tokens` and `steps` are given, the batches have
            fewer, or the tokens of a dataset are not known.
    """
    if (tokens is None) == (steps is None):
        raise InputError(
            "a run needs a number of tokens, or a number of steps",
            expected="tokens or steps",
            got=f"tokens={tokens!r}, steps={steps!r}",
            cure="give either tokens or steps",
        )
    schedule, limit = batches.schedule, batches.schedule.step_limit
    names = batches.names or [""] * len(batches.datasets)
    held = [
        _held(dataset, name, tokens_per_row)
        for name, dataset in zip(names, batches.datasets, strict=True)
    ]
    if steps is not None:
        steps = checked_count(steps, what="steps", least=0, most=limit)
        return _of_steps(schedule, held, steps)
    wanted = checked_count(cast("int", tokens), what="tokens", least=0)
    whole = _of_steps(schedule, held, limit)
    if whole.tokens < wanted:
        raise InputError(
            "all batches together have fewer tokens",
            expected=f"at most {whole.tokens:,} tokens, which are in "
            f"{whole.steps:,} steps",
            got=f"{wanted:,}",
            cure="choose more epochs, or none for no end",
        )
    run = functools.partial(_of_steps, schedule, held)
    most = range(min(limit, sys.maxsize))
    return run(bisect.bisect_left(most, wanted, key=lambda n: run(n).tokens))


def _held(
    dataset: Dataset, name: str, tokens_per_row: TokensPerRow | None
) -> _HeldTokens:
    """Returns the tokens of a dataset; raises InputError if they are not known."""
    known = tokens_per_row
    if isinstance(tokens_per_row, Mapping):
        known = tokens_per_row.get(name)
    if not isinstance(dataset, Dataset):
        raise not_opened(dataset)
    rows, counts = len(dataset), dataset.stored.packed
    if counts is not None:
        return _HeldTokens(rows, counts.tokens, counts.targets)
    if known is not None:
        each = checked_count(cast("int", known), what="tokens_per_row")
        return _HeldTokens(rows, rows * each, rows * (each - 1))
    raise InputError(
        "it is not known how many tokens the dataset holds",
        where=repr(dataset),
        expected="a dataset that `gristmill pack` made",
        got="other records",
        cure="give tokens_per_row, or --tokens-per-row, if all have as many",
    )


def _of_steps(schedule: Schedule, held: Sequence[_HeldTokens], steps: int) -> TokenRun:
    """Returns the totals of the first steps."""
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


def token_weights(
    datasets: Mapping[str, Dataset],
    shares: Mapping[str, Weight],
    *,
    tokens_per_row: TokensPerRow | None = None,
) -> dict[str, Fraction]:
    """Returns the weights that give a mixture shares of tokens instead of rows.

    Give them as `weights` to `global_batches` or `then`. Tokens are those
    in the rows of packed datasets, without padding.

    Args:
        datasets: The datasets of the mixture, by name.
        shares: The share of each in the tokens of the mixture, of any sum.
        tokens_per_row: Tokens of each record of the datasets that are not packed rows:
            a number, or by their names.

    Returns:
        The share of each dataset in the rows, by name: exact fractions, together 1.

    Raises:
        InputError: The names are not those of the datasets, a share is not a number,
            or it is not known how many tokens a dataset holds.
    """
    if not isinstance(datasets, Mapping) or not datasets:
        raise InputError(
            "shares of tokens are those of the datasets of a mixture",
            expected='datasets by name: {"a": a, "b": b}',
            got=f"{datasets!r:.200}",
            cure="give the datasets of the mixture by their names",
        )
    if not isinstance(shares, Mapping) or shares.keys() != datasets.keys():
        raise InputError(
            "the shares are not those of the mixture's datasets",
            expected=f"a share for each of {', '.join(datasets)}",
            got=f"{shares!r:.200}",
            cure="give shares by these names and no others",
        )
    rows = []
    exact = exact_weights([shares[name] for name in datasets])
    for (name, dataset), share in zip(datasets.items(), exact, strict=True):
        count, tokens, _ = _held(dataset, name, tokens_per_row)
        rows.append(share * Fraction(count, tokens))
    return dict(zip(datasets, exact_weights(rows), strict=True))
