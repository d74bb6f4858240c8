"""Opens plain ArrayRecord files, whose footers are read once, in parallel.

It has the options of reading that hold for all that `open` opens.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Sequence

import numpy as np

from gristmill.dataset.base.errors import (
    InputError,
    InvalidDatasetError,
    NotADatasetError,
)
from gristmill.loader.base.indices import IntArray
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.reading.batch_reader import BatchReader, Verify
from gristmill.loader.reading.cached_footers import footer_cache
from gristmill.loader.reading.shard_list import CountedFile, ShardList, count_files
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
    footers = footer_cache(how.cache_dir)
    counted = count_files(paths, footers=footers)
    counts = np.array([count.records for count in counted], np.int64)
    shards = ShardList(
        paths=paths,
        starts=np.zeros_like(counts),
        ends=checked_ends(counts, paths[0]),
        file_records=counts,
        file_bytes=np.array([count.file_bytes for count in counted], np.int64),
        name=patterns[0] if len(patterns) == 1 else f"{paths[0]} and others",
        footers=footers,
    )
    return _open_counted(shards, how, counted)


def _open_counted(
    shards: ShardList, how: HowToRead, counted: Sequence[CountedFile] = ()
) -> Dataset:
    """Returns the dataset of plain files that were counted, perhaps just now."""
    reader = how.reader(shards)
    reader.open_shards.keep(
        {i: one.opened for i, one in enumerate(counted) if one.opened}
    )
    # The counts travel along, so that a worker reads no footer that it does not need.
    return Dataset(
        path=shards.paths[0],
        reader=reader,
        reopen=functools.partial(_reopened, shards, how),
    )


def _reopened(shards: ShardList, how: HowToRead, content: object) -> Dataset:
    del content  # The counts of each file are compared when it is read.
    return _open_counted(shards, how)
