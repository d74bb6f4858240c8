"""Indexing: existing files, sorted into splits, become a dataset in place."""

from __future__ import annotations

import collections
import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import os
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np

from gristmill.dataset.arrayrecord.footer import walk_file
from gristmill.dataset.base.columns import Done, Gathered
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import CorruptShardError, InputError, some_of
from gristmill.dataset.commit.commit import check_files, commit_dataset, write_table
from gristmill.dataset.commit.listings import Listing, decode_name
from gristmill.dataset.commit.ownership import check_other_splits
from gristmill.dataset.commit.write import Output, Write
from gristmill.dataset.formats.file_formats import (
    FileName,
    JoinedFiles,
    listed,
    parse_file_name,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.shard_files import stored_footer
from gristmill.dataset.metadata.shard_index import encode_index
from gristmill.dataset.metadata.shard_report import INDEXED_JOB, ShardReport
from gristmill.dataset.metadata.shard_table import ShardCollector, ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.metadata.tfds import (
    list_shard_files,
    match_shards,
    parse_info,
)
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.dataset.storage.paths import path_texts
from gristmill.transforms.jobs.job import Begun
from gristmill.transforms.sources.input_formats import check_formats, look_at

_LOOKED_AT = 1_024

_log = logging.getLogger(__name__)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexTasks:
    """A task for each file, made as they are iterated over.

    Attributes:
        dataset: The directory.
        name: The dataset's name.
        listing: The files.
        splits: The split of each.
    """

    dataset: str
    name: str
    listing: Listing
    splits: Sequence[str]

    def __len__(self) -> int:
        return len(self.splits)

    def __iter__(self) -> Iterator[IndexTask]:
        numbers = collections.defaultdict[str, Iterator[int]](itertools.count)
        files = zip(self.splits, self.listing.names, self.listing.sizes, strict=True)
        for split, file, size in files:
            own = self.dataset, self.name, split, next(numbers[split])
            yield IndexTask(*own, decode_name(file), int(size))


def plan_index(
    patterns: Sequence[str],
    *,
    name: str | None = None,
    split: str | None = None,
    overwrite: bool = False,
) -> IndexTasks:
    """Sorts existing files into the splits of a dataset.

    Args:
        patterns: ArrayRecord files or glob patterns in one directory, or the directory.
        name: The dataset's name; by default from file names in TFDS's form, else that
            of the directory.
        split: The split of all files; by default from the file names, else `train`.
        overwrite: Whether to replace existing splits.

    Raises:
        InputError: The files cannot make a dataset.
    """
    directory, listing = _find_files(patterns)
    # A sample of them: any other file of another format is refused when it is read.
    some = listing.names[:: max(1, len(listing.names) // _LOOKED_AT)]
    places = [FileInfo(layout.join(directory, decode_name(n)), 0) for n in some]
    check_formats(places, look_at(places), "arrayrecord")
    names = _names_of(directory, listing)
    if split is None:
        _check_not_joined(directory, listing, names)
    kinds = collections.Counter(names)
    tfds = {said.dataset for said in kinds if said.split_files and said.dataset}
    if name is None:
        if len(tfds) > 1:
            raise InputError(
                "the files are of several datasets",
                where=directory,
                got=some_of(sorted(tfds)),
                cure="index those of one dataset at a time, or give --name",
            )
        base = os.path.basename(os.path.abspath(directory)) or "dataset"
        name = tfds.pop() if all(said.split_files for said in kinds) else base
    layout.check_name(name)
    split_of = {
        said: layout.check_split(split or (said.split_files and said.split) or "train")
        for said in kinds
    }
    files = collections.Counter[str]()
    for said, count in kinds.items():
        files[layout.write_key(split_of[said], said.write)] += count
    for said, own in split_of.items():
        found = files[key := layout.write_key(own, said.write)]
        if said.split_files and not split and found != said.split_files:
            raise InputError(
                "not all shards of the split are there",
                where=f"{directory}, split {key}",
                expected=f"{said.split_files:,} files, as their names say",
                got=f"{found:,}",
                cure="add the missing files, or give --split to take the files as "
                "they are",
            )
    write = Write(output=directory, name=name, split=split or "")
    manifest = Output.read(write, replaces=overwrite).manifest
    splits = {*split_of.values()}
    there = sorted(splits & manifest.splits.keys())
    if there and not overwrite:
        raise InputError(
            "the directory is a dataset with this split already",
            where=f"{directory}, split {some_of(there)}",
            cure="look at it with gristmill inspect, or index again with --overwrite",
        )
    packed = [each for each in there if manifest.splits[each].packed is not None]
    if packed:
        raise InputError(
            "the split holds packed rows, which gristmill index cannot describe",
            where=f"{directory}, split {some_of(packed)}",
            cure="check it with gristmill verify, and pack damaged shards again",
        )
    check_other_splits(directory, manifest, splits=splits, takes=listing.has)
    of_files = [split_of[said] for said in names]
    return IndexTasks(dataset=directory, name=name, listing=listing, splits=of_files)


def _find_files(patterns: Sequence[str]) -> tuple[str, Listing]:
    """Returns the directory of all files, and their listing."""
    directories: set[str] = set()
    listings = []
    for pattern in path_texts(patterns, "input"):
        matches = match_shards(pattern) or list_shard_files(pattern)
        if not matches:
            raise InputError(
                "no ArrayRecord file matches",
                where=pattern,
                cure="check the path; quote a pattern with * so that it reaches "
                "gristmill as it is",
            )
        directories.update(os.path.dirname(info.path) or "." for info in matches)
        if len(directories) > 1:
            break
        for info in matches:
            layout.check_shard(info.path.rpartition("/")[2], where=info.path)
        listings.append(Listing.of(matches))
    if len(directories) != 1:
        raise InputError(
            "the files are in several directories",
            where=some_of(sorted(directories)),
            expected="files of one directory, which becomes the dataset",
            cure="index each directory separately",
        )
    return directories.pop(), Listing.joined(listings)


def _names_of(directory: str, listing: Listing) -> list[FileName]:
    """Returns the parsed name of each file, from itself or from TFDS's metadata."""
    files = [*map(decode_name, listing.names)]
    known: dict[FileName, FileName] = {}  # Millions of names have the same parts.
    names = [known.setdefault(said, said) for said in map(parse_file_name, files)]
    place = layout.join(directory, layout.TFDS_INFO_JSON)
    if all(said.split_files for said in known) or not (
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
    return [described.get(*one) for one in zip(files, names, strict=True)]


def _check_not_joined(
    directory: str, listing: Listing, names: Sequence[FileName]
) -> None:
    """Raises InputError if unrelated files would be joined in one split."""
    files = zip(map(decode_name, listing.names), names, strict=True)
    others = [file for file, said in files if not said.split_files]
    if 0 < len(others) < len(names):
        raise InputError(
            "some files belong to a dataset by their names, and others do not",
            where=directory,
            expected="NAME-SPLIT.array_record-00000-of-00010 for all files, or for "
            "none",
            got=some_of(others),
            cure="index one dataset at a time, with a narrower pattern; or "
            "give --split to put all files into one split",
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
                cure="index them one at a time, with a narrower pattern and --split; or"
                " give --split to put all files into one split",
            )


class IndexedShard(NamedTuple):
    """A file whose index is written.

    Attributes:
        task: The file.
        report: Its counts.
        writer_options: The options with which it was written.
    """

    task: IndexTask
    report: ShardReport
    writer_options: str

    def gather(self, gathered: Gathered) -> None:
        """Adds the report to its split, and notes the file's writer options."""
        split = self.task.split
        gathered.rows.setdefault(split, ShardCollector()).add(self.report)
        gathered.notes["task"][split] = self.task
        gathered.notes["writer_options"][split, self.writer_options] = True

    @property
    def done(self) -> Done:
        """The work done, for progress and metrics."""
        report, said = self.report, f"{self.report.read.records} records indexed"
        size = self.task.file_bytes
        return Done(report.path, said, size, report.read, report.counts())


def index_shard(task: IndexTask) -> IndexedShard:
    """Reads a whole file, and writes its index.

    It compares the hash of every chunk, so damaged files get no index; nor do files
    that the loader could not read.

    Memory: 1 MiB of the file (up to 4 MiB decoded), or one chunk if that is larger, and
    some 20 bytes per record.

    Raises:
        CorruptShardError: The file is damaged or not an ArrayRecord file.
        InputError: It is of another format.
        TransposedChunkError: It has transposed chunks.
    """
    storage = storage_for(task.dataset)
    path = layout.join(task.dataset, task.file)
    index_path = layout.join(task.dataset, layout.index_path(task.file))
    seen = version_of(index_path)
    info = storage.stat(path)
    size = 0 if info is None else info.size_bytes
    try:
        footer = stored_footer(path, size)
    except CorruptShardError:
        # It may be of another format: of many files, only some were examined.
        files = [FileInfo(path, size)]
        check_formats(files, look_at(files), "arrayrecord")
        raise
    parts = [np.empty(0, np.uint32)]
    digest = RecordsDigest()
    file_crc = 0
    version = None if info is None else info.version
    with storage.open(path, version=version) as file:
        for data, chunks in walk_file(file, footer, path=path, size_bytes=size):
            file_crc = google_crc32c.extend(file_crc, data)
            if chunks is None:
                continue
            records = chunks.decode(hashed=True)
            count = len(records)
            crcs = np.fromiter(map(google_crc32c.value, records), np.uint32, count)
            lengths = np.fromiter(map(len, records), np.int64, count)
            digest += RecordsDigest.of(crcs, lengths)
            parts.append(crcs)
    decoded = int(footer.chunk_decoded_bytes.sum())
    if digest.raw_bytes != decoded:
        raise CorruptShardError(
            "the records of this ArrayRecord file are not as long as its footer says",
            where=path,
            expected=f"{decoded:,} bytes",
            got=f"{digest.raw_bytes:,}",
            cure="restore the file from a copy, or write it again",
        )
    report = ShardReport(
        path=task.file,
        shard_index=task.shard,
        job=INDEXED_JOB,
        file_bytes=size,
        file_crc32c=file_crc,
        read=digest,
        written=digest,
    )
    crc32cs = np.concatenate(parts)
    index = encode_index(footer=footer, crc32cs=crc32cs, report=report)
    storage.write(index_path, index, replaces=seen)
    return IndexedShard(task, report, footer.writer_options)


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexJob:
    """The job of indexing.

    Attributes are as for `plan_index`; `keep_replaced` keeps replaced splits, for a
    rollback.
    """

    files: tuple[str, ...]
    name: str | None = None
    split: str | None = None
    overwrite: bool = False
    keep_replaced: bool = False

    step = staticmethod(index_shard)

    def begin(self) -> Begun[IndexTask]:
        """Finds the files."""
        tasks = plan_index(
            self.files, name=self.name, split=self.split, overwrite=self.overwrite
        )
        files, size = len(tasks), int(tasks.listing.sizes.sum())
        _log.info("%s: %d files listed, %d bytes", tasks.dataset, files, size)
        return Begun(
            label="indexing",
            noun="files",
            tasks=tasks,
            parts=files,
            stored_bytes=size,
            sources=self.files,
            sink=tasks.dataset,
        )

    def commit(self, indexed: Gathered) -> Manifest:
        """Makes the directory a dataset.

        An existing split of the same files stays as it is.

        Raises:
            DataLossError: An index is gone.
            JobChangedError: Another command has changed one of the splits meanwhile.
        """
        if not indexed.rows:
            raise ValueError("no file was indexed")
        task: IndexTask = next(iter(indexed.notes["task"].values()))
        dataset, name = task.dataset, task.name
        kept: dict[str, Split] = {}
        made: dict[Write, Split] = {}
        for split in sorted(indexed.rows):
            options = {o for s, o in indexed.notes["writer_options"] if s == split}
            write = Write(output=dataset, name=name, split=split)
            output = Output.read(write, replaces=self.overwrite)
            old = output.there
            table, encoding = indexed.rows[split].table(), " | ".join(sorted(options))
            if old is not None and _is_made_of(old, table, encoding, self.files):
                kept[layout.write_key(split, old.write)] = old
                continue
            text = json.dumps([table.shards_digest, encoding, list(self.files)])
            content = hashlib.sha256(text.encode()).hexdigest()
            write = output.next_write(content, replaces=True, plain=False)
            made[write] = write_table(
                *(write, table),
                writer_options=encoding,
                source={"indexed": list(self.files)},
            )
        check_files(dataset, kept)
        manifest = commit_dataset(
            *(dataset, name, made), keep_replaced=self.keep_replaced
        )
        for key, one in (
            kept | {write.key: one for write, one in made.items()}
        ).items():
            _log.info(
                "%s: committed; split %s: %d records in %d shards",
                *(dataset, key, one.records, one.shards),
            )
        return manifest


def _is_made_of(
    split: Split, table: ShardTable, writer_options: str, inputs: Sequence[str]
) -> bool:
    """Returns whether a split is the result of an index of the same files."""
    encoded = table.encode()
    return (
        len(split.parts) == 1
        and (split.table_bytes, split.table_crc32c)
        == (len(encoded), google_crc32c.value(encoded))
        and split.writer_options == writer_options
        and split.source.get("indexed") == list(inputs)
    )
