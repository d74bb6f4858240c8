"""The datasets of a run, and the batches that the options of a command mean."""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
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

if TYPE_CHECKING:
    from gristmill.loader import Dataset
    from gristmill.loader.data.batches import Batches
    from gristmill.loader.order.mixture import Weight


LAST = "last"
"""Of `--edition`, the last one that there is."""

_MOST_NUMBERS = 1000


def mixture_of(given: Sequence[str]) -> dict[str, list[str]] | None:
    """Returns the paths of each dataset of a mixture by its name.

    What is there as it was given is a path, also one with `=` in it. Paths of one name
    are joined.

    Returns:
        None for paths without names.

    Raises:
        InputError: Some have a name, and others have none.
    """
    from gristmill.dataset.base.errors import InputError

    named: dict[str, list[str]] = {}
    for item in filter(_is_named, given):
        name, _, path = item.partition("=")
        named.setdefault(name, []).append(path)
    if named and sum(map(len, named.values())) < len(given):
        raise InputError(
            "datasets of a mixture need names",
            expected="NAME=PATH for each; paths of the same NAME are joined",
            got=" ".join(given),
            cure="give each path as NAME=PATH",
        )
    return named or None


def _is_named(item: str) -> bool:
    name, equals, _ = item.partition("=")
    return bool(name and equals and "://" not in name and not glob.glob(item))


def check_mixture(dataset: Sequence[str], option: str) -> None:
    """Raises InputError for an option of a mixture, where there is one dataset."""
    from gristmill.dataset.base.errors import InputError

    if mixture_of(dataset) is None:
        raise InputError(
            f"{option} is for a mixture",
            got=f"one dataset, {' '.join(dataset)}",
            cure=f"leave out {option}, or give NAME=PATH for each dataset",
        )


def by_name(text: str, option: str) -> dict[str, list[str]]:
    """Returns the values of an option by the names before them; "" for those without.

    >>> by_name("web=3,books=1,books=2", "--weights")
    {'web': ['3'], 'books': ['1', '2']}
    >>> by_name("train,test", "--split")
    {'': ['train', 'test']}

    Raises:
        InputError: A value, or a name, is empty.
    """
    from gristmill.dataset.base.errors import InputError

    found: dict[str, list[str]] = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if not equals:
            name, value = "", item
        if not value or (equals and not name):
            raise InputError(
                f"{option} has an empty part",
                got=text,
                cure="give values, or NAME=VALUE, with commas between them",
            )
        found.setdefault(name, []).append(value)
    return found


def numbers_by_name(text: str | None, option: str) -> dict[str, list[int]]:
    """Returns the numbers that an option lists, by the names before them.

    >>> numbers_by_name("3,7:9", "--records")
    {'': [3, 7, 8]}

    Raises:
        InputError: A part is not a number or range, or there are over 1,000.
    """
    from gristmill.dataset.base.errors import InputError

    found: dict[str, list[int]] = {}
    for name, values in by_name(text, option).items() if text is not None else ():
        for value in values:
            ends = [whole_number(end) for end in value.split(":")]
            first, last = ends[0], ends[-1]
            stop = None if last is None or len(ends) > 2 else last + (len(ends) == 1)
            if first is None or stop is None or first >= stop:
                raise InputError(
                    f"{option} is not a list of numbers",
                    expected="N, or A:B from A to before B, with commas between",
                    got=text,
                    cure="give such numbers",
                )
            some = itertools.islice(range(first, stop), _MOST_NUMBERS + 1)
            found.setdefault(name, []).extend(some)
    if sum(map(len, found.values())) > _MOST_NUMBERS:
        raise InputError(
            f"{option} lists too many at once",
            expected=f"at most {_MOST_NUMBERS:,}",
            got=text,
            cure="give fewer",
        )
    return found


def shares_of(text: str, option: str) -> dict[str, str]:
    """Returns one value for each name, as weights of a mixture are.

    Raises:
        InputError: A value has no name, or a name has several.
    """
    from gristmill.dataset.base.errors import InputError

    found = by_name(text, option)
    if "" in found or any(len(values) > 1 for values in found.values()):
        raise InputError(
            f"{option} needs one value for each dataset of the mixture",
            expected="NAME=SHARE,...",
            got=text,
            cure="give each name once, such as web=3,books=1",
        )
    return {name: values[0] for name, values in found.items()}


def opened_datasets(
    given: Sequence[str], split: str | None, edition: str | None
) -> Dataset | dict[str, Dataset]:
    """Opens a path, the paths of a mixture by their names, or paths that are joined.

    Raises:
        InputError: The arguments do not go together, or there is no such dataset.
    """
    named = mixture_of(given)
    paths = {"": list(given)} if named is None else named
    for name, some in paths.items():
        _check_commas(name, some)
    splits = _of_datasets(split, "--split", paths)
    editions = _of_datasets(edition, "--edition", paths, each=False)
    opened = {
        name: _opened(some, splits.get(name, []), editions.get(name, []))
        for name, some in paths.items()
    }
    return opened[""] if named is None else opened


def _check_commas(name: str, paths: Sequence[str]) -> None:
    """Raises InputError for paths that commas join: arguments join them."""
    from gristmill.dataset.base.errors import InputError

    for path in paths:
        parts = path.split(",")
        if len(parts) < 2 or glob.glob(glob.escape(path)):
            continue
        if all("://" in part or glob.glob(glob.escape(part)) for part in parts):
            prefix = f"{name}=" if name else ""
            raise InputError(
                "datasets are joined with commas",
                expected="an argument for each path",
                got=prefix + path,
                cure=f"give {' '.join(prefix + part for part in parts)}",
            )


def _of_datasets(
    text: str | None, option: str, paths: Mapping[str, list[str]], *, each: bool = True
) -> dict[str, list[str]]:
    """Returns the values of an option for each dataset.

    With `each`, values without a name are for each dataset that has none of its own.
    """
    from gristmill.dataset.base.errors import InputError

    found = {} if text is None else by_name(text, option)
    unnamed = found.pop("", None)
    wrong = found.keys() - paths.keys()
    if wrong or (unnamed and not each and len(paths) > 1):
        names = [name for name in paths if name]
        raise InputError(
            f"{option} names no dataset of the mixture"
            if names
            else f"{option} has names, and the datasets have none",
            expected=f"NAME=VALUE with one of {', '.join(names)}" if names else None,
            got=text,
            cure="give the names of the datasets"
            if names
            else "leave the names out, or give the datasets as NAME=PATH",
        )
    return dict.fromkeys(paths, unnamed or []) | found


def _opened(paths: list[str], splits: list[str], editions: list[str]) -> Dataset:
    """Opens the paths, or splits of one, that are a dataset."""
    from gristmill.loader import open as open_dataset

    numbers = [_edition_number(text) for text in editions]
    return open_dataset(
        paths if len(paths) > 1 else paths[0],
        splits if len(splits) > 1 else next(iter(splits), None),
        edition=numbers if len(numbers) > 1 else next(iter(numbers), None),
    )


def _edition_number(text: str) -> int | None:
    """Returns an edition that was given, None for the last."""
    from gristmill.dataset.base.errors import InputError

    number = None if text == LAST else whole_number(text)
    if text != LAST and not number:
        raise InputError(
            "not an edition",
            expected=f"a number from 1 on, or {LAST}",
            got=text,
            cure="give the number that `gristmill inspect` shows",
        )
    return number


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
