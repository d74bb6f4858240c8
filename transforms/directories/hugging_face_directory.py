"""Hugging Face repositories as input: each split gets a job.

A repository that was downloaded holds files of one format, named after their splits,
and a README that may say which files are of which split.

Source: "Structure your repository", the documentation of the Hugging Face Hub.
"""

from __future__ import annotations

import glob
import re
import shlex
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gristmill.dataset.base.errors import InputError, MissingPackageError, some_of
from gristmill.dataset.formats.file_formats import parse_file_name
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import chosen_split
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import compile_pattern, has_magic
from gristmill.transforms.sources.find_inputs import (
    check_no_table,
    check_sets,
    is_document,
)

_FRONT = re.compile(r"\ufeff?\s*---\s*\n(.*?)\n---\s*(?:\n|$)", re.DOTALL)
# data/train-00000-of-00005.parquet, also with a hash or the name of the dataset.
_SHARD = re.compile(r"(?:.*[-/])?([\w.]+)-\d{5,}-of-\d{5,}(?:-\w+)?\.\w+(?:\.\w+)?")
_SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_DATA = "data"  # The usual folder of all files.


def split_of(name: str) -> str | None:
    """Returns the split of a file, None if its name does not tell.

    >>> [split_of(f"{name}.parquet") for name in ("en/dev", "test/0000", "part-0")]
    ['validation', 'test', None]
    """
    if shard := _SHARD.fullmatch(name):
        return shard[1]
    word = parse_file_name(name).split
    folders = name.split("/")[:-1]
    words = [word] if word else list(filter(_SPLIT_WORDS.get, map(_whole, folders)))
    return _SPLIT_WORDS.get(words[0], words[0]) if words else None


def _whole(folder: str) -> str:
    """Returns the split of a folder: of large ones, the Hub converts the first part.

    >>> _whole("partial-train")
    'train'
    """
    return folder.removeprefix("partial-")


def configuration_of(name: str) -> str:
    """Returns the folder of the configuration that a file is of, "" for none.

    >>> [configuration_of(name) for name in ("data/a.parquet", "en/train/a.parquet")]
    ['', 'en']
    """
    folders = name.split("/")[:-1]
    for depth, folder in enumerate(folders):
        of_split = _whole(folder) in _SPLIT_WORDS
        if not of_split and not (depth == 0 and folder == _DATA):
            return "/".join(folders[: depth + 1])
    return ""


def splits_by_names(names: Iterable[str]) -> dict[str, list[str]]:
    """Returns the files of each split, by the names of files.

    Raises:
        InputError: The split of some files is unknown, or files are missing.
    """
    splits: dict[str | None, list[str]] = {}
    for name in sorted(names):
        splits.setdefault(split_of(name), []).append(name)
    unknown = splits.pop(None, [])
    if not splits:
        return {"train": unknown}
    if unknown:
        raise InputError(
            "some files are of no split, by their names",
            where=some_of(unknown),
            expected=f"files of {', '.join(map(str, splits))}",
            got=f"{len(unknown):,} other files",
            cure="move them elsewhere, or name the files of each split by a pattern, "
            "and the split with --split",
        )
    known = {str(split): files for split, files in splits.items()}
    for files in known.values():
        check_sets(["**"], files)
    return known


def configurations(readme: str, *, where: str) -> dict[str, dict[str, list[str]]]:
    """Returns the content of a README: for each configuration, its splits' patterns.

    Returns:
        Empty if it says nothing of files.

    Raises:
        InputError: It says something that cannot be understood.
        MissingPackageError: PyYAML is not installed.
    """
    front = _FRONT.match(readme)
    if front is None or not re.search(r"^configs:", front[1], re.MULTILINE):
        return {}
    try:
        import yaml
    except ModuleNotFoundError as e:
        raise MissingPackageError.of(e) or e from e
    try:
        configs = yaml.safe_load(front[1])["configs"]
        return {
            str(config["config_name"]): _config_patterns(config)
            for config in configs or ()
            if config.get("data_files")
        }
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, ValueError) as e:
        raise InputError(
            "the README of the Hugging Face repository cannot be understood",
            where=where,
            expected="configs, each with config_name and data_files",
            got=(str(e).splitlines() or [type(e).__name__])[0],
            cure="name the files of each split by a pattern, and the split with "
            "--split",
        ) from e


