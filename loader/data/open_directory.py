"""Opens a directory: a committed dataset, or one of TFDS."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import (
    InputError,
    InvalidDatasetError,
    ReplacedError,
    some_of,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import (
    Manifest,
    check_not_replaced,
    read_manifest,
    read_split_table,
)
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.metadata.tfds import parse_info
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.base.indices import checked_count
from gristmill.loader.data.dataset import Dataset, Recipe
from gristmill.loader.data.open_files import (
    HowToRead,
    checked_ends,
    no_shards_to_cache,
)
from gristmill.loader.data.selected_dataset import selected
from gristmill.loader.reading.cached_indexes import footer_cache
from gristmill.loader.reading.remote_shards import RemoteShards
from gristmill.loader.reading.shard_list import ShardList
from gristmill.loader.remote.read_options import ReadOptions


def open_committed(
    path: str,
    split: str | None,
    how: HowToRead,
    manifest: Manifest,
    *,
    edition: int | None = None,
    again: bool = False,
) -> Dataset:
    """Opens a committed dataset, by `dataset.json` and the table of shards.

    Args:
        path: The directory.
        split: The split; None where there is only one.
        how: How to read it.
        manifest: Its `dataset.json`.
        edition: The last edition to open; None for all.
        again: Whether it was open before, in another process.

    Raises:
        NotADatasetError: The split is being replaced.
        InputError: The split or edition does not exist, or must be given; or its shards
            cannot be cached.
        InvalidDatasetError: Its files contradict each other.
        StorageError: The directory for copies cannot be used.
    """
    own = _choose(split, tuple(manifest.splits), path)
    editions = functools.partial(open_committed, path, own, how, manifest)
    whole = manifest.splits[own]
    number = whole.edition
    if edition is not None:
        number = _check_edition(edition, whole, f"split {own} of {path}")
    until = {**manifest.splits, own: whole.until(number)}
    manifest = dataclasses.replace(manifest, splits=until)
    table = read_split_table(path, manifest, own)
    paths = _Under(path, table.paths, of_indexes=False)
    index_paths = _Under(path, table.paths, of_indexes=True)
    remote = None
    if "://" not in path and how.cache_bytes is not None:
        raise no_shards_to_cache(path)
    if "://" in path:
        remote = RemoteShards(
            where=path,
            paths=paths,
            index_paths=index_paths,
            table=table,
            split=manifest.splits[own],
            options=how.options or ReadOptions(),
            cache_dir=how.cache_dir,
            cache_bytes=how.cache_bytes,
            again=again,
        )
    shards = ShardList(
        paths=paths,
        index_paths=index_paths,
        starts=np.zeros(len(table), np.int64),
        ends=checked_ends(table.records, path),
        file_records=table.records,
        file_bytes=table.file_bytes,
        file_crc32cs=table.file_crc32cs,
        check_current=functools.partial(
            check_not_replaced, path, own, manifest.splits[own]
        ),
        name=f"{path}, split {own}" + f", edition {number}" * (whole.edition > 1),
        remote=remote,
    )
    return Dataset(
        path=path,
        split=own,
        table=table,
        manifest=manifest,
        editions=lambda wanted: editions(edition=wanted),
        reader=how.reader(shards),
        recipe=_by_path(how),
        select=selected,
    )


def open_tfds(path: str, split: str | None, how: HowToRead) -> Dataset:
    """Opens a dataset that TFDS describes, in `dataset_info.json`.

    Raises:
        NotADatasetError: There is no such file, and no dataset.
        InputError: The split does not exist, or must be given.
        InvalidDatasetError: The file contradicts itself.
        ReplacedError: A dataset is committed by now.
    """
    place = layout.join(path, layout.TFDS_INFO_JSON)
    found = storage_for(path).load(place)
    if found is None:
        open_manifest(path)  # Raises with what is missing.
        raise ReplacedError(
            "dataset was committed while it was opened",
            where=path,
            cure="open it again",
        )
    info, splits = parse_info(
        found.data,
        place,
        "array_record",
        functools.partial(
            InvalidDatasetError,
            cure="copy it again from the original dataset, or open the files by a glob "
            "pattern",
        ),
    )
    own = _choose(split, tuple(splits), path)
    counts = np.array(splits[own].file_records, np.int64)
    shards = ShardList(
        paths=_Under(path, splits[own].files, of_indexes=False),
        starts=np.zeros_like(counts),
        ends=checked_ends(counts, path),
        file_records=counts,
        file_bytes=np.full_like(counts, -1),
        name=f"{path} ({info['name']}, split {own})",
        footers=footer_cache(how.cache_dir),
    )
    reader = how.reader(shards)
    return Dataset(
        path=path, split=own, reader=reader, recipe=_by_path(how), select=selected
    )


def _until(split: Split, edition: int) -> Split | None:
    """Returns a split as it was when an edition was the newest, None if not kept."""
    try:
        return split.until(edition)
    except IndexError:
        return None


def _check_edition(edition: int, split: Split, where: str) -> int:
    """Returns the number of an edition; raises InputError if it is not known."""
    most = max(split.known)
    numbers = [number for number in sorted(split.known) if _until(split, number)]
    number = checked_count(edition, what=f"edition of {where}", most=most)
    if number not in numbers:
        raise InputError(
            f"edition of {where} is not there any more",
            expected=f"one of {some_of(numbers, 20)}",
            got=number,
            cure="give one of these, or none for the newest; `gristmill inspect` shows "
            "what made each",
        )
    return number


def _choose(split: str | None, splits: Sequence[str], where: str) -> str:
    if split is None and len(splits) == 1:
        return splits[0]
    if split is None or split not in splits:
        raise InputError(
            "no split given" if split is None else "no such split",
            where=where,
            expected=f"one of {some_of(splits, 20)}" if splits else "(there is none)",
            got=split,
            cure="give one of these, as --split NAME or split=NAME",
        )
    return split


class _Under(Sequence[str]):
    """Paths in a directory, each joined when it is used: there may be a million."""

    def __init__(self, directory: str, paths: Sequence[str], *, of_indexes: bool):
        self._directory, self._paths, self._of_indexes = directory, paths, of_indexes

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        path = self._paths[index]
        if self._of_indexes:
            path = layout.index_path(path)
        return layout.join(self._directory, path)


def _by_path(how: HowToRead) -> Recipe:
    """Returns the recipe of datasets that are found by their path."""
    return lambda dataset: (
        _reopen,
        (dataset.path, dataset.split, how, _content(dataset), dataset.edition),
    )


def _content(dataset: Dataset) -> tuple[str | None, int, int]:
    # It must be the same when the dataset is opened again.
    return dataset.records_digest, len(dataset), dataset.num_shards


def _reopen(
    path: str,
    split: str,
    how: HowToRead,
    expected: tuple[str | None, int, int],
    edition: int | None,
) -> Dataset:
    """Opens in another process what was opened before, and refuses other content."""
    manifest = read_manifest(path)
    if manifest is None:
        dataset = open_tfds(path, split, how)
    else:
        dataset = open_committed(
            path, split, how, manifest, edition=edition, again=True
        )
    found = _content(dataset)
    if found != expected:
        raise InvalidDatasetError(
            "dataset was replaced while it was in use",
            where=f"{path}, split {split}",
            expected="digest {}, {:,} records, {:,} shards".format(*expected),
            got="digest {}, {:,} records, {:,} shards".format(*found),
            cure="start again: all processes must open the same dataset",
        )
    return dataset
