"""The datasets of a run, as a command line names, joins and mixes them."""

from __future__ import annotations

import glob
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from gristmill.dataset.base.whole_numbers import whole_number

if TYPE_CHECKING:
    from gristmill.loader import Dataset

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


def usual_split(splits: Iterable[str]) -> str:
    """Returns the split to begin with: train, or the first one."""
    return min(splits, key=lambda name: (name != "train", name), default="train")


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
