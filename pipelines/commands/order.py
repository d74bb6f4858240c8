"""The options that say what was trained on, in which order, and the batches of that."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.base.whole_numbers import whole_number
from gristmill.pipelines.commands.messages import note, options_given
from gristmill.pipelines.commands.shared_options import (
    choice,
    flag,
    number,
    option,
    paths,
    split,
    text,
    together,
)
from gristmill.pipelines.options.given_datasets import (
    by_name,
    check_mixture,
    opened_datasets,
    shares_of,
)

if TYPE_CHECKING:
    from gristmill.loader import Dataset
    from gristmill.loader.data.batches import Batches
    from gristmill.loader.order.mixture import Weight


ORDER = together(
    paths("dataset"),
    split("Split to read; A,B joins two. For a mixture also NAME=A,NAME=B."),
    text(
        "--edition",
        "N|NAME=N,...",
        "Edition of the split that was open, counted from 1. For joined datasets, one "
        "for each, such as 2,last; for a mixture, NAME=N,...",
        "the last, or the state's",
    ),
    text(
        "--select",
        "CONDITION",
        "Condition on columns by which records were selected, as for `select` in "
        "Python; for a mixture 'NAME=CONDITION; NAME=...'.",
        "all records",
    ),
    option("--seed", type=int, metavar="N", default=0, help="Seed of the shuffle."),
    number(
        "--batch-size",
        help="Rows of the global batch, over all hosts.",
        shown="that of --state",
    ),
    choice(
        "--shuffle",
        ("global", "block", "none"),
        "Order of the records: shuffled over all of them, in blocks of "
        "--block-records, or as they are stored.",
    ),
    number(
        "--block-records",
        help="With --shuffle block: consecutive records, which are read at once.",
        shown="64",
    ),
    number(
        "--window-blocks",
        help="With --shuffle block: blocks that are mixed with each other.",
        shown="1024",
    ),
    number(
        "--epochs",
        help="Number of epochs, after which the order ends.",
        shown="no end",
    ),
    flag(
        "--keep-remainder",
        "Keep the last batch if it is not full, as drop_remainder=False does.",
    ),
    text(
        "--weights",
        "NAME=SHARE,...",
        "Weights of the datasets of a mixture, such as web=3,books=1: shares of rows, "
        "as in global_batches(weights=...).",
        "numbers of records",
    ),
    text(
        "--token-weights",
        "NAME=SHARE,...",
        "Instead of --weights, shares of tokens, as in loader.token_weights.",
    ),
    text(
        "--tokens-per-row",
        "N|NAME=N,...",
        "With --token-weights: tokens of each record of datasets that are not packed "
        "rows.",
        "known of packed rows",
    ),
    text(
        "--state",
        "FILE",
        "State of a feed, as JSON. It replaces the options of the order.",
        type=click.Path(dir_okay=False, readable=False),
    ),
    home="account",
)


_OF_ORDER_ALONE = (
    *("seed", "batch_size", "shuffle", "block_records", "window_blocks", "epochs"),
    *("keep_remainder", "weights", "token_weights", "tokens_per_row"),
)


def order_given() -> list[str]:
    """Returns those options of the order alone that the command was given."""
    return options_given(_OF_ORDER_ALONE)


def opened_of(order: Any) -> Dataset | dict[str, Dataset]:
    """Opens the dataset, or those of the mixture by their names.

    Args:
        order: The values of `ORDER`, as attributes.

    Raises:
        InputError: The options do not go together, or there is no such dataset.
    """
    opened = opened_datasets(order.dataset, order.split, order.edition)
    if order.select is None:
        return opened
    if not isinstance(opened, dict):
        return opened.select(order.select)
    for item in order.select.split(";"):
        name, _, condition = map(str.strip, item.partition("="))
        if name not in opened:
            raise InputError(
                "--select names no dataset of the mixture",
                expected=f"'NAME=CONDITION; ...' with one of {', '.join(opened)}",
                got=order.select,
                cure="give the names of the datasets",
            )
        opened[name] = opened[name].select(condition)
    return opened


def opened_batches(order: Any) -> Batches:
    """Returns the batches that the options of a command mean.

    Says which order they mean, since another one has other records.

    Args:
        order: The values of `ORDER`, as attributes.

    Raises:
        InputError: They do not go together, or there are no such batches.
    """
    given = order_given()
    if order.state is not None and given:
        raise InputError(
            "--state and options of the order exclude each other",
            got=", ".join(given),
            cure="leave out these options, or --state",
        )
    for name in ("--weights", "--token-weights"):
        if name in given:
            check_mixture(order.dataset, name)
    datasets = opened_of(order)
    if order.state is not None:
        return _batches_of_state(datasets, order.state)
    batches = _batches(datasets, order)
    from gristmill.loader.data.batches import order_text

    note(f"the order of these options: {order_text(batches)}")
    packed = any(one.packed_counts() is not None for one in batches.datasets)
    if order.weights is not None and packed:
        note("--weights are shares of rows; --token-weights takes shares of tokens")
    return batches


@contextlib.contextmanager
def usage_errors() -> Iterator[None]:
    """Raises numbers and states that do not fit the order as errors of usage."""
    from gristmill.dataset.base.errors import OutOfRangeError, StateMismatchError

    try:
        yield
    except (OutOfRangeError, StateMismatchError) as e:
        raise InputError(**e.facts()) from e


def _batches(datasets: Dataset | dict[str, Dataset], order: Any) -> Batches:
    from gristmill.loader import BlockShuffle, global_batches

    shuffle = order.shuffle
    if order.batch_size is None:
        raise InputError(
            "the batch size is missing", cure="give --batch-size, or --state"
        )
    sizes = {name: getattr(order, name) for name in ("block_records", "window_blocks")}
    blocks = {key: size for key, size in sizes.items() if size is not None}
    if blocks and shuffle != "block":
        raise InputError(
            "--block-records and --window-blocks are for --shuffle block",
            got=shuffle,
            cure="give --shuffle block, or leave them out",
        )
    return global_batches(
        datasets,
        batch_size=order.batch_size,
        seed=order.seed,
        epochs=order.epochs,
        shuffle=BlockShuffle(**blocks) if blocks else shuffle,
        drop_remainder=not order.keep_remainder,
        weights=_weights(datasets, order),
    )


def _weights(
    datasets: Dataset | Mapping[str, Dataset], order: Any
) -> Mapping[str, Weight] | None:
    """Returns the shares of rows that the options of a mixture mean."""
    from gristmill.loader import token_weights as weights_of_tokens

    weights, token_weights = order.weights, order.token_weights
    tokens_per_row = order.tokens_per_row
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
    found = by_name(text, "--tokens-per-row")
    given = {name: whole_number(values[0]) for name, values in found.items()}
    numbers = {name: one for name, one in given.items() if one is not None}
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
