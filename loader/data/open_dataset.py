"""Opens datasets, with the same work for any number of shards and records.

A committed dataset is opened by `dataset.json` and the table of shards; a TFDS
directory by `dataset_info.json`. Plain ArrayRecord files have no table: their footers
are read once, in parallel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from gristmill.dataset.base.errors import (
    InputError,
    InvalidDatasetError,
    NotADatasetError,
    ReplacedError,
    some_of,
)
from gristmill.dataset.base.system import limits_named
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import (
    Manifest,
    check_not_replaced,
    chosen_split,
    open_manifest,
    read_manifest,
    read_split_table,
)
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import StrPath, has_magic, path_text, path_texts
from gristmill.loader.base.indices import IntArray, checked_count
from gristmill.loader.data.dataset import Dataset, HowToRead, Stored
from gristmill.loader.data.part import Part
from gristmill.loader.reading.host_cache import (
    FooterCache,
    cache_dir_text,
    footer_cache,
)
from gristmill.loader.reading.read_plan import Verify
from gristmill.loader.reading.shard_file import ShardFile
from gristmill.loader.reading.shard_list import ShardList, count_files
from gristmill.loader.remote.read_options import ReadOptions

_log = logging.getLogger(__name__)
_TRIES = 10  # A dataset may be replaced while it is opened.

_Opened: TypeAlias = tuple[Part, Mapping[int, ShardFile]]
"""A part, and the plain files that were opened to count its records."""


class _Place(NamedTuple):
    """What is opened: a directory, its split and edition; or plain files."""

    path: str
    split: str | None = None
    edition: int | None = None


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
        edition: Open the split as of this edition, counted from 1, with the same
            records, numbers and order. By default the newest. For joined datasets, a
            list: the edition of each, or None.
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
        read_options=read_options,
        cache_dir=None if cache_dir is None else cache_dir_text(cache_dir),
        cache_bytes=cache_bytes,
    )
    alone = isinstance(path, (str, os.PathLike))
    if alone and not isinstance(split, (list, tuple)):
        only = cast("tuple[str | None, int | None]", (split, edition))
        return _dataset(
            [_Place(path_text(cast("StrPath", path), "dataset"), *only)], how
        )
    several: Any = [path] * len(split or ()) if alone else path
    paths = path_texts(several, "file")
    if split is None or isinstance(split, str):
        if not (paths and _is_dataset(paths[0])):
            _check_plain(_Place(some_of(paths), split, cast("Any", edition)), how)
            return _of_files(*_plain(paths, how), how)
        split = [cast("str", split)] * len(paths)
    if not paths or len(split) != len(paths):
        raise InputError(
            "the splits to join are not as many as the datasets",
            expected=f"{len(paths):,} splits, one for each of {some_of(paths)}",
            got=f"{[*split]!r:.200}",
            cure="name the split of each dataset, in their order",
        )
    editions = [None] * len(paths) if edition is None else edition
    if not isinstance(editions, Sequence) or len(editions) != len(paths):
        raise InputError(
            "the editions are not as many as the datasets to join",
            expected=f"{len(paths):,} editions, or None for the last of each",
            got=f"{edition!r:.200}",
            cure="give a list with the edition of each dataset, or None for its last",
        )
    return _dataset(list(map(_Place, paths, split, editions)), how)


def _is_dataset(path: str) -> bool:
    """Returns whether a path is the directory of a dataset, also of TFDS."""
    names = layout.DATASET_JSON, layout.TFDS_INFO_JSON
    load = storage_for(path).load
    return any(load(layout.join(path, name)) is not None for name in names)


def _dataset(
    places: Sequence[_Place],
    how: HowToRead,
    editions: int | Sequence[int | None] | None = None,
    *,
    again: bool = False,
) -> Dataset:
    """Opens a dataset, or several as one.

    `editions` replace those of the first of them. With `again`, another process had
    opened them before.
    """
    if editions is not None:
        numbers = [editions] if isinstance(editions, int) else editions
        places = [
            place if number is None else place._replace(edition=number)
            for place, number in zip(places, numbers, strict=False)
        ]
    opened = [_opened(place, how, again=again) for place in places]
    parts = [part for part, _ in opened]
    if len(opened) == 1 and parts[0].split is None:
        return _of_files(*opened[0], how)
    # Whoever opens it again gets the same editions.
    places = [
        place._replace(split=part.split, edition=part.edition)
        for place, part in zip(places, parts, strict=True)
    ]
    for number, (path, split, _) in enumerate(places):
        if split is not None and any(
            (path, split) == other[:2] for other in places[:number]
        ):
            raise InputError(
                "a split is joined with itself, so that its records are there twice",
                where=f"{path}, split {split}",
                cure="name each split once; to see records more often, make a mixture "
                "with weights, or more epochs",
            )
    kinds = {one.packed is None: part for part in parts if (one := part.committed)}
    if len(kinds) > 1 and not again:
        text = "packed rows are joined with other records: %r has rows, %r has none"
        _log.warning(text, kinds[False], kinds[True])
    return Dataset(Stored(parts, how, functools.partial(_dataset, places, how)))


def _opened(place: _Place, how: HowToRead, *, again: bool) -> _Opened:
    """Opens a directory, or the plain files that a pattern matches."""
    path = place.path
    for left in reversed(range(_TRIES)):
        try:
            if (manifest := read_manifest(path)) is not None:
                return _committed(place, how, manifest, again=again)
            if how.cache_bytes is not None:
                raise _no_shards_to_cache(path)
            if has_magic(path) or storage_for(path).match(path):
                break
            return _tfds(place, how)
        except ReplacedError:
            # By now `dataset.json` names other files.
            if not left:
                raise
    _check_plain(place, how)
    return _plain([path], how)


def _check_plain(place: _Place, how: HowToRead) -> None:
    """Refuses arguments that are not for plain files."""
    if how.cache_bytes is not None:
        raise _no_shards_to_cache(place.path)
    _check_no_edition(place)
    if place.split is not None:
        raise InputError(
            "plain files have no splits",
            got=f"split {place.split!r}",
            cure="leave the split out, or give the dataset's directory",
        )


def _check_no_edition(place: _Place) -> None:
    if place.edition is not None:
        raise InputError(
            "only datasets that gristmill made have editions",
            where=place.path,
            got=f"edition {place.edition}",
            cure="leave the edition out, or give the dataset's directory",
        )


def _no_shards_to_cache(where: str) -> InputError:
    return InputError(
        "cache_bytes is only for converted datasets in object storage",
        expected="the directory of one, as in gs://bucket/c4",
        got=where,
        cure="leave cache_bytes out",
    )


def _plain(patterns: Sequence[str], how: HowToRead) -> _Opened:
    """Opens the files that patterns match, in this order."""
    from gristmill.dataset.formats.file_formats import check_joined
    from gristmill.dataset.metadata.tfds import match_shards

    paths: list[str] = []
    for pattern in patterns:
        found = [info.path for info in match_shards(pattern)]
        if not found:
            raise NotADatasetError(
                "no such file", where=pattern, cure="check the path or pattern"
            )
        paths += found
    if not paths:
        raise NotADatasetError(
            "no files given", cure="give paths or patterns of ArrayRecord files"
        )
    if notice := check_joined(patterns, paths):
        _log.warning("%s: %s", patterns[0], notice)
    name = patterns[0] if len(patterns) == 1 else f"{paths[0]} and others"
    shards, files = counted_shards(
        [(path, 0, None) for path in paths],
        footers=footer_cache(how.cache_dir),
        name=name,
    )
    return Part(path=paths[0], shards=shards), files


def _of_files(
    part: Part,
    files: Mapping[int, ShardFile],
    how: HowToRead,
    *,
    again: bool = False,
) -> Dataset:
    """Returns the dataset of plain files that were counted, perhaps just now."""
    del again  # The counts of each file are compared when it is read.
    # They travel along, so that a worker reads no footer that it does not need.
    stored = Stored([part], how, functools.partial(_of_files, part, {}, how))
    stored.reader.open_shards.keep(files)
    return Dataset(stored)


@limits_named()
def counted_shards(
    parts: Sequence[tuple[str, int, int | None]],
    *,
    footers: FooterCache | None,
    name: str,
) -> tuple[ShardList, dict[int, ShardFile]]:
    """Returns plain files as shards, and those that were opened to count them.

    Args:
        parts: The files, each with its range of records: to None for all.
        footers: Keeps their indexes.
        name: Their name in messages.
    """
    whole = [number for number, (_, _, end) in enumerate(parts) if end is None]
    paths = [path for path, _, _ in parts]
    records, sizes, opened = count_files([paths[n] for n in whole], footers=footers)
    starts = np.array([start for _, start, _ in parts], np.int64)
    ends = np.array([0 if end is None else end for _, _, end in parts], np.int64)
    ends[whole] = records
    file_records, file_bytes = (np.full(len(parts), -1) for _ in range(2))
    file_records[whole], file_bytes[whole] = records, sizes
    shards = ShardList(
        paths=paths,
        starts=starts,
        ends=_checked_ends(ends - starts, paths[0]),
        file_records=file_records,
        file_bytes=file_bytes,
        name=name,
        footers=footers,
    )
    return shards, {whole[number]: one for number, one in opened.items()}


def _checked_ends(counts: IntArray, where: str) -> IntArray:
    """Returns one past the last record of each shard; refuses absurd counts."""
    if float(counts.sum(dtype=float)) > 2**62:
        raise InvalidDatasetError(
            "dataset has more than 2^62 records by its own count",
            where=where,
            cure="restore it from a copy, or convert it again",
        )
    ends: IntArray = np.cumsum(counts, dtype=np.int64)
    return ends


def _committed(
    place: _Place, how: HowToRead, manifest: Manifest, *, again: bool
) -> _Opened:
    """Opens a committed dataset, by `dataset.json` and the table of shards."""
    path = place.path
    own = chosen_split(place.split, manifest.splits, path)
    whole = manifest.splits[own]
    number, name = whole.edition, f"{path}, split {own}"
    if place.edition is not None:
        number = _check_edition(place.edition, whole, f"split {own} of {path}")
    split = whole.until(number)
    manifest = dataclasses.replace(manifest, splits={**manifest.splits, own: split})
    table = read_split_table(path, manifest, own)
    paths = _Under(path, table.paths, of_indexes=False)
    index_paths = _Under(path, table.paths, of_indexes=True)
    if whole.edition > 1:
        name += f", edition {number}"
    remote = None
    if "://" not in path and how.cache_bytes is not None:
        raise _no_shards_to_cache(path)
    if "://" in path:
        from gristmill.loader.reading.remote_shards import RemoteShards
        from gristmill.loader.remote.range_fetcher import RangeFetcher

        remote = RemoteShards(
            where=path,
            paths=paths,
            index_paths=index_paths,
            table=table,
            split=split,
            fetcher=RangeFetcher(how.read_options),
            cache_dir=how.cache_dir,
            cache_bytes=how.cache_bytes,
            again=again,
        )
    shards = ShardList(
        paths=paths,
        index_paths=index_paths,
        starts=np.zeros(len(table), np.int64),
        ends=_checked_ends(table.records, path),
        file_records=table.records,
        file_bytes=table.file_bytes,
        file_crc32cs=table.file_crc32cs,
        check_current=functools.partial(check_not_replaced, path, own, split),
        name=name,
        remote=remote,
    )
    part = Part(path=path, shards=shards, split=own, manifest=manifest, table=table)
    return part, {}


def _tfds(place: _Place, how: HowToRead) -> _Opened:
    """Opens a dataset that TFDS describes, in `dataset_info.json`."""
    from gristmill.dataset.metadata.tfds import parse_info

    path, described = place.path, layout.join(place.path, layout.TFDS_INFO_JSON)
    found = storage_for(path).load(described)
    if found is None:
        open_manifest(path)  # Raises with what is missing.
        raise ReplacedError(
            "dataset was committed while it was opened",
            where=path,
            cure="open it again",
        )
    _check_no_edition(place)
    info, splits = parse_info(
        found.data,
        described,
        "array_record",
        functools.partial(
            InvalidDatasetError,
            cure="copy it again from the original dataset, or open the files by a glob "
            "pattern",
        ),
    )
    own = chosen_split(place.split, splits, path)
    counts = np.array(splits[own].file_records, np.int64)
    name = f"{path} ({info['name']}, split {own})"
    shards = ShardList(
        paths=_Under(path, splits[own].files, of_indexes=False),
        starts=np.zeros_like(counts),
        ends=_checked_ends(counts, path),
        file_records=counts,
        file_bytes=np.full_like(counts, -1),
        name=name,
        footers=footer_cache(how.cache_dir),
    )
    return Part(path=path, shards=shards, split=own), {}


def _check_edition(edition: int, split: Split, where: str) -> int:
    """Returns the number of an edition; raises InputError if it is not known."""
    kept = []
    for number in sorted(split.known):
        with contextlib.suppress(IndexError):
            kept.append(split.until(number).edition)
    number = checked_count(edition, what=f"edition of {where}", most=max(split.known))
    if number not in kept:
        raise InputError(
            f"edition of {where} is not there any more",
            expected=f"one of {some_of(kept, 20)}",
            got=number,
            cure="give one of these, or none for the newest; `gristmill inspect` shows "
            "what made each",
        )
    return number


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
