"""The datasets and the batches of a run, from the options of a command."""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.commands.messages import note, options_given, refuse
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
from gristmill.pipelines.text.printer import whole_number

if TYPE_CHECKING:
    from gristmill.loader import Dataset
    from gristmill.loader.data.batches import Batches

_MOST_NUMBERS = 1000
_SHARES = "NAME=SHARE,..., each name once, such as web=3,books=1"

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
    """Returns the options that only concern the order and were given."""
    return options_given(_OF_ORDER_ALONE)


def paths_of(given: Sequence[str]) -> dict[str, list[str]]:
    """Returns the paths of each dataset by name; "" for a single dataset.

    An argument that exists is a path, even with `=` in it. Paths of one name are
    joined.

    Raises:
        InputError: Some have a name, and others have none.
    """
    found: dict[str, list[str]] = {}
    for item in given:
        name, _, path = item.partition("=")
        if not path or "://" in name or glob.glob(item):
            name, path = "", item
        found.setdefault(name, []).append(path)
    refuse(
        "" in found and len(found) > 1,
        "datasets of a mixture need names",
        expected="NAME=PATH for each; paths of the same NAME are joined",
        got=" ".join(given),
        cure="give each path as NAME=PATH",
    )
    return found


def check_mixture(dataset: Sequence[str], option: str) -> None:
    """Raises InputError for an option of a mixture, where there is one dataset."""
    refuse(
        "" in paths_of(dataset),
        f"{option} is for a mixture",
        got=f"one dataset, {' '.join(dataset)}",
        cure=f"leave out {option}, or give NAME=PATH for each dataset",
    )


def _by_name(text: str | None, option: str, expected: str) -> dict[str, list[str]]:
    """Returns the values of an option by the names before them; "" for none.

    `web=3,books=1,books=2` is `{"web": ["3"], "books": ["1", "2"]}`.
    """
    found: dict[str, list[str]] = {}
    for item in () if text is None else text.split(","):
        name, equals, value = item.rpartition("=")
        refuse_value(not value or (equals and not name), option, text, expected)
        found.setdefault(name, []).append(value)
    return found


def refuse_value(wrong: object, option: str, text: str | None, expected: str) -> None:
    """Raises InputError for an invalid value of an option."""
    refuse(
        wrong,
        f"{option} cannot be read",
        expected=expected,
        got=text,
        cure=f"correct {option}, or leave it out",
    )


def numbers_by_name(text: str | None, option: str) -> dict[str, list[int]]:
    """Returns the numbers that an option lists, by the names before them.

    `3,7:9` is `{"": [3, 7, 8]}`.

    Raises:
        InputError: A part is not a number or range, or there are over 1,000.
    """
    expected = "N, or A:B from A to before B, with commas between, such as 3,7:9"
    found: dict[str, list[int]] = {}
    for name, values in _by_name(text, option, expected).items():
        for value in values:
            begin, colon, end = value.partition(":")
            first, stop = whole_number(begin), whole_number(end)
            if first is not None and not colon:
                stop = first + 1
            if first is None or stop is None or first >= stop:
                refuse_value(True, option, text, expected)
            else:
                some = range(first, min(stop, first + _MOST_NUMBERS + 1))
                found.setdefault(name, []).extend(some)
    refuse(
        sum(map(len, found.values())) > _MOST_NUMBERS,
        f"{option} lists too many at once",
        expected=f"at most {_MOST_NUMBERS:,}",
        got=text,
        cure="give fewer",
    )
    return found


def opened_of(order: Any) -> dict[str, Dataset]:
    """Opens the datasets of a mixture, by name; a single one has the name "".

    Args:
        order: The values of `ORDER`, as attributes.

    Raises:
        InputError: The options contradict each other, or there is no such dataset.
    """
    from gristmill.loader import open as open_dataset

    paths = paths_of(order.dataset)
    splits = _of_datasets(order.split, "--split", paths)
    editions = _of_datasets(order.edition, "--edition", paths)
    opened = {}
    for name, some in paths.items():
        _check_commas(name, some)
        numbers = [_edition_number(text) for text in editions[name]]
        opened[name] = open_dataset(
            *(_one_or_all(some), _one_or_all(splits[name])),
            edition=_one_or_all(numbers),
        )
    conditions = [] if order.select is None else order.select.split(";")
    if "" in opened and conditions:
        conditions = [f"={order.select}"]
    for condition in conditions:
        name, _, own = map(str.strip, condition.partition("="))
        refuse(
            name not in opened,
            "--select names no dataset of the mixture",
            expected=f"'NAME=CONDITION; ...' with one of {', '.join(opened)}",
            got=order.select,
            cure="give the names of the datasets",
        )
        opened[name] = opened[name].select(own)
    return opened


def _one_or_all(some: list[Any]) -> Any:
    return some if len(some) > 1 else next(iter(some), None)


