"""The files of the splits of a Hugging Face repository: pure functions.

These are the rules of the package `datasets`: what `configs` in the README says, else
names of files and folders.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gristmill.dataset.base.errors import InputError, MissingPackageError, some_of
from gristmill.dataset.formats.file_names import parse_file_name

_FRONT = re.compile(r"---\s*\n(.*?)\n---\s*(?:\n|$)", re.DOTALL)
# data/train-00000-of-00005.parquet, also with a hash or the name of the dataset.
_SHARD = re.compile(r"(?:.*[-/])?([\w.]+)-(\d{5,})-of-(\d{5,})(?:-\w+)?\.parquet")
_SPLIT_WORDS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
_DATA = "data"  # The usual folder of all files.


class Shard(NamedTuple):
    """What the name of one of several files of a split says.

    Attributes:
        split: The split.
        number: Number of the file.
        files: How many files the split has.
    """

    split: str
    number: int
    files: int


def shard_of(name: str) -> Shard | None:
    """Returns the parts of a file name, None if it is not one of several.

    >>> shard_of("data/train-00002-of-00005-8a2c.parquet")
    Shard(split='train', number=2, files=5)
    """
    match = _SHARD.fullmatch(name)
    return match and Shard(match[1], int(match[2]), int(match[3]))


def split_of(name: str) -> str | None:
    """Returns the split of a file, None if its name does not tell.

    >>> [split_of(f"{name}.parquet") for name in ("en/dev", "test/0000", "part-0")]
    ['validation', 'test', None]
    """
    shard = shard_of(name)
    if shard is not None:
        return shard.split
    word = parse_file_name(name).split
    folders = name.split("/")[:-1]
    words = [word] if word else [folder for folder in folders if folder in _SPLIT_WORDS]
    return _SPLIT_WORDS.get(words[0], words[0]) if words else None


def configuration_of(name: str) -> str:
    """Returns the folder of the configuration that a file is of, "" for none.

    >>> [configuration_of(name) for name in ("data/a.parquet", "en/train/a.parquet")]
    ['', 'en']
    """
    folders = name.split("/")[:-1]
    for depth, folder in enumerate(folders):
        if folder not in _SPLIT_WORDS and not (depth == 0 and folder == _DATA):
            return "/".join(folders[: depth + 1])
    return ""


def splits_by_names(names: Iterable[str]) -> dict[str, list[str]]:
    """Returns the files of each split, by the names of files.

    Raises:
        InputError: Of some files the split is not known, or files are missing.
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
    for split, files in known.items():
        _check_whole(split, files)
    return known


def _check_whole(split: str, names: Sequence[str]) -> None:
    """Raises InputError if files of a split are missing, by their numbers."""
    shards = [shard for shard in map(shard_of, names) if shard is not None]
    counts = {shard.files for shard in shards}
    if len(shards) < len(names) or len(counts) != 1:
        return
    (count,) = counts
    missing = sorted(set(range(count)) - {shard.number for shard in shards})
    if missing:
        raise InputError(
            f"files of split {split} are missing",
            where=names[0],
            expected=f"{count:,} files",
            got=f"{len(names):,}, without number {some_of(missing)}",
            cure="download the repository again",
        )


def configurations(readme: str, *, where: str) -> dict[str, dict[str, list[str]]]:
    """Returns the content of a README: for each configuration, its splits' patterns.

    Args:
        readme: Its text.
        where: Its path, for messages.

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
            str(config["config_name"]): _patterns(config)
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


def _patterns(config: Mapping[str, Any]) -> dict[str, list[str]]:
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
