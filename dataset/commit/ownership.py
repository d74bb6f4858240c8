"""Ownership: the files of a split, and those that a writer must not touch.

An output lies apart from its inputs, and foreign files in it are neither replaced nor
deleted, whatever their names.
"""

from __future__ import annotations

import contextlib
import functools
import os
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from gristmill.dataset.base.errors import (
    InputError,
    InvalidDatasetError,
    StorageError,
    StorageMissingError,
    some_of,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import OF_SHARDS
from gristmill.dataset.metadata.manifest import Manifest, read_table
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import matcher_below


def check_dataset_name(output: str, manifest: Manifest, name: str) -> None:
    """Raises InputError if a dataset has another name than its writer gives it."""
    if manifest.name != name:
        raise InputError(
            "the output holds a dataset of another name",
            where=output,
            expected=manifest.name,
            got=name,
            cure=f"choose another output, or give --name {manifest.name} to add or "
            "replace a split",
        )


def check_inputs_stay(
    output: str,
    name: str,
    split: str,
    *,
    inputs: Iterable[str],
    shards: Collection[str],
) -> None:
    """Raises InputError if a writer reads what it replaces or deletes.

    Args:
        output: The dataset's directory.
        name: Its name.
        split: The split that is written.
        inputs: Paths of the files that are read.
        shards: Those that are written or deleted, relative to the dataset.
    """
    prefix = layout.shard_prefix(name, split)
    described = (layout.DATASET_JSON, *layout.split_paths(name, split))
    unfinished = f"{layout.temporary_dir('', name, split)}/"
    real = functools.cache(_real)
    root = real(output).rstrip("/") + "/"
    for path in inputs:
        parent, file = posixpath.split(path)
        places = [layout.join(real(parent), file)]
        if "://" not in path and os.path.islink(path):
            places.append(_real(path))
        for inside in (one[len(root) :] for one in places if one.startswith(root)):
            if (
                inside in described
                or inside.startswith(unfinished)
                or any(s in shards or s.startswith(prefix) for s in shards_of(inside))
            ):
                raise InputError(
                    "an input would be replaced or deleted by the output",
                    where=path,
                    got=f"it is the output's {inside}",
                    cure="choose another output, or name the inputs so that nothing in "
                    "the output is among them",
                )


def _real(path: str) -> str:
    return path if "://" in path else os.path.realpath(path)


def check_removal(output: str, manifest: Manifest, split: str) -> set[str]:
    """Checks that the files of a split may be deleted; returns its shards.

    Args:
        output: The dataset's directory.
        manifest: The dataset as it is.
        split: The split.

    Raises:
        InputError: They are of another split, or were indexed and not written.
    """
    old, shards = manifest.splits.get(split), set[str]()
    # A table that is damaged or lost must not prevent a fresh start.
    with contextlib.suppress(InvalidDatasetError, StorageMissingError):
        shards.update(read_table(output, old).paths if old else ())
    prefix = layout.shard_prefix(manifest.name, split)
    check_other_splits(
        output,
        manifest,
        splits=(split,),
        takes=lambda path: path in shards or path.startswith(prefix),
    )
    indexed = [part for part in old.parts if "indexed" in part.source] if old else []
    paths = {path for part in indexed for path in read_table(output, part).paths}
    for info in storage_for(output).list(output) if paths else ():
        if posixpath.basename(info.path) in paths:
            raise InputError(
                "the split holds files that gristmill did not write",
                where=info.path,
                got=f"split {split}, made by gristmill index",
                cure="choose another split or output; if the files are to go, delete "
                "them yourself first",
            )
    return shards


def check_other_splits(
    output: str,
    manifest: Manifest,
    *,
    splits: Collection[str],
    takes: Callable[[str], bool],
) -> None:
    """Raises InputError if a file to be written or deleted belongs to another split.

    Args:
        output: The dataset's directory.
        manifest: The dataset as it is.
        splits: Those that may have it, with all their editions; or single editions.
        takes: Returns whether a file is meant, by its path relative to the dataset.
    """
    for name, split in sorted(manifest.editions.items()):
        if {name, name.partition(".")[0]}.intersection(splits):
            continue
        paths: Sequence[str] = ()
        # A split that cannot be read must not prevent work on others.
        with contextlib.suppress(InvalidDatasetError, StorageError):
            paths = read_table(output, split).paths
        if taken := next(filter(takes, paths), None):
            raise InputError(
                "a file belongs to another split",
                where=layout.join(output, taken),
                expected=f"a file of split {some_of(splits)}, or of none",
                got=f"one of split {name}",
                cure=f"choose another output, or work on split {name}",
            )


def check_no_strangers(
    output: str, name: str, split: str, *, shards: Collection[str]
) -> None:
    """Raises InputError if a file has the name of a shard that is to be written.

    Readers find shards by a pattern: they would take it for one of the split.

    Args:
        output: The dataset's directory.
        name: Its name.
        split: The split. All names that TFDS gives to its shards are looked for, not
            those with the id of a write.
        shards: Other names to look for.
    """
    prefix = layout.shard_prefix(name, split)
    own = all(shard.startswith(prefix) for shard in shards)
    # In order, so that the message names the same file every time.
    for info in sorted(storage_for(output).scan(output, prefix=prefix if own else "")):
        file = posixpath.basename(info.path)
        plain = layout.shard_mark(file, name, split) in (None, "")
        if file in shards or (file.startswith(prefix) and plain):
            raise InputError(
                "a file with the name of a shard is there already",
                where=info.path,
                got="no job that is known to have written it",
                cure="choose another output, or replace the split with --overwrite "
                "(in Python, overwrite=True)",
            )


def check_not_matched(
    output: str, *, patterns: Collection[str], files: Iterable[str]
) -> None:
    """Raises InputError if an input pattern would match a file of the output.

    The next run would take it for an input.

    Args:
        output: The dataset's directory.
        patterns: The inputs, as they were given.
        files: Files that the output will have, relative to it.
    """
    matchers = [
        (pattern, matches)
        for pattern in patterns
        if (matches := matcher_below(pattern, output)) is not None
    ]
    for file in files if matchers else ():
        for pattern, matches in matchers:
            if matches(file):
                raise InputError(
                    "the output lies among the inputs: the next run would find it",
                    where=output,
                    expected="a directory where the input pattern matches no file",
                    got=f"{pattern} would match {layout.join(output, file)}",
                    cure=f"choose another output{_example(output, patterns)}, or give "
                    "a pattern of the input files alone",
                )


def check_holds_no_input(output: str, inputs: Iterable[str]) -> None:
    """Raises InputError if an input lies in the output's directory, at any depth.

    Patterns of these inputs would match `dataset.json`, shards or indexes as well, and
    whoever deletes or copies the dataset would take the inputs with it.
    """
    real = functools.lru_cache(maxsize=64)(_real)
    root = real(output.rstrip("/") or output)
    for path in inputs:
        parent, _, file = path.rpartition("/")
        place = real(parent if parent or not path.startswith("/") else "/")
        if f"{place}/".startswith(f"{root.rstrip('/')}/"):
            raise InputError(
                "the output is the directory of its inputs"
                if place == root
                else "the output is a parent directory of its inputs",
                where=output,
                expected="a directory of its own, without inputs in it",
                got=f"the input {file}" if place == root else f"the input {path}",
                cure=f"choose another output{_example(output, ())}",
            )


def _example(output: str, patterns: Iterable[str]) -> str:
    """Returns an example of a directory beside the output or a parent, if there is one.

    No pattern matches `dataset.json` in it.
    """
    path = output.rstrip("/")
    # A bucket has no directory beside it.
    while path.rpartition("/")[2].strip(".") and path.rpartition("/")[0] != "gs:/":
        other = f"{path}-arrayrecord"
        matchers = [matcher_below(pattern, other) for pattern in patterns]
        if not any(matches and matches(layout.DATASET_JSON) for matches in matchers):
            return f", such as {other}"
        path = path.rpartition("/")[0]
    return ""


def shards_of(path: str) -> Iterator[str]:
    """Yields the shards that a file can belong to, given its path in the dataset.

    >>> list(shards_of("index/a.index"))
    ['a']
    """
    for kind in OF_SHARDS:
        if parts := kind.parse(path):
            yield parts["SHARD"]
