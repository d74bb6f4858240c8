"""Opens what MaxText's settings name: a dataset, files, or a mixture of several."""

from __future__ import annotations

import functools
import itertools
import json
import os
import posixpath
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeAlias

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata.manifest import read_manifest
from gristmill.dataset.storage.paths import has_magic
from gristmill.loader.maxtext.settings import Options, Side


class Source(NamedTuple):
    """A dataset or files that MaxText's settings name.

    Attributes:
        name: Its name in a mixture; "" of a single dataset.
        path: The path, as it was given.
        weight: Its share in a mixture, as it was given.
        dataset: The opened dataset.
    """

    name: str
    path: str
    weight: str | float
    dataset: loader.Dataset


Sources: TypeAlias = tuple[Source, ...]


def are_packed(sources: Sources) -> bool:
    """Returns whether datasets hold packed rows.

    Raises:
        InputError: Some do, and others do not.
    """
    others = [part.path for part in sources if not part.dataset.stored.is_packed]
    if others and len(others) < len(sources):
        raise InputError(
            "a mixture of packed rows and other records",
            where=others[0],
            expected="packed rows, as in the other datasets",
            cure="pack it by `gristmill pack`, or leave it out of the mixture",
        )
    return not others


def batches_of(
    sources: Sources, side: Side, options: Options, *, rows: int
) -> loader.GlobalBatches:
    """Returns their global batches of so many rows."""
    mixed = bool(sources[0].name)
    return loader.global_batches(
        {part.name: part.dataset for part in sources} if mixed else sources[0].dataset,
        batch_size=rows,
        seed=side.seed,
        shuffle=options.shuffle if side.shuffled else "none",
        epochs=side.epochs,
        drop_remainder=False,
        weights={part.name: part.weight for part in sources} if mixed else None,
    )


def open_sources(side: Side, options: Options) -> Sources:
    """Opens the data of a side: a single dataset, or those of a mixture.

    Raises:
        InputError: A mixture is not written as MaxText has it, a split is missing, or
            files of packed rows are named instead of their dataset.
        GristmillError: As `loader.open`.
    """
    given = _named(side)
    with ThreadPoolExecutor(max(1, min(side.openers, len(given)))) as threads:
        open_one = functools.partial(_open, side=side, options=options)
        datasets = list(threads.map(open_one, [path for _, path, _ in given]))
    found: dict[str, Source] = {}
    for (name, path, weight), dataset in zip(given, datasets, strict=True):
        if not name and len(given) > 1:
            # The name of its files; numbered if another source has the same.
            file = posixpath.basename(dataset.shard(0).path)
            name = first = file.partition(".array_record")[0]
            numbers = itertools.count(2)
            while name in found:
                name = f"{first}-{next(numbers)}"
        found[name] = Source(name, path, weight, dataset)
    return tuple(found.values())


def is_pattern(path: str) -> bool:
    """Returns whether a path is a pattern of files, or a single file."""
    return has_magic(path) or ".array_record" in posixpath.basename(path)


def _named(side: Side) -> list[tuple[str, str, str | float]]:
    """Returns names, which may be empty, paths and weights."""
    if side.mixture:
        with open(os.path.expanduser(side.mixture), encoding="utf-8") as file:
            return _of_json(file.read(), side.mixture)
    setting = f"grain_{side.name}_files"
    if not side.files:
        raise InputError(
            f"{setting} is empty", cure="give it the directory of a dataset"
        )
    if ";" not in side.files:
        return [("", side.files, 1)]
    found: list[tuple[str, str, str | float]] = []
    for part in side.files.split(";"):
        path, _, weight = part.rpartition(",")
        if not path:
            raise InputError(
                "a dataset of a mixture has no weight",
                where=setting,
                expected="PATH,WEIGHT;PATH,WEIGHT",
                got=part,
                cure="put a weight after each path",
            )
        found.append(("", path.strip(), weight.strip()))
    return found


def _of_json(text: str, where: str) -> list[tuple[str, str, str | float]]:
    try:
        given = json.loads(text)
    except ValueError:
        given = text
    named = isinstance(given, Mapping) and given
    entries = given.items() if named else [("", given)]
    found = []
    for name, entry in entries:
        if not isinstance(entry, Mapping) or not {"path", "weight"} <= entry.keys():
            raise InputError(
                "not a mixture as MaxText has it",
                where=where,
                expected='{"NAME": {"path": "...", "weight": 0.7}, ...}',
                got=f"{given!r:.200}",
                cure="correct the file",
            )
        found.append((str(name), str(entry["path"]), entry["weight"]))
    return found


def _open(path: str, side: Side, options: Options) -> loader.Dataset:
    plain = is_pattern(path)
    path = path if "://" in path else os.path.expanduser(path)
    if plain:
        _check_not_packed(path)
    try:
        return loader.open(
            path,
            split=None if plain else side.split,
            cache_dir=options.cache,
            cache_bytes=options.cache_bytes,
        )
    except InputError as e:
        if e.what != "no such split":
            raise
        cure = f"give one of these as {side.name}_split"
        raise InputError(**e.facts() | {"cure": cure}) from e


def _check_not_packed(pattern: str) -> None:
    """Raises InputError for files of packed rows, which do not say so."""
    directory = posixpath.dirname(pattern)
    manifest = None if is_pattern(directory) else read_manifest(directory)
    if manifest and any(split.packed for split in manifest.splits.values()):
        raise InputError(
            "files of packed rows are given by a pattern",
            where=pattern,
            expected="the dataset's directory, which says how rows are stored",
            cure=f"give {directory}",
        )
