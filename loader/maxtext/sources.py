"""Opens what MaxText's settings name: a dataset, files, or a mixture of several."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import posixpath
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata.manifest import read_manifest
from gristmill.dataset.storage.paths import has_magic
from gristmill.loader.maxtext.settings import Options, Side


@dataclasses.dataclass(frozen=True)
class Source:
    """What a path of MaxText's settings names.

    Attributes:
        path: The path, as it was given.
        weight: Its share in a mixture, as it was given; 1 of a single dataset.
        dataset: What is there.
    """

    path: str
    weight: str | float
    dataset: loader.Dataset


@dataclasses.dataclass(frozen=True)
class Sources:
    """What one of MaxText's iterators reads.

    Attributes:
        parts: The datasets; one unless this is a mixture.
        names: Their names in a mixture; none for a single dataset.
    """

    parts: tuple[Source, ...]
    names: tuple[str, ...] = ()

    @property
    def are_packed(self) -> bool:
        """Whether they hold packed rows.

        Raises:
            InputError: Some do, and others do not.
        """
        packed = [part.dataset.is_packed for part in self.parts]
        if any(packed) and not all(packed):
            raise InputError(
                "a mixture of packed rows and other records",
                where=self.parts[packed.index(False)].path,
                expected="packed rows, as in the other datasets",
                cure="pack it by `gristmill pack`, or leave it out of the mixture",
            )
        return all(packed)

    def batches(
        self, side: Side, options: Options, *, rows: int
    ) -> loader.GlobalBatches:
        """Returns their global batches of so many rows."""
        named = dict(zip(self.names, self.parts, strict=False))
        datasets = {name: part.dataset for name, part in named.items()}
        return loader.global_batches(
            datasets or self.parts[0].dataset,
            batch_size=rows,
            seed=side.seed,
            shuffle=options.shuffle if side.shuffled else "none",
            epochs=side.epochs,
            drop_remainder=False,
            weights={name: part.weight for name, part in named.items()} or None,
        )


def open_sources(side: Side, options: Options) -> Sources:
    """Opens the data of a side.

    Raises:
        InputError: A mixture is not written as MaxText has it, a split is missing, or
            files of packed rows are named instead of their dataset.
        GristmillError: As `loader.open`.
    """
    named = _named(side)
    with ThreadPoolExecutor(max(1, min(side.openers, len(named)))) as threads:
        open_one = functools.partial(_open, side=side, options=options)
        datasets = list(threads.map(open_one, [path for _, path, _ in named]))
    parts = tuple(
        Source(path, weight, dataset)
        for (_, path, weight), dataset in zip(named, datasets, strict=True)
    )
    names = [name for name, _, _ in named] if side.mixture else []
    for dataset in datasets if not side.mixture and len(parts) > 1 else ():
        # What its files are called, wherever they are; numbered where others are too.
        name = posixpath.basename(dataset.shard(0).path).partition(".array_record")[0]
        other, number = name, 2
        while other in names:
            other, number = f"{name}-{number}", number + 1
        names.append(other)
    return Sources(parts, tuple(names))


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
