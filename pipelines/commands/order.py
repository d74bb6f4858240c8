"""The options that say what was trained on, in which order, and the batches of that."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gristmill.pipelines.commands.exit_codes import at_least
from gristmill.pipelines.options.given_datasets import (
    by_name,
    check_mixture,
    opened_datasets,
    shares_of,
)
from gristmill.pipelines.text.messages import note

if TYPE_CHECKING:
    from gristmill.loader import Dataset
    from gristmill.loader.data.batches import Batches
    from gristmill.loader.order import ShuffleName
    from gristmill.loader.order.mixture import Weight

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--split",
        metavar="NAME",
        show_default="the only one",
        help="Split to read; A,B joins two. Of a mixture also NAME=A,NAME=B.",
    ),
    click.option(
        "--edition",
        metavar="N|NAME=N,...",
        show_default="the last, or the state's",
        help="Edition of the split that was open, counted from 1. Of datasets that are "
        "joined, of each, such as 2,last; of a mixture, NAME=N,...",
    ),
    click.option(
        "--seed",
        type=int,
        metavar="N",
        default=0,
        show_default=True,
        help="Seed of the shuffle.",
    ),
    click.option(
        "--batch-size",
        type=at_least(1),
        metavar="N",
        show_default="that of --state",
        help="Rows of the global batch, over all hosts.",
    ),
    click.option(
        "--shuffle",
        type=click.Choice(["global", "block", "none"]),
        default="global",
        show_default=True,
        help="Order of the records: shuffled over all of them, in blocks of "
        "--block-records, or as they are stored.",
    ),
    click.option(
        "--block-records",
        type=at_least(1),
        metavar="N",
        show_default="64",
        help="With --shuffle block: records that follow one another in a block, which "
        "is read at once.",
    ),
    click.option(
        "--window-blocks",
        type=at_least(1),
        metavar="N",
        show_default="1024",
        help="With --shuffle block: blocks whose records are mixed with each other.",
    ),
    click.option(
        "--epochs",
        type=at_least(1),
        metavar="N",
        show_default="no end",
        help="Number of epochs, after which the order ends.",
    ),
    click.option(
        "--keep-remainder",
        is_flag=True,
        help="Keep the last batch if it is not full, as drop_remainder=False does.",
    ),
    click.option(
        "--weights",
        metavar="NAME=SHARE,...",
        show_default="numbers of records",
        help="Weights of the datasets of a mixture, such as web=3,books=1: shares of "
        "rows, as in global_batches(weights=...).",
    ),
    click.option(
        "--token-weights",
        metavar="NAME=SHARE,...",
        show_default="none",
        help="Instead of --weights, shares of tokens, as in loader.token_weights.",
    ),
    click.option(
        "--tokens-per-row",
        metavar="N|NAME=N,...",
        show_default="known of packed rows",
        help="With --token-weights: tokens of each record of datasets that are not "
        "packed rows.",
    ),
    click.option(
        "--state",
        type=click.Path(dir_okay=False),
        metavar="FILE",
        show_default="none",
        help="State of a feed, as JSON. It replaces the options of the order.",
    ),
)


def order_options(command: F) -> F:
    """Adds the datasets and the options of the order to a command.

    It is given them as it gives them to `opened_batches`.
    """
    command = functools.reduce(lambda c, option: option(c), reversed(_OPTIONS), command)
    return click.argument("dataset", nargs=-1, required=True)(command)


def opened_batches(
    ctx: click.Context,
    dataset: tuple[str, ...],
    *,
    split: str | None,
    edition: str | None,
    state: str | None,
    **order: Any,
) -> Batches:
    """Returns the batches that the options of a command mean.

    Says which order they mean, since another one has other records.

    Raises:
        InputError: They do not go together, or there are no such batches.
    """
    from gristmill.dataset.base.errors import InputError

    given = order_given(ctx, order)
    if state is not None and given:
        raise InputError(
            "--state and options of the order exclude each other",
            got=", ".join(given),
            cure="leave out these options, or --state",
        )
    for option in ("weights", "token_weights"):
        if order[option] is not None:
            check_mixture(dataset, f"--{option.replace('_', '-')}")
    datasets = opened_datasets(dataset, split, edition)
    if state is not None:
        return _batches_of_state(datasets, state)
    batches = _batches(datasets, **order)
    note(f"the order of these options: {batches.order_text}")
    packed = any(one.packed_counts() is not None for one in batches.datasets)
    if order["weights"] is not None and packed:
        note("--weights are shares of rows; --token-weights takes shares of tokens")
    return batches


def order_given(ctx: click.Context, order: Iterable[str]) -> list[str]:
    """Returns those options of the order, by their names, that a command was given."""
    return [
        f"--{key.replace('_', '-')}"
        for key in order
        if ctx.get_parameter_source(key) is not click.core.ParameterSource.DEFAULT
    ]


def _batches(
    datasets: Dataset | dict[str, Dataset],
    *,
    batch_size: int | None,
    shuffle: ShuffleName,
    block_records: int | None,
    window_blocks: int | None,
    keep_remainder: bool,
    weights: str | None,
    token_weights: str | None,
    tokens_per_row: str | None,
    **order: Any,
) -> Batches:
    from gristmill.dataset.base.errors import InputError
    from gristmill.loader import BlockShuffle, global_batches

    if batch_size is None:
        raise InputError(
            "the batch size is missing", cure="give --batch-size, or --state"
        )
    sizes = {"block_records": block_records, "window_blocks": window_blocks}
    blocks = {key: size for key, size in sizes.items() if size is not None}
    if blocks and shuffle != "block":
        raise InputError(
            "--block-records and --window-blocks are for --shuffle block",
            got=shuffle,
            cure="give --shuffle block, or leave them out",
        )
    return global_batches(
        datasets,
        batch_size=batch_size,
        shuffle=BlockShuffle(**blocks) if blocks else shuffle,
        drop_remainder=not keep_remainder,
        weights=_weights(datasets, weights, token_weights, tokens_per_row),
        **order,
    )


def _weights(
    datasets: Dataset | Mapping[str, Dataset],
    weights: str | None,
    token_weights: str | None,
    tokens_per_row: str | None,
) -> Mapping[str, Weight] | None:
    """Returns the shares of rows that the options of a mixture mean."""
    from gristmill.dataset.base.errors import InputError
    from gristmill.loader import token_weights as weights_of_tokens

    if weights is not None and token_weights is not None:
        raise InputError(
            "--weights and --token-weights exclude each other",
            cure="give --weights for shares of rows, --token-weights for shares of "
            "tokens",
        )
    if tokens_per_row is not None and token_weights is None:
        raise InputError(
            "--tokens-per-row is for --token-weights",
            cure="leave it out, or give --token-weights",
        )
    if token_weights is None or not isinstance(datasets, Mapping):
        return None if weights is None else shares_of(weights, "--weights")
    shares = shares_of(token_weights, "--token-weights")
    each = None if tokens_per_row is None else _tokens_per_row(tokens_per_row)
    return weights_of_tokens(datasets, shares, tokens_per_row=each)


def _tokens_per_row(text: str) -> int | dict[str, int]:
    from gristmill.dataset.base.errors import InputError

    found = by_name(text, "--tokens-per-row")
    numbers = {name: int(v[0]) for name, v in found.items() if v[0].isdecimal()}
    if len(numbers) < len(found) or any(len(values) > 1 for values in found.values()):
        raise InputError(
            "--tokens-per-row is not a number of tokens",
            expected="N, or NAME=N,...",
            got=text,
            cure="give one number for all datasets, or one for each name",
        )
    return numbers[""] if numbers.keys() == {""} else numbers


def _batches_of_state(datasets: Dataset | dict[str, Dataset], path: str) -> Batches:
    """Returns the batches of the feed that wrote a state."""
    from gristmill.loader.feed.state import batches_of_state

    return batches_of_state(datasets, read_state(path))


def read_state(path: str) -> Any:
    """Returns the state of a feed that a file has as JSON.

    Raises:
        InputError: It cannot be read.
    """
    from gristmill.dataset.base.errors import InputError
    from gristmill.dataset.storage.paths import path_text

    path = path_text(path, "state")
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except (OSError, RecursionError, ValueError) as e:
        raise InputError(
            "the state of a feed cannot be read",
            where=path,
            got=e,
            cure="give a JSON file with what get_state of the feed returned",
        ) from e
