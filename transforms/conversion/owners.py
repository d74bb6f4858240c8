"""Whose a file is: what a job must not replace or delete, although it has the name."""

from __future__ import annotations

import contextlib
import functools
import os
import posixpath
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from gristmill.dataset.errors import InputError, InvalidDatasetError, StorageError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, read_table
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.conversion.output_split import shard_prefix, shards_of
from gristmill.transforms.jobs.conversion_job import PreparedJob


def check_inputs_stay(prepared: PreparedJob, shards: Collection[str]) -> None:
    """Checks that a conversion reads nothing that it replaces or deletes.

    Args:
        prepared: The conversion.
        shards: Those that it writes or deletes, relative to the dataset.

    Raises:
        InputError: It would.
    """
    job = prepared.job
    prefix = shard_prefix(job.name, job.split)
    described = (
        layout.DATASET_JSON,
        layout.job_path(job.name, job.split),
        layout.inputs_path(job.name, job.split),
        layout.table_path(job.name, job.split),
        layout.write_path(job.name, job.split),
    )
    temporary = layout.temporary_dir("", job.name, job.split) + "/"
    for path, inside in _inside(job.output, prepared.files.paths):
        if (
            inside in described
            or inside.startswith(temporary)
            or any(s in shards or s.startswith(prefix) for s in shards_of(inside))
        ):
            raise InputError(
                "an input would be replaced or deleted by the output",
                where=path,
                got=f"it is the output's {inside}",
                cure="choose another output, or name the inputs so that nothing in "
                "the output is among them",
            )


def _inside(directory: str, paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yields the paths that lead into a directory, and what they are called in it."""

    @functools.cache
    def real(path: str) -> str:
        return path if "://" in path else os.path.realpath(path)

    root = real(directory).rstrip("/") + "/"
    for path in paths:
        parent, name = posixpath.split(path)
        places = [layout.join(real(parent), name)]
        if "://" not in path and os.path.islink(path):
            places.append(os.path.realpath(path))
        for place in places:
            if place.startswith(root):
                yield path, place.removeprefix(root)


def check_removal(
    output: str,
    name: str,
    split: str,
    *,
    manifest: Manifest | None,
    shards: Collection[str],
) -> None:
    """Checks that the files of a split may be deleted.

    Args:
        output: The dataset's directory.
        name: The dataset's name.
        split: The split.
        manifest: The dataset as it is, None if there is none.
        shards: Shards of the split besides those that TFDS's names give to it.

    Raises:
        InputError: They are of another split, or were indexed and not written.
    """
    if manifest is None:
        return
    prefix = shard_prefix(name, split)
    check_other_splits(
        output,
        manifest,
        splits=(split,),
        takes=lambda path: path in shards or path.startswith(prefix),
    )
    old = manifest.splits.get(split)
    if old is None or "indexed" not in old.source:
        return
    paths = set(read_table(output, old).paths)
    for info in storage_for(output).list(output):
        if posixpath.basename(info.path) in paths:
            raise InputError(
                "the split holds files that gristmill did not write",
                where=info.path,
                got=f"split {split}, made by gristmill index",
                cure="choose another split or output; if the files are to go, delete "
                "them yourself first",
            )


def check_other_splits(
    output: str,
    manifest: Manifest,
    *,
    splits: Collection[str],
    takes: Callable[[str], bool],
) -> None:
    """Checks that no file belongs to other splits than these.

    Args:
        output: The dataset's directory.
        manifest: The dataset as it is.
        splits: Those that may have it.
        takes: Tells whether a file is meant, by its path relative to the dataset.

    Raises:
        InputError: Another split has it.
    """
    for name in sorted(manifest.splits.keys() - set(splits)):
        paths: Sequence[str] = ()
        # A split that cannot be read keeps nobody from working on others.
        with contextlib.suppress(InvalidDatasetError, StorageError):
            paths = read_table(output, manifest.splits[name]).paths
        for path in paths:
            if takes(path):
                raise InputError(
                    "a file belongs to another split",
                    where=layout.join(output, path),
                    expected=f"a file of split {', '.join(splits)}, or of none",
                    got=f"one of split {name}",
                    cure=f"choose another output, or work on split {name}",
                )
