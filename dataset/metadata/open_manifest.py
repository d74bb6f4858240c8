"""The manifest of a committed dataset, and the state of it that a command is given."""

from __future__ import annotations

import contextlib
import difflib
import glob
import os

from gristmill.dataset.base.errors import (
    InputError,
    NotADatasetError,
    StorageError,
    some_of,
)
from gristmill.dataset.formats.file_formats import HEAD_BYTES, FileFormat, format_of
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import LIST
from gristmill.dataset.metadata.manifest import Manifest, read_manifest
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import StrPath, path_text

_CURE = (
    "check the path; `gristmill convert` writes a dataset from files, `gristmill "
    "index` turns existing ArrayRecord files into one"
)
_TFDS_CURE = (
    "convert it with `gristmill convert`, or, if its files are ArrayRecord files, make "
    "it a dataset in place with `gristmill index`"
)


def open_manifest(dataset: StrPath) -> Manifest:
    """Returns the manifest of a committed dataset.

    Raises:
        NotADatasetError: The directory has none: it is not a dataset, or its conversion
            did not finish.
    """
    dataset = path_text(dataset, "dataset")
    manifest = read_manifest(dataset)
    if manifest is None or not manifest.splits:
        raise not_a_dataset(dataset)
    return manifest


def not_a_dataset(path: str) -> NotADatasetError:
    """Returns the error for a path without a `dataset.json`."""
    if "://" not in path and not os.path.lexists(path):
        return NotADatasetError(
            "not a committed dataset",
            where=path,
            got="there is no such directory",
            cure=_near(path),
        )
    storage = storage_for(path)
    got, cure = "none", _CURE
    if storage.stat(layout.join(path, layout.DATASET_JSON)) is not None:
        got = "one that names no split: what was begun was given up"
    elif (file := storage.stat(path)) is not None:
        found = _format(file)
        got = "a file" if found is None else f"a file: {found.name}"
        cure = "give a directory" if found is None else found.cure
    elif begun := storage.list(layout.join(path, layout.INDEX_DIR)):
        got = "an unfinished conversion"
        cure = (
            "run the same `gristmill convert`, or other command, again: it does what "
            "is missing; if that was refused, gristmill clean --unfinished deletes "
            "what is there"
        )
        own = layout.join(path, "")
        lists = (LIST.parse(info.path.removeprefix(own)) for info in begun)
        if any(one and one["LIST"].startswith("part-") for one in lists):
            got = "a split that is not committed"
            cure = (
                "run the program that writes it again, a Writer with resume=True; "
                "where it writes several parts, commit them with "
                "gristmill.dataset.commit_parts"
            )
    elif datasets := _datasets_in(path):
        got, cure = f"a folder of {some_of(datasets)}", "give one of the datasets in it"
    else:
        files = {layout.base_name(info.path): info for info in storage.list(path)}
        shown = [name for name in files if not name.startswith((".", "_"))]
        if {layout.TFDS_INFO_JSON, "features.json"}.issubset(files):
            got, cure = "a TFDS directory", _TFDS_CURE
        elif shown and (found := _format(files[shown[0]])) is not None:
            got = f"files such as {shown[0]}: {found.name}"
            cure = found.cure
    return NotADatasetError(
        "not a committed dataset",
        where=path,
        expected=f"a file {layout.DATASET_JSON}, which is written last",
        got=got,
        cure=cure,
    )


def _near(path: str) -> str:
    """Returns a cure for a local path that does not exist."""
    parent, name = os.path.split(path.rstrip("/"))
    while parent and not os.path.isdir(parent):
        parent, name = os.path.split(parent)
    names: list[str] = []
    with contextlib.suppress(OSError):
        names = os.listdir(parent or ".")
    if found := difflib.get_close_matches(name, names, n=3):
        near = some_of([os.path.join(parent, one) for one in found])
        return f"check the path; there is {near}"
    return _CURE


def _datasets_in(path: str) -> list[str]:
    """Returns the datasets in a local folder; listing a bucket would take long."""
    pattern = layout.join(glob.escape(path), "*", layout.DATASET_JSON)
    local = "://" not in path
    found = storage_for(path).match(pattern) if local else []
    return [os.path.dirname(info.path) for info in found]


def _format(file: FileInfo) -> FileFormat | None:
    if not file.size_bytes:
        return None  # A pipe, for example, would keep its reader waiting.
    try:
        return format_of(storage_for(file.path).read(file.path, 0, HEAD_BYTES))
    except StorageError:
        return None  # The error is about the dataset, not about this file.


def chosen_split(dataset: str, manifest: Manifest, split: str | None) -> str:
    """Returns the name of a split, by default of the only one; raises InputError."""
    if split is None and len(manifest.splits) == 1:
        return next(iter(manifest.splits))
    if split is None or split not in manifest.splits:
        raise InputError(
            "no such split" if split else "the dataset has several splits",
            where=dataset,
            expected=some_of(manifest.splits, 20),
            got=split,
            cure="choose one with --split",
        )
    return split


def states_of(split: Split) -> dict[int, Split]:
    """Returns the states of a split that are known, by their newest edition."""
    found = {}
    for edition in sorted(split.known):
        try:
            found[edition] = split.until(edition)
        except IndexError:
            continue  # It was never the newest edition of a state that is kept.
    return found


def state_of(dataset: str, split: Split, edition: int) -> Split:
    """Returns a split as it was when an edition was its newest; raises InputError."""
    states = states_of(split)
    if edition not in states:
        raise InputError(
            "no state of the split is known that ended with this edition",
            where=dataset,
            expected=f"edition {some_of(map(str, states), 20)}",
            got=f"edition {edition}",
            cure="choose one of these; `gristmill inspect` shows what they hold",
        )
    return states[edition]
