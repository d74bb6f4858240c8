"""Work on a dataset that is neither committed nor given up: which, and its files."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator

from gristmill.dataset.commit.listings import (
    Listings,
    walk,
)
from gristmill.dataset.commit.write import id_in
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import (
    DESCRIBING,
    JOB,
    TEMPORARY,
)
from gristmill.dataset.metadata.manifest import (
    Manifest,
    is_over,
)
from gristmill.dataset.storage.lookup import storage_for


class Over:
    """Tells of writes of a split whether they are committed or given up.

    Args:
        output: The dataset's directory.
        manifest: What it says of itself.
        name: The split.
    """

    def __init__(self, output: str, manifest: Manifest, name: str):
        self._output, self._manifest, self._name = output, manifest, name

    @functools.cached_property
    def _plain(self) -> bool:
        """Whether it is so of the write that has TFDS's plain names."""
        path = layout.job_path(self._manifest.name, self._name)
        found = storage_for(self._output).load(layout.join(self._output, path))
        id_ = None if found is None else id_in(found.data)
        return id_ is None or is_over(self._manifest, layout.write_key(self._name, id_))

    def __call__(self, key: str) -> bool:
        """Returns whether no work is to come on a write, by its `layout.write_key`."""
        mark = layout.parse_write_key(key)[1]
        return is_over(self._manifest, key) if mark else self._plain


def unfinished_files(
    output: str,
    manifest: Manifest,
    name: str,
    *,
    own: Collection[str] = (),
    listings: Listings | None = None,
) -> Iterator[tuple[str, str]]:
    """Yields files of work on a split that is not finished, and the mark of each.

    Args:
        output: The dataset's directory.
        manifest: What it says of itself.
        name: The split.
        own: Keys of writes that are left out.
        listings: As in `walk`.
    """
    known, is_over = layout.parts_of(manifest.name, name), Over(output, manifest, name)
    for one in walk(output, DESCRIBING, known, listings=listings):
        key = layout.key_in(one.parts)
        if key not in own and not is_over(key):
            yield one.path, one.parts.get("WRITE", "")
    prefix = layout.shard_prefix(manifest.name, name)
    found = storage_for(output) if listings is None else listings
    place = output if listings is None else ""
    for info in found.scan(place, prefix=prefix):
        file = info.path.rpartition("/")[2]
        mark = layout.shard_mark(file, manifest.name, name)
        key = layout.write_key(name, mark or "")
        if mark is not None and key not in own and not is_over(key):
            yield file, mark
    for key, tree in temporary_trees(output, manifest.name, name).items():
        if key not in own and not is_over(key):
            yield tree.removeprefix(layout.join(output, "")), key.partition(".")[2]


def splits_of(
    output: str, manifest: Manifest, *, listings: Listings | None = None
) -> list[str]:
    """Returns the splits of a dataset, and those of which there is unfinished work."""
    jobs = walk(output, (JOB,), {"NAME": manifest.name}, listings=listings)
    begun = {found.parts["SPLIT"] for found in jobs}
    return sorted(begun | manifest.splits.keys())


def unfinished_writes(output: str, manifest: Manifest, name: str) -> frozenset[str]:
    """Returns the ids of the writes of a split that are not finished."""
    marks = {mark for _, mark in unfinished_files(output, manifest, name)}
    plain = layout.join(output, layout.job_path(manifest.name, name))
    if "" in marks and (found := storage_for(output).load(plain)) is not None:
        marks.add(id_in(found.data) or "")
    return frozenset(marks - {""})


def temporary_trees(output: str, name: str, split: str) -> dict[str, str]:
    """Returns the directories of a split's unfinished files, by write key."""
    found, own = {}, layout.join(output, "")
    place = layout.temporary_dir("", name, split)
    for info in storage_for(output).scan(output, deep=True, prefix=place):
        directory = info.path.removeprefix(own).partition("/")[0]
        parts = TEMPORARY.parse(f"{directory}/", NAME=name, SPLIT=split)
        if parts is not None:
            found[layout.key_in(parts)] = own + directory
    return found
