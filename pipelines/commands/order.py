"""The options that say what was trained on, in which order, and the batches of that."""

from __future__ import annotations

import functools
import glob
import json
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gristmill.pipelines.commands.errors import at_least

if TYPE_CHECKING:
    from gristmill.loader import Dataset
    from gristmill.loader.batches import Batches
    from gristmill.loader.order import ShuffleName

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--split",
        metavar="NAME",
        show_default="the only one",
        help="Split to read; A,B joins two.",
    ),
    click.option(
        "--edition",
        type=at_least(1),
        metavar="N",
        show_default="the last, or the state's",
        help="Edition of the split that was open, counted from 1.",
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
        help="Weights of the datasets of a mixture, such as web=3,books=1.",
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
    edition: int | None,
    state: str | None,
    **order: Any,
) -> Batches:
    """Returns the batches that the options of a command mean.

    Raises:
        InputError: They do not go together, or there are no such batches.
    """
    from gristmill.dataset.errors import InputError

    given = order_given(ctx, order)
    if state is not None and given:
        raise InputError(
            "--state and options of the order exclude each other",
            got=", ".join(given),
            cure="leave out these options, or --state",
        )
    if order["weights"] is not None:
        check_mixture(dataset, "--weights")
    datasets = opened_datasets(dataset, split, edition)
    if state is None:
        return _batches(datasets, **order)
    return _batches_of_state(datasets, state)


def order_given(ctx: click.Context, order: Iterable[str]) -> list[str]:
    """Returns those options of the order, by their names, that a command was given."""
    return [
        f"--{key.replace('_', '-')}"
        for key in order
        if ctx.get_parameter_source(key) is not click.core.ParameterSource.DEFAULT
    ]


def check_mixture(dataset: tuple[str, ...], option: str) -> None:
    """Raises InputError for an option of a mixture, where there is one dataset."""
    from gristmill.dataset.errors import InputError

    if mixture_of(dataset) is None:
        raise InputError(
            f"{option} is for a mixture",
            got=f"one dataset, {' '.join(dataset)}",
            cure=f"leave out {option}, or give NAME=PATH for each dataset",
        )


def mixture_of(given: Sequence[str]) -> dict[str, str] | None:
    """Returns the paths of a mixture by their names, None for paths without names.

    What is there as it was given is a path, also one with `=` in it.

    Raises:
        InputError: Two datasets have the same name, or some have none.
    """
    from gristmill.dataset.errors import InputError

    named = dict(item.split("=", 1) for item in given if _is_named(item))
    if named and len(named) < len(given):
        raise InputError(
            "datasets of a mixture need different names",
            expected="NAME=PATH for each",
            got=" ".join(given),
            cure="give each dataset as NAME=PATH, with another NAME",
        )
    return named or None


def _is_named(item: str) -> bool:
    name, equals, _ = item.partition("=")
    return bool(name and equals and "://" not in name and not glob.glob(item))


def opened_datasets(
    given: tuple[str, ...], split: str | None, edition: int | None
) -> Dataset | dict[str, Dataset]:
    """Opens a path, the paths of a mixture by their names, or paths that are joined.

    Raises:
        InputError: The arguments do not go together, or there is no such dataset.
    """
    from gristmill.dataset.errors import InputError
    from gristmill.loader import open as open_dataset

    if edition is not None and len(given) > 1:
        raise InputError(
            "--edition is for a single dataset",
            got=" ".join(given),
            cure="give --state, which has the edition of each",
        )
    splits = split.split(",") if split is not None and "," in split else split
    if (named := mixture_of(given)) is not None:
        return {
            name: open_dataset(path, split=split, edition=edition)
            for name, path in named.items()
        }
    if len(given) == 1:
        return open_dataset(given[0], split=splits, edition=edition)
    return open_dataset(given, split=splits)


def _batches(
    datasets: Dataset | dict[str, Dataset],
    *,
    batch_size: int | None,
    shuffle: ShuffleName,
    block_records: int | None,
    window_blocks: int | None,
    keep_remainder: bool,
    weights: str | None,
    **order: Any,
) -> Batches:
    from gristmill.dataset.errors import InputError
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
    shares = None
    if weights is not None:
        shares = dict(part.partition("=")[::2] for part in weights.split(","))
    return global_batches(
        datasets,
        batch_size=batch_size,
        shuffle=BlockShuffle(**blocks) if blocks else shuffle,
        drop_remainder=not keep_remainder,
        weights=shares,
        **order,
    )


def _batches_of_state(datasets: Dataset | dict[str, Dataset], path: str) -> Batches:
    """Returns the batches of the feed that wrote a state."""
    from gristmill.loader.feed.state import batches_of_state

    return batches_of_state(datasets, read_state(path))


def read_state(path: str) -> Any:
    """Returns the state of a feed that a file has as JSON.

    Raises:
        InputError: It cannot be read.
    """
    from gristmill.dataset.errors import InputError
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