def _config_patterns(config: Mapping[str, Any]) -> dict[str, list[str]]:
    files = config["data_files"]
    if isinstance(files, str):
        files = [files]
    if isinstance(files, Mapping):
        files = [{"split": split, "path": path} for split, path in files.items()]
    splits: dict[str, list[str]] = {}
    folder = f"{config['data_dir'].strip('/')}/" if config.get("data_dir") else ""
    for entry in files:
        given = {"split": "train", "path": entry} if isinstance(entry, str) else entry
        paths = [given["path"]] if isinstance(given["path"], str) else given["path"]
        for path in paths:
            if "://" in path or path.startswith("/") or ".." in path.split("/"):
                raise ValueError(f"a file outside the repository: {path}")
            splits.setdefault(str(given["split"]), []).append(
                folder + path.removeprefix("./")
            )
    return splits


_README = "readme.md"
_PARQUET = ".parquet"
_DATA_FILE = re.compile(
    r"(\.parquet|(\.jsonl|\.json|\.csv|\.tsv|\.txt)(?:\.gz|\.zst)?)$", re.IGNORECASE
)
_OF_HUB = {"dataset_infos.json", ".gitattributes"}
# Of other datasets: of gristmill, of TFDS, and Arrow files of the package datasets.
_OTHERS = {layout.DATASET_JSON, "features.json", "dataset_dict.json", "state.json"}


def is_repository(path: str) -> bool:
    """Returns whether a path is a directory of splits, or has a README of them.

    Without any sign of the Hub, files of Parquet alone make a directory one.
    """
    storage = storage_for(path)
    if has_magic(path) or storage.stat(path) is not None:
        return False
    there = {layout.base_name(info.path) for info in storage.list(path.rstrip("/"))}
    if there & _OTHERS:
        return False
    readme = any(name.lower() == _README for name in there)
    if readme and _configurations(path):
        return True
    shown = [name for name in there if not name.startswith((".", "_"))]
    if any(_SHARD.fullmatch(name) for name in shown if name.endswith(_PARQUET)):
        check_no_table(path)
        return True
    # Of a directory with other files nothing below is looked at.
    described = bool(there & _OF_HUB) or readme
    if not (described or not shown):
        return False
    found = _data_files(path)
    if not described:
        found = [name for name in found if name.endswith(_PARQUET)]
    if found:
        check_no_table(path)
    return bool(found)


def repository_inputs(
    directory: str, *, splits: Sequence[str] | None = None
) -> dict[str, tuple[str, ...]]:
    """Returns the patterns of the files of each split of a repository.

    Raises:
        InputError: There are several configurations, or files or splits are missing.
    """
    directory = directory.rstrip("/") or "/"
    found = _splits(directory)
    for asked in splits or ():
        chosen_split(asked, found, directory)
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
    names = _data_files(directory)
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
    pattern = layout.join(directory, *["*"] * depth, f"*{_ending(names[0])}")
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
    storage = storage_for(directory)
    there = [info.path for info in storage.list(directory.rstrip("/") or "/")]
    found = [one for one in there if layout.base_name(one).lower() == _README]
    content = storage.load(found[0]) if found else None
    if content is None:
        return {}
    path = found[0]
    return configurations(content.data.decode("utf-8", "replace"), where=path)


def _data_files(directory: str) -> list[str]:
    """Returns the names of the files of data in a directory and below it.

    Those of Parquet if there are any; documents and lists are none then.

    Raises:
        InputError: They are of several other formats.
    """
    prefix = layout.join(directory.rstrip("/"), "")
    names = (
        info.path.removeprefix(prefix)
        for info in storage_for(directory).scan(directory.rstrip("/"), deep=True)
    )
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        hidden = any(part.startswith((".", "_")) for part in name.split("/"))
        match = _DATA_FILE.search(name)
        if hidden or match is None or is_document(name) or name in _OF_HUB | _OTHERS:
            continue
        found[(match[2] or match[1]).lower()].append(name)
    if _PARQUET in found:
        return found[_PARQUET]
    if len(found) > 1:
        shown = (f"{some[0]} ({len(some):,} *{end})" for end, some in found.items())
        raise InputError(
            "the Hugging Face repository has files of several formats",
            where=directory,
            expected="files of one format",
            got=some_of(shown),
            cure="name the files of each split by a pattern, and the split with "
            "--split",
        )
    return [name for names in found.values() for name in names]


def _ending(name: str) -> str:
    match = _DATA_FILE.search(name)
    return match[0] if match else ""


def _patterns(files: Sequence[str], names: Collection[str]) -> list[str]:
    """Returns one pattern that matches these files alone, or else their names."""
    first = files[0]
    number = re.search(r"\d{5,}-of-", first)
    begin = first[: number.start()] if number else first[: first.rfind("/") + 1]
    pattern = f"{glob.escape(begin)}*{_ending(first)}"
    matches = compile_pattern(pattern).fullmatch
    if [name for name in names if matches(name)] == list(files):
        return [pattern]
    return [glob.escape(name) for name in files]
