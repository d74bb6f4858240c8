"""Hugging Face repositories as input: each split gets a job.

A repository that was downloaded holds Parquet files, named after their splits, and a
README that may say which files are of which split.
"""

from __future__ import annotations

import glob
import re
import shlex
from collections.abc import Collection, Mapping, Sequence

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import compile_pattern, has_magic
from gristmill.transforms.directories.repository_splits import (
    configuration_of,
    configurations,
    shard_of,
    splits_by_names,
)

_README = "README.md"
_PARQUET = ".parquet"
_OF_HUB = {"dataset_infos.json", ".gitattributes"}
# Of other datasets: of gristmill, of TFDS, and Arrow files of the package datasets.
_OTHERS = {layout.DATASET_JSON, "features.json", "dataset_dict.json", "state.json"}


def is_repository(path: str) -> bool:
    """Returns whether a path is a directory with splits in Parquet, or their README."""
    storage = storage_for(path)
    if has_magic(path) or storage.stat(path) is not None:
        return False
    there = {layout.base_name(info.path) for info in storage.list(path.rstrip("/"))}
    if there & _OTHERS:
        return False
    if _README in there and _configurations(path):
        return True
    shown = [name for name in there if not name.startswith((".", "_"))]
    if any(shard_of(name) for name in shown):
        return True
    # Of a directory with other files nothing below is looked at.
    described = bool(there & _OF_HUB) or _README in there
    return (described or not shown) and bool(_parquet_files(path))


def repository_inputs(
    directory: str, *, splits: Sequence[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Returns the patterns of the files of each split of a repository.

    Args:
        directory: The directory of the repository.
        splits: Which splits; by default all.

    Raises:
        InputError: There are several configurations, or files or splits are missing.
    """
    directory = directory.rstrip("/") or "/"
    found = _splits(directory)
    for asked in splits or ():
        if asked not in found:
            raise InputError(
                "the Hugging Face repository has no such split",
                where=directory,
                expected=f"one of {some_of(found, 20)}",
                got=asked,
                cure="choose one of these with --split, or leave it out to convert all",
            )
    return {
        split: tuple(layout.join(glob.escape(directory), p) for p in patterns)
        for split, patterns in found.items()
        if splits is None or split in splits
    }


def _splits(directory: str) -> Mapping[str, Sequence[str]]:
    """Returns the patterns of each split, relative to the directory."""
    described = _configurations(directory)
    if described:
        _check_one(directory, described)
        (splits,) = described.values()
        return splits
    names = _parquet_files(directory)
    folders: dict[str, dict[str, list[str]]] = {}
    for name in names:
        folders.setdefault(configuration_of(name), {})
    if len(folders) > 1:
        folders.pop("", None)
        if all("=" in folder for folder in folders):
            raise _partitions(directory, names)
        _check_one(directory, {folder: {"": [folder]} for folder in folders})
    return {
        split: _patterns(files, names)
        for split, files in splits_by_names(names).items()
    }


def _partitions(directory: str, names: Sequence[str]) -> InputError:
    """Returns the error for a table whose folders are named by values of a column."""
    depth = max(name.count("/") for name in names)
    pattern = layout.join(directory, *["*"] * depth, f"*{_PARQUET}")
    return InputError(
        "the directory holds a table in partitions",
        where=directory,
        expected="files directly in it, or a pattern",
        got=f"folders that are named by values, such as {names[0]}",
        cure=f"convert all of them by a pattern: gristmill convert "
        f"{shlex.quote(pattern)} OUTPUT; what stands in the names of folders alone is "
        "in no record",
    )


def _check_one(
    directory: str, described: Mapping[str, Mapping[str, Sequence[str]]]
) -> None:
    """Raises InputError, with commands to give, if there are several configurations."""
    if len(described) == 1:
        return
    commands = []
    for configuration, splits in described.items():
        for split, patterns in splits.items():
            inputs = " ".join(shlex.quote(layout.join(directory, p)) for p in patterns)
            named = f" --split {split}" if split else ""
            output = shlex.quote(layout.base_name(configuration))
            commands.append(f"gristmill convert {inputs} {output}{named}")
    raise InputError(
        "the Hugging Face repository has several configurations",
        where=directory,
        expected="one configuration, whose splits become those of the dataset",
        got=some_of(described, 10),
        cure="convert each into a dataset of its own:\n" + "\n".join(commands[:20]),
    )


def _configurations(directory: str) -> dict[str, dict[str, list[str]]]:
    path = layout.join(directory, _README)
    content = storage_for(path).load(path)
    if content is None:
        return {}
    return configurations(content.data.decode("utf-8", "replace"), where=path)


def _parquet_files(directory: str) -> list[str]:
    """Returns the names of Parquet files in a directory and below it."""
    prefix = layout.join(directory.rstrip("/"), "")
    names = (
        info.path.removeprefix(prefix)
        for info in storage_for(directory).scan(directory.rstrip("/"), deep=True)
    )
    return sorted(
        name
        for name in names
        if name.endswith(_PARQUET)
        and not any(part.startswith((".", "_")) for part in name.split("/"))
    )


def _patterns(files: Sequence[str], names: Collection[str]) -> list[str]:
    """Returns one pattern that matches these files alone, or else their names."""
    first = files[0]
    number = re.search(r"\d{5,}-of-", first)
    begin = first[: number.start()] if number else first[: first.rfind("/") + 1]
    pattern = f"{glob.escape(begin)}*{_PARQUET}"
    matches = compile_pattern(pattern).fullmatch
    if [name for name in names if matches(name)] == list(files):
        return [pattern]
    return [glob.escape(name) for name in files]