def _check_commas(name: str, paths: Sequence[str]) -> None:
    """Raises InputError for paths that commas join: arguments join them."""

    def is_there(path: str) -> bool:
        return "://" in path or os.path.exists(path)

    prefix = f"{name}=" if name else ""
    for path in paths:
        parts = path.split(",")
        refuse(
            len(parts) > 1 and not os.path.exists(path) and all(map(is_there, parts)),
            "datasets are joined with commas",
            expected="an argument for each path",
            got=prefix + path,
            cure=f"give {' '.join(prefix + part for part in parts)}",
        )


def _of_datasets(
    text: str | None, option: str, paths: Mapping[str, list[str]]
) -> dict[str, list[str]]:
    """Returns the values of an option for each dataset.

    Values without a name apply to datasets without values of their own.
    """
    found = _by_name(text, option, "VALUE, or NAME=VALUE, with commas between")
    every = dict.fromkeys(paths, found.pop("", []))
    refuse(
        found.keys() - paths.keys(),
        f"{option} names no dataset of the mixture",
        expected=f"NAME=VALUE with one of {', '.join(paths)}"
        if "" not in paths
        else "values without names: there is one dataset",
        got=text,
        cure="give the names that the datasets have",
    )
    return every | found


def _edition_number(text: str) -> int | None:
    """Returns the number of an edition, None for the last."""
    number = whole_number(text)
    refuse(
        text != "last" and not number,
        "not an edition",
        expected="a number from 1 on, or last",
        got=text,
        cure="give the number that `gristmill inspect` shows",
    )
    return number


def opened_batches(order: Any) -> Batches:
    """Returns the batches that the options of a command describe.

    It prints their order, since another order has other records.

    Args:
        order: The values of `ORDER`, as attributes.

    Raises:
        InputError: The options contradict each other, or there are no such batches.
    """
    from gristmill.loader import BlockShuffle, global_batches
    from gristmill.loader.data.batches import order_text
    from gristmill.loader.feed.state import batches_of_state

    given = order_given()
    refuse(
        order.state is not None and given,
        "--state and options of the order exclude each other",
        got=", ".join(given),
        cure="leave out these options, or --state",
    )
    for name in {"--weights", "--token-weights"}.intersection(given):
        check_mixture(order.dataset, name)
    opened = opened_of(order)
    datasets = opened.get("", opened)
    if order.state is not None:
        return batches_of_state(datasets, read_state(order.state))
    refuse(
        order.batch_size is None,
        "the batch size is missing",
        cure="give --batch-size, or --state",
    )
    sizes = {name: getattr(order, name) for name in ("block_records", "window_blocks")}
    blocks = {key: size for key, size in sizes.items() if size is not None}
    refuse(
        blocks and order.shuffle != "block",
        "--block-records and --window-blocks are for --shuffle block",
        got=order.shuffle,
        cure="give --shuffle block, or leave them out",
    )
    batches = global_batches(
        datasets,
        batch_size=order.batch_size,
        seed=order.seed,
        epochs=order.epochs,
        shuffle=BlockShuffle(**blocks) if blocks else order.shuffle,
        drop_remainder=not order.keep_remainder,
        weights=_weights(opened, order),
    )
    note(f"the order of these options: {order_text(batches)}")
    packed = any(one.stored.packed is not None for one in batches.datasets)
    if order.weights is not None and packed:
        note("--weights are shares of rows; --token-weights takes shares of tokens")
    return batches


def _weights(datasets: Mapping[str, Dataset], order: Any) -> Any:
    """Returns the shares of rows from the options of a mixture."""
    from gristmill.loader import token_weights

    refuse(
        order.weights is not None and order.token_weights is not None,
        "--weights and --token-weights exclude each other",
        cure="give --weights for shares of rows, --token-weights for shares of tokens",
    )
    refuse(
        order.tokens_per_row is not None and order.token_weights is None,
        "--tokens-per-row is for --token-weights",
        cure="leave it out, or give --token-weights",
    )
    shares = _each(order.weights, "--weights", _SHARES)
    if order.token_weights is None:
        return shares or None
    option, expected = "--tokens-per-row", "N, or NAME=N,..."
    rows = _each(order.tokens_per_row, option, expected)
    sizes: dict[str, Any] = {name: whole_number(size) for name, size in rows.items()}
    refuse_value(None in sizes.values(), option, order.tokens_per_row, expected)
    return token_weights(
        datasets,
        _each(order.token_weights, "--token-weights", _SHARES),
        tokens_per_row=sizes[""] if sizes.keys() == {""} else sizes or None,
    )


def _each(text: str | None, option: str, expected: str) -> dict[str, str]:
    """Returns the only value of each name."""
    found = _by_name(text, option, expected)
    wrong = any(len(values) > 1 for values in found.values())
    refuse_value(wrong, option, text, expected)
    return {name: value for name, (value,) in found.items()}


def read_state(path: str) -> Any:
    """Returns the state of a feed from a JSON file.

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
