"""The files of a dataset, or of patterns, to be read as ArrayRecords."""

from __future__ import annotations

import glob
import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.formats.file_formats import check_joined
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import read_split_table
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.metadata.tfds import match_shards
from gristmill.dataset.storage.lookup import has_file, storage_for

_log = logging.getLogger(__name__)


class ListedShard(NamedTuple):
    """A file to be read.

    Attributes:
        path: Its path.
        size_bytes: Its size.
        dataset_chars: Length of the part of the path that is its dataset's directory,
            slash included; 0 without a dataset.
        records: Number of its records, from the dataset.
        file_crc32c: Its checksum, from the dataset.
    """

    path: str
    size_bytes: int
    dataset_chars: int = 0
    records: int | None = None
    file_crc32c: int | None = None

    @property
    def index_path(self) -> str | None:
        """Its index, if it belongs to a dataset."""
        if not self.dataset_chars:
            return None
        dataset, shard = (
            self.path[: self.dataset_chars],
            self.path[self.dataset_chars :],
        )
        return dataset + layout.index_path(shard)


def list_shards(source: Sequence[str], split: str | None) -> Iterator[ListedShard]:
    """Yields the shards of a dataset, or the files that patterns match.

    Args:
        source: One dataset, or paths and patterns.
        split: The split of a dataset, or one edition of it; None for all.

    Raises:
        NotADatasetError: A single path is neither a file nor a dataset.
        InputError: A pattern matches nothing or files of several splits, or there is
            no such split.
    """
    if len(source) == 1 and _is_dataset(source[0]):
        yield from _shards_of_dataset(source[0], split)
        return
    if split is not None:
        raise InputError(
            "files have no splits",
            where=some_of(source),
            got=f"split {split}",
            cure="give the directory of a dataset, or leave the split out",
        )
    found: dict[str, int] = {}
    for pattern in source:
        matches = match_shards(pattern)
        if not matches:
            raise InputError(
                "no ArrayRecord file matches", where=pattern, cure="check the path"
            )
        found.update((info.path, info.size_bytes) for info in matches)
    if notice := check_joined(source, found):
        _log.warning("%s: %s", source[0], notice)
    for path in sorted(found):
        yield ListedShard(path, found[path])


def _is_dataset(source: str) -> bool:
    """Returns whether a source is a dataset, committed or not."""
    if has_file(source, layout.DATASET_JSON):
        return True
    return not glob.has_magic(source) and storage_for(source).stat(source) is None


def _shards_of_dataset(dataset: str, split: str | None) -> Iterator[ListedShard]:
    manifest = open_manifest(dataset)
    if split is not None and manifest.find(split) is None:
        raise InputError(
            "no such split",
            where=dataset,
            expected=some_of(sorted(manifest.splits), 20),
            got=split,
            cure="give one of these as split, or none to read all",
        )
    for name in sorted(manifest.splits) if split is None else (split,):
        table = read_split_table(dataset, manifest, name)
        for number, path in enumerate(table.paths):
            whole = layout.join(dataset, path)
            yield ListedShard(
                whole,
                int(table.file_bytes[number]),
                len(whole) - len(path),
                int(table.records[number]),
                int(table.file_crc32cs[number]),
            )
