"""A drop-in for `grain.sources.ArrayRecordDataSource` that reads whole batches."""

from __future__ import annotations

import hashlib
import logging
import multiprocessing
import operator
import os
import re
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, Self, SupportsIndex, runtime_checkable

import numpy as np

from gristmill.dataset.base.errors import InputError, NotADatasetError, RecordKeyError
from gristmill.dataset.formats.file_formats import check_joined
from gristmill.dataset.metadata.tfds import match_shards
from gristmill.dataset.storage.paths import StrPath, has_magic, path_text
from gristmill.loader.data.open_dataset import counted_shards
from gristmill.loader.reading.batch_reader import BatchReader
from gristmill.loader.reading.host_cache import cache_dir_text, footer_cache
from gristmill.loader.reading.read_plan import Verify
from gristmill.loader.reading.shard_list import ShardList


def allow_unparsed_flags() -> None:
    """Lets Grain start worker processes in a script that never parses absl's flags.

    Grain reads a flag when it starts workers, which raises before flags are parsed.
    After this call flags have their defaults; a script can still parse them later.
    """
    flags = sys.modules.get("absl.flags")
    if flags is not None and not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()


_THREAD_NAME = "gristmill-worker-end"


def end_with_trainer() -> None:
    """Ends this process with its parent, if it is a worker process of Grain.

    Grain's workers wait for a trainer that was killed, and hold their memory meanwhile.
    """
    process = multiprocessing.current_process()
    parent = multiprocessing.parent_process()
    watched = any(thread.name == _THREAD_NAME for thread in threading.enumerate())
    if parent is None or watched or not process.name.startswith("grain-process"):
        return

    def wait() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait, name=_THREAD_NAME, daemon=True).start()


_log = logging.getLogger(__name__)

_SLICE = re.compile(r"(.*)\[(\d+):(\d+)\]", re.DOTALL)


@runtime_checkable
class FileInstruction(Protocol):
    """A part of a file, as TFDS describes it: records [skip, skip + take)."""

    filename: Any
    skip: int
    take: int
    examples_in_shard: int


class ArrayRecordDataSource(Sequence[bytes]):
    """The records of ArrayRecord files, by number, in the order of the files.

    Each record of a file that gristmill has converted or indexed is compared with its
    checksum; for other files, the hash of each chunk is compared, as the official
    reader does.

    Args:
        paths: A path or pattern, `PATH[START:END]` for a range of its records, an
            object like TFDS's FileInstruction, or a list of these. Files given with a
            range are not opened before they are read.
        verify: As in `gristmill.loader.open`.
        cache_dir: As in `gristmill.loader.open`.

    Raises:
        InputError: `paths` is none of these, a range ends before it starts, or a
            pattern matches files of several splits.
        NotADatasetError: A pattern matches no file.
    """

    def __init__(
        self,
        paths: Any,
        *,
        verify: Verify | None = None,
        cache_dir: StrPath | None = None,
    ):
        allow_unparsed_flags()
        footers = footer_cache(cache_dir_text(cache_dir))
        items = _as_list(paths)
        parts = [part for item in items for part in _parts_of(item)]
        if notice := check_joined(items, [path for path, _, _ in parts]):
            _log.warning("ArrayRecordDataSource: %s", notice)
        shards, opened = counted_shards(
            parts, footers=footers, name="ArrayRecordDataSource"
        )
        self.__setstate__((shards, verify))
        self._reader.open_shards.keep(opened)

    @property
    def paths(self) -> list[str]:
        """The files, in order."""
        return list(self._shards.paths)

    def __len__(self) -> int:
        return self._shards.records

    def __getitem__(self, record_key: Any) -> Any:
        return self.__getitems__([record_key])[0]

    def __getitems__(self, record_keys: Sequence[SupportsIndex]) -> list[bytes]:
        """Returns records by their numbers, all at once.

        Raises:
            RecordKeyError: There is no such record; negative numbers are refused.
            CorruptShardError: A file does not hold what was written.
        """
        keys = [operator.index(key) for key in record_keys]
        if keys and not 0 <= min(keys) <= max(keys) < len(self):
            raise RecordKeyError(
                "record key is out of range",
                expected=f"0 <= key < {len(self)}",
                got=next(key for key in keys if not 0 <= key < len(self)),
                cure="give keys from 0 to the length of the source, exclusive",
            )
        return self._reader.read(np.array(keys, np.int64))

    def _getitems(self, indices: Sequence[int]) -> list[bytes]:
        """The batched read that Grain calls."""
        return self.__getitems__(indices)

    def __iter__(self) -> Iterator[bytes]:
        step = 1024
        for begin in range(0, len(self), step):
            yield from self.__getitems__(range(begin, min(begin + step, len(self))))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._reader.close()

    def __repr__(self) -> str:
        joined = "".join(self._shards.paths).encode("utf-8", "surrogateescape")
        digest = hashlib.sha1(joined, usedforsecurity=False).hexdigest()
        return f"ArrayRecordDataSource(hash_of_paths={digest})"

    def __getstate__(self) -> tuple[Any, ...]:
        allow_unparsed_flags()
        return self._shards, self._verify

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._shards: ShardList
        end_with_trainer()
        self._shards, self._verify = state
        self._reader = BatchReader(self._shards, verify=self._verify)


def _as_list(paths: Any) -> list[Any]:
    kinds = (str, os.PathLike, FileInstruction)
    items = [paths] if isinstance(paths, kinds) else paths
    if (
        not isinstance(items, Sequence)
        or not items
        or not all(isinstance(item, kinds) for item in items)
    ):
        raise InputError(
            "these are not the paths of a data source",
            expected="a path or a file instruction, or a list of one or more",
            got=f"{type(paths).__name__} {paths!r:.100}",
            cure="give paths as texts, or the file instructions of TFDS",
        )
    return list(items)


def _parts_of(item: Any) -> list[tuple[str, int, int | None]]:
    """Returns the files, each with its range of records: to None for all."""
    if isinstance(item, FileInstruction):
        path, start = path_text(item.filename, "file"), operator.index(item.skip)
        end = start + operator.index(item.take)
    elif match := _SLICE.fullmatch(path_text(item, "file")):
        path, start, end = match[1], int(match[2]), int(match[3])
    else:
        path = path_text(item, "file")
        if not has_magic(path):
            return [(path, 0, None)]
        if found := match_shards(path):
            return [(info.path, 0, None) for info in found]
        raise NotADatasetError(
            "no such file", where=path, cure="check the path or pattern"
        )
    if not 0 <= start <= end < 1 << 62:
        raise InputError(
            "range of records is negative, or ends before it starts",
            where=path,
            expected="0 <= start <= end",
            got=f"{start} to {end}",
            cure="correct the [start:end] of the path, or the file instruction",
        )
    return [(path, start, end)]
