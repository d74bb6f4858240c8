"""Opens datasets, with the same work for any number of shards and records.

A committed dataset is opened by `dataset.json` and the table of shards; a TFDS
directory by `dataset_info.json`. Plain ArrayRecord files have no table: their footers
are read once, in parallel.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import cast

from gristmill.dataset.base.errors import InputError, ReplacedError, some_of
from gristmill.dataset.base.system_limits import limits_named
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import read_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import StrPath, path_text, path_texts
from gristmill.loader.data.dataset import Dataset, shards_of
from gristmill.loader.data.open_directory import open_committed, open_tfds
from gristmill.loader.data.open_files import (
    HowToRead,
    no_shards_to_cache,
    open_files,
)
from gristmill.loader.data.selected_dataset import selected
from gristmill.loader.reading.batch_reader import BatchReader, Verify
from gristmill.loader.reading.host_files import cache_dir_text
from gristmill.loader.reading.shard_list import ShardList
from gristmill.loader.remote.read_options import ReadOptions

_TRIES = 10  # Each time, the dataset was replaced meanwhile.
_MAGIC = re.compile(r"[*?\[]")


@limits_named()
def open(
    path: StrPath | Sequence[StrPath],
    split: str | Sequence[str] | None = None,
    *,
    edition: int | Sequence[int | None] | None = None,
    verify: Verify | None = None,
    read_options: ReadOptions | None = None,
    cache_dir: StrPath | None = None,
    cache_bytes: int | None = None,
) -> Dataset:
    """Opens a dataset for reading.

    Args:
        path: The directory of a committed dataset, or of a TFDS dataset in ArrayRecord
            format; or an ArrayRecord file, a glob pattern, or a list of these. Files of
            several splits, by their names, are joined only by a list. A list of
            directories joins datasets: their records follow each other.
        split: The split of a directory; it may be left out where there is only one. A
            list joins splits: one for each directory, or several of one directory.
        edition: Open the split as it was when this edition was its last, counted from
            1: with the same records, numbers and order. By default, the last that there
            is. For joined datasets, a list: the edition of each, or None.
        verify: `always` compares every record with its crc32c and refuses shards that
            have no checksums; `never` compares nothing. By default records are compared
            where there are checksums, in shards that gristmill converted or indexed;
            for other files, the hash of each chunk is compared.
        read_options: How to read object storage (gs:// paths).
        cache_dir: Local directory for what is fetched once per host: indexes of
            datasets in object storage, and indexes made from the footers of plain
            files; "" keeps none of the latter. By default `GRISTMILL_CACHE_DIR`, or a
            directory of this user under `TMPDIR`.
        cache_bytes: For a dataset in object storage, keep copies of whole shards in
            cache_dir too. It limits the bytes of all copies, of all datasets and
            processes. Copies are made while records are read.

    Raises:
        NotADatasetError: There is no dataset, or it is not committed.
        InputError: The split or edition does not exist, or must be given; or shards of
            this dataset cannot be cached; or a pattern matches files of several splits;
            or datasets cannot be joined.
        InvalidDatasetError: The dataset's own files contradict each other.
        StorageError: The directory for copies cannot be used.
    """
    if read_options is not None and not isinstance(read_options, ReadOptions):
        raise InputError(
            "read_options are of another kind",
            expected="loader.ReadOptions(...), or None",
            got=f"{read_options!r:.100}",
            cure="give loader.ReadOptions(...), or leave it out",
        )
    how = HowToRead(
        verify=verify,
        options=read_options,
        cache_dir=cache_dir_text(cache_dir),
        cache_bytes=cache_bytes,
    )
    together = _joined(path, split)
    if not together:
        only = cast("tuple[str | None, int | None]", (split, edition))
        return _open_one(path, *only, how)
    editions = [None] * len(together) if edition is None else edition
    if not isinstance(editions, Sequence) or len(editions) != len(together):
        raise InputError(
            "the editions are not as many as the datasets to join",
            expected=f"{len(together):,} editions, or None for the last of each",
            got=f"{edition!r:.200}",
            cure="give a list with the edition of each dataset, or None for its last",
        )
    parts = [
        _open_one(place, own, number, how)
        for (place, own), number in zip(together, editions, strict=True)
    ]
    return join_datasets(parts, verify=verify, read_options=read_options)


def _open_one(
    path: StrPath | Sequence[StrPath],
    split: str | None,
    edition: int | None,
    how: HowToRead,
) -> Dataset:
    """Opens a directory, or plain files."""
    if isinstance(path, (str, os.PathLike)):
        place = path_text(path, "dataset")
        for left in reversed(range(_TRIES)):
            manifest = read_manifest(place)
            if manifest is None:
                break
            try:
                return open_committed(place, split, how, manifest, edition=edition)
            except ReplacedError:
                # By now `dataset.json` names other files.
                if not left:
                    raise
        if how.cache_bytes is not None:
            raise no_shards_to_cache(place)
        _check_no_edition(edition, place)
        if not _MAGIC.search(place) and not storage_for(place).match(place):
            try:
                return open_tfds(place, split, how)
            except ReplacedError:  # There is a `dataset.json` by now.
                return _open_one(place, split, edition, how)
        patterns: tuple[str, ...] = (place,)
    else:
        patterns = path_texts(path, "file")
        _check_no_edition(edition, some_of(patterns))
        if how.cache_bytes is not None:
            raise no_shards_to_cache(some_of(patterns))
    if split is not None:
        raise InputError(
            "plain files have no splits",
            got=f"split {split!r}",
            cure="leave the split out, or give the dataset's directory",
        )
    return open_files(patterns, how)


def _check_no_edition(edition: int | None, where: str) -> None:
    if edition is not None:
        raise InputError(
            "only datasets that gristmill made have editions",
            where=where,
            got=f"edition {edition}",
            cure="leave the edition out, or give the dataset's directory",
        )


def _joined(
    path: StrPath | Sequence[StrPath], split: str | Sequence[str] | None
) -> list[tuple[str, str | None]]:
    """Returns paths and splits to join; none for a dataset, or for plain files."""
    if isinstance(split, str) or not isinstance(split, Sequence):
        if isinstance(path, (str, os.PathLike)):
            return []
        paths = list(path_texts(path, "file"))
        joined = paths and _is_dataset(paths[0])
        return [(place, split) for place in paths] if joined else []
    splits = list(split)
    if isinstance(path, (str, os.PathLike)):
        paths = [path_text(path, "dataset")] * len(splits)
    else:
        paths = list(path_texts(path, "file"))
    if not splits or len(splits) != len(paths):
        raise InputError(
            "the splits to join are not as many as the datasets",
            expected=f"{len(paths):,} splits, one for each of {some_of(paths)}",
            got=f"{splits!r:.200}",
            cure="name the split of each dataset, in their order",
        )
    return list(zip(paths, splits, strict=True))


def _is_dataset(path: str) -> bool:
    """Returns whether a path is the directory of a dataset, also of TFDS."""
    names = layout.DATASET_JSON, layout.TFDS_INFO_JSON
    load = storage_for(path).load
    return any(load(layout.join(path, name)) is not None for name in names)


def join_datasets(
    parts: Sequence[Dataset],
    *,
    verify: Verify | None,
    read_options: ReadOptions | None,
) -> Dataset:
    """Returns the records of datasets, one or more, as one dataset.

    Raises:
        InputError: One of them is there twice, or only some are in a bucket.
    """
    places = [(part.path, part.split) for part in parts]
    for number, place in enumerate(places):
        if place[1] is not None and place in places[:number]:
            raise InputError(
                "a split is joined with itself, so that its records are there twice",
                where=f"{place[0]}, split {place[1]}",
                cure="name each split once; to see records more often, make a mixture "
                "with weights, or more epochs",
            )
    if len(parts) == 1:
        return parts[0]
    shards = ShardList.joined(list(map(shards_of, parts)))
    return Dataset(
        path=parts[0].path,
        reader=BatchReader(shards, verify=verify, read_options=read_options),
        recipe=lambda dataset: (_join_again, (dataset.parts, verify, read_options)),
        parts=parts,
        editions=lambda wanted: join_datasets(
            [
                part if edition is None else part.as_of(edition)
                for part, edition in zip(parts, wanted, strict=False)
            ],
            verify=verify,
            read_options=read_options,
        ),
        select=selected,
    )


def _join_again(
    parts: Sequence[Dataset], verify: Verify | None, read_options: ReadOptions | None
) -> Dataset:
    return join_datasets(parts, verify=verify, read_options=read_options)
