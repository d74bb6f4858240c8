"""Opens datasets, with the same work for any number of shards and records.

A committed dataset is opened by `dataset.json` and the table of shards; a TFDS
directory by `dataset_info.json`. Plain ArrayRecord files have no table: their footers
are read once, in parallel.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

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
    open_manifest,
    read_manifest,
    read_split_table,
)
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.paths import StrPath, has_magic, path_text, path_texts
from gristmill.loader.base.indices import IntArray, checked_count
from gristmill.loader.data.dataset import Dataset, shards_of
from gristmill.loader.reading.batch_reader import BatchReader
from gristmill.loader.reading.host_cache import (
    FooterCache,
    cache_dir_text,
    footer_cache,
)
from gristmill.loader.reading.read_plan import Verify
from gristmill.loader.reading.shard_file import ShardFile
from gristmill.loader.reading.shard_list import ShardList, count_files
from gristmill.loader.remote.read_options import ReadOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class HowToRead:
    """Arguments of `open` that hold for all datasets it opens; see there."""

    verify: Verify | None
    options: ReadOptions | None
    cache_dir: str | None
    cache_bytes: int | None

    def reader(self, shards: ShardList) -> BatchReader:
        """Returns the reader of some shards."""
        return BatchReader(shards, verify=self.verify, read_options=self.options)


def checked_ends(counts: IntArray, where: str) -> IntArray:
    """Returns where the records of each shard end; counts of a dataset can be wrong."""
    if float(counts.sum(dtype=float)) > 2**62:
        raise InvalidDatasetError(
            "dataset has more than 2^62 records by its own count",
            where=where,
            cure="restore it from a copy, or convert it again",
        )
    ends: IntArray = np.cumsum(counts, dtype=np.int64)
    return ends


def no_shards_to_cache(where: str) -> InputError:
    """Returns the error that cache_bytes has no effect on this input."""
    return InputError(
        "cache_bytes is only for converted datasets in object storage",
        expected="the directory of one, as in gs://bucket/c4",
        got=where,
        cure="leave cache_bytes out",
    )


_log = logging.getLogger(__name__)


def open_files(patterns: tuple[str, ...], how: HowToRead) -> Dataset:
    """Opens the files that patterns match, in this order.

    Raises:
        NotADatasetError: There is no such file.
        InputError: A pattern matches files of several splits.
    """
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
    shards, opened = counted_shards(
        [(path, 0, None) for path in paths],
        footers=footer_cache(how.cache_dir),
        name=patterns[0] if len(patterns) == 1 else f"{paths[0]} and others",
    )
    return _open_counted(shards, how, opened)


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
        name: What messages call them.
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
        ends=checked_ends(ends - starts, paths[0]),
        file_records=file_records,
        file_bytes=file_bytes,
        name=name,
        footers=footers,
    )
    return shards, {whole[number]: one for number, one in opened.items()}


def _open_counted(
    shards: ShardList, how: HowToRead, opened: Mapping[int, ShardFile]
) -> Dataset:
    """Returns the dataset of plain files that were counted, perhaps just now."""
    reader = how.reader(shards)
    reader.open_shards.keep(opened)
    # The counts travel along, so that a worker reads no footer that it does not need.
    return Dataset(
        path=shards.paths[0],
        reader=reader,
        reopen=functools.partial(_reopened, shards, how),
    )


def _reopened(shards: ShardList, how: HowToRead, content: object) -> Dataset:
    del content  # The counts of each file are compared when it is read.
    return _open_counted(shards, how, {})


_TRIES = 10  # Each time, the dataset was replaced meanwhile.


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
                return _open_committed(place, split, how, manifest, edition=edition)
            except ReplacedError:
                # By now `dataset.json` names other files.
                if not left:
                    raise
        if how.cache_bytes is not None:
            raise no_shards_to_cache(place)
        _check_no_edition(edition, place)
        if not has_magic(place) and not storage_for(place).match(place):
            try:
                return _open_tfds(place, split, how)
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
    alone = isinstance(path, (str, os.PathLike))
    if isinstance(split, str) or not isinstance(split, Sequence):
        paths = (
            [] if alone else list(path_texts(cast("Sequence[StrPath]", path), "file"))
        )
        joined = paths and _is_dataset(paths[0])
        return [(place, split) for place in paths] if joined else []
    splits = list(split)
    each: Any = [path] * len(splits) if alone else path
    paths = list(path_texts(each, "file"))
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
        reopen=functools.partial(_join_again, parts, verify, read_options),
        parts=parts,
        editions=lambda wanted: join_datasets(
            [
                part if edition is None else part.as_of(edition)
                for part, edition in zip(parts, wanted, strict=False)
            ],
            verify=verify,
            read_options=read_options,
        ),
    )


def _join_again(
    parts: Sequence[Dataset],
    verify: Verify | None,
    read_options: ReadOptions | None,
    content: object,
) -> Dataset:
    del content  # Each of the parts was compared.
    return join_datasets(parts, verify=verify, read_options=read_options)


def _open_committed(
    path: str,
    split: str | None,
    how: HowToRead,
    manifest: Manifest,
    *,
    edition: int | None = None,
    again: bool = False,
) -> Dataset:
    """Opens a committed dataset, by `dataset.json` and the table of shards.

    `again` says that it was open before, in another process.
    """
    own = _choose(split, tuple(manifest.splits), path)
    whole = manifest.splits[own]
    number = whole.edition
    if edition is not None:
        number = _check_edition(edition, whole, f"split {own} of {path}")
    until = {**manifest.splits, own: whole.until(number)}
    everything, manifest = manifest, dataclasses.replace(manifest, splits=until)
    table = read_split_table(path, manifest, own)
    paths = _Under(path, table.paths, of_indexes=False)
    index_paths = _Under(path, table.paths, of_indexes=True)
    remote = None
    if "://" not in path and how.cache_bytes is not None:
        raise no_shards_to_cache(path)
    if "://" in path:
        from gristmill.loader.reading.remote_shards import RemoteShards
        from gristmill.loader.remote.range_fetcher import RangeFetcher

        remote = RemoteShards(
            where=path,
            paths=paths,
            index_paths=index_paths,
            table=table,
            split=manifest.splits[own],
            fetcher=RangeFetcher(how.options or ReadOptions()),
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
        editions=lambda wanted: _open_committed(
            path, own, how, everything, edition=wanted
        ),
        reader=how.reader(shards),
        reopen=functools.partial(_reopen, path, own, how, number),
    )


def _open_tfds(path: str, split: str | None, how: HowToRead) -> Dataset:
    """Opens a dataset that TFDS describes, in `dataset_info.json`."""
    from gristmill.dataset.metadata.tfds import parse_info

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
    return Dataset(
        path=path,
        split=own,
        reader=how.reader(shards),
        reopen=functools.partial(_reopen, path, own, how, None),
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


def _reopen(
    path: str,
    split: str,
    how: HowToRead,
    edition: int | None,
    expected: tuple[str | None, int, int],
) -> Dataset:
    """Opens in another process what was opened before, and refuses other content."""
    manifest = read_manifest(path)
    if manifest is None:
        dataset = _open_tfds(path, split, how)
    else:
        dataset = _open_committed(
            path, split, how, manifest, edition=edition, again=True
        )
    found = dataset.records_digest, len(dataset), dataset.num_shards
    if found != expected:
        raise InvalidDatasetError(
            "dataset was replaced while it was in use",
            where=f"{path}, split {split}",
            expected="digest {}, {:,} records, {:,} shards".format(*expected),
            got="digest {}, {:,} records, {:,} shards".format(*found),
            cure="start again: all processes must open the same dataset",
        )
    return dataset
