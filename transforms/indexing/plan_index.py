"""Planning an index: which existing files become which splits of a dataset."""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from gristmill.dataset.commit.exchange import finish_exchange
from gristmill.dataset.commit.ownership import check_other_splits
from gristmill.dataset.errors import InputError, some_of
from gristmill.dataset.file_names import (
    FileName,
    JoinedFiles,
    listed,
    parse_file_name,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import read_manifest
from gristmill.dataset.metadata.match_shards import list_shard_files, match_shards
from gristmill.dataset.metadata.tfds_info import parse_info
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import path_texts
from gristmill.transforms.sources.input_formats import check_formats


class IndexTask(NamedTuple):
    """One file to index.

    Attributes:
        dataset: The directory.
        name: The dataset's name.
        split: The split that the file belongs to.
        shard: Its number in the split.
        file: Its name in the directory.
        file_bytes: Its size when it was listed.
    """

    dataset: str
    name: str
    split: str
    shard: int
    file: str
    file_bytes: int


def plan_index(
    patterns: Sequence[str],
    *,
    name: str | None = None,
    split: str | None = None,
    overwrite: bool = False,
) -> list[IndexTask]:
    """Sorts existing files into the splits of a dataset.

    Args:
        patterns: ArrayRecord files or glob patterns, all in one directory, or that
            directory.
        name: The dataset's name; by default from the file names as TFDS writes them,
            else that of the directory.
        split: The split of all files; by default from the file names, else `train`.
        overwrite: Whether to replace splits that are there.

    Raises:
        InputError: The files cannot make a dataset.
    """
    infos = _find_files(patterns)
    directory = _directory_of(infos)
    if finish_exchange(directory):
        return plan_index(patterns, name=name, split=split, overwrite=overwrite)
    files = [
        layout.check_shard(info.path.rpartition("/")[2], where=info.path)
        for info in infos
    ]
    check_formats(infos, wanted="ArrayRecord")
    names = _names_of(directory, files)
    if split is None:
        _check_not_joined(directory, files, names)
    tfds = {said.dataset for said in names if said.split_files and said.dataset}
    if name is None:
        if len(tfds) > 1:
            raise InputError(
                "the files are of several datasets",
                where=directory,
                got=some_of(sorted(tfds)),
                cure="index those of one dataset at a time, or give --name",
            )
        base = os.path.basename(os.path.abspath(directory)) or "dataset"
        whole = all(said.split_files for said in names)
        name = tfds.pop() if whole else base
    layout.check_name(name)
    if split is not None:
        layout.check_split(split)
    counts: Counter[str] = Counter()
    stated: dict[str, int] = {}
    tasks = []
    for info, file, said in zip(infos, files, names, strict=True):
        named = said.split if said.split_files else None
        own = layout.check_split(split or named or "train")
        shard = counts[own]
        tasks.append(IndexTask(directory, name, own, shard, file, info.size_bytes))
        counts[own] += 1
        if said.split_files and not split:
            stated[own] = said.split_files
    for own, count in stated.items():
        if counts[own] != count:
            raise InputError(
                "not all shards of the split are there",
                where=f"{directory}, split {own}",
                expected=f"{count:,} files, as their names say",
                got=f"{counts[own]:,}",
                cure="add the missing files, or give --split to take the files as "
                "they are",
            )
    manifest = read_manifest(directory)
    there = sorted(counts.keys() & manifest.splits.keys()) if manifest else []
    if there and not overwrite:
        raise InputError(
            "the directory is a dataset with this split already",
            where=f"{directory}, split {some_of(there)}",
            cure="look at it with gristmill inspect, or index again with --overwrite",
        )
    if manifest is not None:
        check_other_splits(
            directory, manifest, splits=counts, takes=set(files).__contains__
        )
    return tasks


def _find_files(patterns: Sequence[str]) -> list[FileInfo]:
    found: dict[str, FileInfo] = {}
    for pattern in path_texts(patterns, "input"):
        matches = match_shards(pattern) or list_shard_files(pattern)
        if not matches:
            raise InputError(
                "no ArrayRecord file matches",
                where=pattern,
                cure="check the path; quote a pattern with * so that it reaches "
                "gristmill as it is",
            )
        found.update((info.path, info) for info in matches)
    return [found[path] for path in sorted(found)]


def _directory_of(files: Sequence[FileInfo]) -> str:
    directories = {os.path.dirname(file.path) or "." for file in files}
    if len(directories) != 1:
        raise InputError(
            "the files are in several directories",
            where=some_of(sorted(directories)),
            expected="files of one directory, which becomes the dataset",
            cure="index each directory separately",
        )
    return directories.pop()


def _names_of(directory: str, files: Sequence[str]) -> list[FileName]:
    """Returns what the names of files say, or what TFDS's metadata says of them."""
    names = [parse_file_name(file) for file in files]
    place = layout.join(directory, layout.TFDS_INFO_JSON)
    if all(said.split_files for said in names) or not (
        found := storage_for(directory).load(place)
    ):
        return names
    # TFDS lets a dataset choose the names of its files.
    error = functools.partial(InputError, cure="give --split to put files into one")
    info, splits = parse_info(found.data, place, "array_record", error)
    described = {
        file: FileName(info["name"], split.name, len(split.files))
        for split in splits.values()
        for file in split.files
    }
    return [described.get(file, said) for file, said in zip(files, names, strict=True)]


def _check_not_joined(
    directory: str, files: Sequence[str], names: Sequence[FileName]
) -> None:
    """Raises InputError if files of other names would be joined in one split."""
    others = [
        file for file, said in zip(files, names, strict=True) if not said.split_files
    ]
    if others and len(others) < len(files):
        raise InputError(
            "some files belong to a dataset by their names, and others do not",
            where=directory,
            expected="NAME-SPLIT.array_record-00000-of-00010 for all files, or for "
            "none",
            got=some_of(others),
            cure="index one dataset at a time, by a narrower pattern; or give --split "
            "to put all files into one split",
        )
    joined = JoinedFiles.of(layout.join(directory, file) for file in others)
    for kind, counts in (("splits", joined.splits), ("datasets", joined.datasets)):
        if len(counts) > 1:
            raise InputError(
                f"the files are of several {kind}",
                where=directory,
                expected="files of one, or names from which splits are read: "
                "NAME-SPLIT.array_record-00000-of-00010",
                got=listed(counts),
                cure="index them one at a time, by a narrower pattern and --split; or "
                "give --split to put all files into one split",
            )
