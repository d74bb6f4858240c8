"""A range of an input file to read, and what the readers of all formats share."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from gristmill.dataset.arrayrecord.shard_copier import ShardCopier
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.daemon_call import daemon_call
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import StorageChangedError
from gristmill.dataset.base.places import Int64, Places
from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.storage.base import changed_error
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.prefetch_reader import BLOCK_BYTES
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.skipped import SkippedRegions

Opened = TypeVar("Opened")


class _Pass(Protocol):
    def close(self) -> None: ...


class KeptPass:
    """Keeps the pass over a file or a row group, from range to range."""

    def __init__(self) -> None:
        self._kept: _Pass | None = None
        self._file = -1
        self._reached = 0

    def has(self, source: SourceRange) -> bool:
        """Returns whether the kept pass has not yet passed the start of a range."""
        return source.file_index == self._file and self._reached <= source.begin_bytes

    def take(self, source: SourceRange) -> Any:
        """Returns the pass in which a range can be read, None if there is none."""
        if not self.has(source):
            return None
        kept, self._kept, self._file = self._kept, None, -1
        return kept

    def keep(self, done: _Pass, source: SourceRange) -> None:
        """Keeps a pass in which a range was read."""
        self.close()
        self._kept, self._file = done, source.file_index
        self._reached = source.end_bytes

    def close(self) -> None:
        """Closes the file of the pass that is kept."""
        if self._kept is not None:
            self._kept.close()
        self._kept, self._file = None, -1


class ReadRequest(NamedTuple):
    """A range of a file, and how it is to be read.

    Attributes:
        file: The file.
        source: The range.
        skipped: Takes damaged regions; None makes them errors.
        cuts: All places where a compressed file is cut, in bytes as it is stored.
        kept: Has the pass of a range before in the same file or row group, and gets
            that of this one. By default that is read from its start.
    """

    file: InputFile
    source: SourceRange
    skipped: SkippedRegions | None = None
    cuts: Sequence[int] = ()
    kept: KeptPass | None = None


class RangeReader(abc.ABC, Generic[Opened]):
    """Reads the records of one range of a file, in order.

    Attributes:
        path: The file.
        ahead_bytes: The result of `open_ahead`.
        left_out: Digest of the records that are read and not taken.
    """

    def __init__(self, request: ReadRequest):
        self._file, self._source, self._skipped = request[:3]
        self._kept = request.kept
        self.path = request.file.path
        self.ahead_bytes = 0
        self.left_out = RecordsDigest()
        self._coming: Callable[[], Opened] = self._open
        self._start: int | None = None
        self._stop: int | None = None
        self._records = 0
        self._whole = False

    @property
    def stored_places(self) -> Places | None:
        """The sources of all records of an open shard, if its index has them."""
        return None

    def origins(self, files: InputFiles, places: Int64) -> Places:
        """Returns the sources of records of the range.

        Args:
            files: All files of the job.
            places: int64 [records], their places in the file.
        """
        return files.origins(self._source.file_index, places, self.stored_places)

    @property
    def span(self) -> SourceSpan:
        """The span that was read: complete once all records were read."""
        return SourceSpan(
            file_index=self._source.file_index,
            begin_bytes=self._source.begin_bytes,
            end_bytes=self._source.end_bytes,
            start_bytes=self._start,
            stop_bytes=self._stop,
            records=self._records,
            whole=self._whole,
        )

    def open_ahead(self) -> int:
        """Begins to fetch the range if the storage is remote.

        Returns:
            The maximum number of bytes that wait in memory.
        """
        goes_on = self._kept is not None and self._kept.has(self._source)
        if storage_for(self.path).remote and not goes_on:
            self._coming = self._begin_open()
            self.ahead_bytes = self._waiting_bytes()
        return self.ahead_bytes

    def _begin_open(self) -> Callable[[], Opened]:
        """Begins to open the range; what it returns waits until that is done."""
        return daemon_call(self._open, thread_name="gristmill-range").result

    def _waiting_bytes(self) -> int:
        """Returns how many bytes at most wait once the range is open."""
        source = self._source
        end = self._file.size_bytes if source.end_bytes < 0 else source.end_bytes
        return min(end - source.begin_bytes, BLOCK_BYTES)

    def taken(self, batch: RecordBatch) -> RecordBatch:
        """Returns the records of a batch that are taken, and counts the others."""
        return batch

    @abc.abstractmethod
    def _open(self) -> Opened:
        """Opens the range."""

    @abc.abstractmethod
    def batches(self) -> Iterator[RecordBatch]:
        """Yields the good records, about a mebibyte at a time.

        Raises:
            CorruptInputError: The range is damaged, and there is no `skipped`.
            InputError: The file has other columns than the other files.
            StorageChangedError: The file was written meanwhile.
        """

    def copy(
        self, copier: ShardCopier, options: WriterOptions
    ) -> tuple[RecordsDigest, Int64] | None:
        """Appends the records to a shard, in the chunks that they are in.

        Args:
            copier: What writes the shard.
            options: Encoding of the shard.

        Returns:
            Their digest, and the place of each taken record in the file: int64
            [taken]. None, with nothing appended, if they are encoded otherwise.

        Raises:
            CorruptShardError: The range is damaged.
            TransposedChunkError: It holds transposed chunks.
            StorageChangedError: The file was written meanwhile.
        """
        del copier, options
        return None  # Only shards have such chunks.

    def _check_unchanged(self) -> None:
        """Checks that the file was not written while it was read.

        Raises:
            StorageChangedError: It was.
        """
        file, storage = self._file, storage_for(self.path)
        # An object is read by its version. A local file can be written in place: then
        # a part of what was read is old, and every checksum is right.
        if file.version is None or storage.remote:
            return
        found = storage.stat(file.path)
        expected = file.size_bytes, file.version
        if found is None or (found.size_bytes, found.version) != expected:
            raise changed_error(
                file.path,
                expected=f"{file.version}, {file.size_bytes:,} bytes",
                got=f"{found.version}, {found.size_bytes:,} bytes" if found else "",
                what="file was written again while it was read",
            )
        if file.noted_ns and found.noted_ns != file.noted_ns:
            raise StorageChangedError(
                "file changed while it was read, its size and time did not",
                where=file.path,
                expected="no change noted by the system (ctime)",
                got="one: other content, permissions or links",
                cure="run the same command again: it compares the records that "
                "finished shards were made of, and keeps the shards if they are the "
                "same",
            )
