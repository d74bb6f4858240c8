"""Indexes of a dataset in object storage: each fetched once per host, into a file.

The files are mapped, so that all processes of a host share them. A file has its name
only when it is whole and checked; two processes do not fetch the same one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from gristmill.dataset.errors import CorruptShardError, GristmillError, StorageError
from gristmill.dataset.metadata.shard_index import ShardIndex, map_index, parse_index
from gristmill.loader.remote.object_reads import ByteRange
from gristmill.loader.remote.range_fetch import RangeFetcher

# How often to ask for an index that arrives damaged.
_TRIES = 3


def cache_root(cache_dir: str | None) -> str:
    """Returns the directory for files that spare a host requests.

    Args:
        cache_dir: The one that was asked for. By default `GRISTMILL_CACHE_DIR`, or
            else one of this user's under `TMPDIR`.

    Raises:
        StorageError: It cannot be made, or belongs to somebody else.
    """
    root = cache_dir or os.environ.get("GRISTMILL_CACHE_DIR")
    own = root is None
    if root is None:
        root = os.path.join(tempfile.gettempdir(), f"gristmill-{os.getuid()}")
    with explained(root):
        os.makedirs(root, mode=0o700 if own else 0o777, exist_ok=True)
        found = os.stat(root, follow_symlinks=not own)
    if own and (found.st_uid != os.getuid() or not stat.S_ISDIR(found.st_mode)):
        raise StorageError(
            "directory for indexes belongs to somebody else",
            where=root,
            cure="give a directory of your own as cache_dir, or as GRISTMILL_CACHE_DIR",
        )
    return root


@contextlib.contextmanager
def explained(path: str) -> Iterator[None]:
    """Turns an error of the local disk into one that says what to do."""
    try:
        yield
    except GristmillError:
        raise
    except OSError as e:
        raise StorageError(
            "cannot keep a file that was fetched",
            where=path,
            got=os.strerror(e.errno) if e.errno else str(e),
            cure="free some space, or give another directory as cache_dir"
            if e.errno in (errno.ENOSPC, errno.EDQUOT)
            else "give another directory as cache_dir",
        ) from e


@contextlib.contextmanager
def locked(path: str) -> Iterator[None]:
    """Keeps other processes and threads out; ends with the process that holds it."""
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # A process that was forked meanwhile has the descriptor, too.
            fcntl.flock(file, fcntl.LOCK_UN)


def write_whole(path: str, data: bytes) -> None:
    """Writes a file that has its name only when it is whole."""
    temporary = f"{path}.{secrets.token_hex(4)}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


class IndexCache:
    """Indexes of one dataset, in a directory of this host.

    Args:
        directory: Theirs alone: its name comes from the content of the dataset.
        paths: Where each index is.
        file_crc32cs: Of each shard: an index knows the one of its own.
        fetcher: What reads them.
    """

    def __init__(
        self,
        directory: str,
        *,
        paths: Sequence[str],
        file_crc32cs: npt.NDArray[np.uint32],
        fetcher: Callable[[], RangeFetcher],
    ):
        self._directory, self._paths = directory, paths
        self._file_crc32cs, self._fetcher = file_crc32cs, fetcher
        with explained(directory):
            os.makedirs(directory, exist_ok=True)

    def open(self, shards: Sequence[int]) -> list[ShardIndex]:
        """Returns indexes of shards, fetched together if they are not here yet.

        Raises:
            InvalidDatasetError: An index is damaged.
            CorruptShardError: It is the index of another shard.
            StorageError: It cannot be read, or not be kept.
        """
        missing = [shard for shard in shards if not os.path.exists(self._local(shard))]
        if missing:
            with explained(self._directory), locked(f"{self._directory}/lock"):
                self._fetch([s for s in missing if not os.path.exists(self._local(s))])
        return [self._map(shard) for shard in shards]

    def _local(self, shard: int) -> str:
        return f"{self._directory}/{shard:08d}.index"

    def _map(self, shard: int) -> ShardIndex:
        try:
            return map_index(self._local(shard))
        except GristmillError:
            # Deleted or damaged since it was written here: worth another copy.
            with explained(self._directory), locked(f"{self._directory}/lock"):
                self._fetch([shard])
            return map_index(self._local(shard))

    def _fetch(self, shards: Iterable[int]) -> None:
        damaged = list(shards)
        for tries in range(1, _TRIES + 1):
            damaged = self._fetch_once(damaged, last=tries == _TRIES)

    def _fetch_once(self, shards: list[int], *, last: bool) -> list[int]:
        """Returns those that arrived damaged; the last time it raises."""
        damaged = []

        def take(number: int, data: bytes) -> None:
            shard = shards[number]
            try:
                self._check(shard, data)
            except GristmillError:
                if last:
                    raise
                damaged.append(shard)
            else:
                write_whole(self._local(shard), data)

        self._fetcher().fetch([ByteRange(self._paths[i]) for i in shards], take)
        return damaged

    def _check(self, shard: int, data: bytes) -> None:
        index = parse_index(data, path=self._paths[shard])
        index.check()
        expected, got = int(self._file_crc32cs[shard]), index.report().file_crc32c
        if got != expected:
            raise CorruptShardError(
                "index is not the one of its shard",
                where=self._paths[shard],
                expected=f"of a shard with crc32c {expected:#010x}",
                got=f"of one with {got:#010x}",
                cure="restore the index from a copy, or convert this shard again",
            )
