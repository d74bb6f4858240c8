"""Sources of records: the interface of a format, and the readers of its ranges.

A plan cuts the line of all stored bytes, from the sizes of files alone. A source knows
which records lie in a range of them: those that begin there. So every format is cut by
the same plan, made into shards by the same code, and proved to be whole by the same
spans.
"""

from __future__ import annotations

import abc
import functools
import importlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, cast

from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    CorruptInputError,
    CorruptRecordError,
    MissingPackageError,
    some_of,
)
from gristmill.dataset.base.places import Int64, Places
from gristmill.dataset.base.system import daemon_call
from gristmill.dataset.formats.streams import RecordBatch
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_files import ShardPlace
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.storage.base import changed_error
from gristmill.dataset.storage.lookup import storage_for
from gristmill.dataset.storage.prefetch_reader import BLOCK_BYTES
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.formats import (
    FORMATS,
    TFRECORD,
    RecordOptions,
    SourceSpec,
)
from gristmill.transforms.sources.input_files import InputFile, InputFiles


class SkippedRegions:
    """Collects the damaged regions of inputs, in order.

    Args:
        limit: Maximum number of regions; None for any number.

    Attributes:
        found: The fields of a line for each.
        bytes: Size of all regions.
    """

    def __init__(self, limit: int | None = None):
        self._limit = limit
        self.found: list[dict[str, Any]] = []
        self.bytes = 0

    def add(
        self,
        error: CorruptRecordError,
        path: str,
        *,
        region: tuple[int, int],
        rows: tuple[int, int] | None = None,
        compressed: bool = False,
    ) -> None:
        """Adds a region.

        Args:
            error: The fault, with its place.
            path: The file.
            region: Its bytes, half-open; empty where only rows are known.
            rows: Its rows, half-open, if the file is a table.
            compressed: Whether these are bytes of a compressed file as stored.

        Raises:
            CorruptInputError: There are more regions than allowed.
        """
        begin, end = region
        self.bytes += end - begin
        last = self.found[-1] if self.found else {}
        if rows and (last.get("reason"), last.get("end_bytes")) == ("chunk", begin):
            last["end_bytes"], last["end_row"] = end, rows[1]  # It goes on.
            return
        line = {
            "file": path,
            "begin_bytes": begin,
            "end_bytes": end,
            "compressed": compressed,
            "reason": error.reason,
            "detail": error.detail,
        }
        if error.line is not None:
            line["line"] = error.line
        if rows is not None:
            line["begin_row"], line["end_row"] = rows
        self.found.append(line)
        if self._limit is not None and len(self.found) > self._limit:
            where = f"{error.where or path} ({error.detail})"
            found = len(self.found)
            raise too_much_damage(found, self._limit, where=where) from error

    def publish(self, place: ShardPlace) -> None:
        """Writes the lines of a shard, or removes those of an earlier attempt."""
        name = layout.errors_path(place.path)
        path, version = layout.join(place.output, name), place.version(name)
        storage = storage_for(place.output)
        if self.found:
            text = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in self.found)
            # Names of files can hold bytes that are not UTF-8, as in `dataset.json`.
            data = text.encode("utf-8", "backslashreplace")
            storage.write(path, data, replaces=version)
        elif version:
            storage.delete(path, version=version)


def too_much_damage(found: int, limit: int, *, where: str) -> CorruptInputError:
    """Returns the error for more damage than is allowed."""
    return CorruptInputError(
        "more damage in the inputs than --max-corrupt allows",
        where=where,
        expected=f"at most {limit:,} damaged regions",
        got=f"{found:,} or more",
        cure="check the regions listed in errors/, repair the inputs, or raise "
        "--max-corrupt; finished shards are kept",
    )


def nothing_read(where: str) -> CorruptInputError:
    """Returns the error for inputs that were skipped entirely."""
    return CorruptInputError(
        "no record of the inputs could be read: everything was left out",
        where=where,
        expected="at least one record",
        got="damage from the first byte of each file to its last, as files of another "
        "format look",
        cure="name the format with --input-format, and give --overwrite; or write the "
        "files again from their source",
    )


Opened = TypeVar("Opened")


class KeptPass:
    """Keeps the pass over a file or a row group, from range to range.

    A pass is any object with `close`.
    """

    def __init__(self) -> None:
        self._kept: Any = None
        self._file = -1
        self._reached = 0

    def has(self, source: SourceRange) -> bool:
        """Returns whether the kept pass has not yet passed the start of a range."""
        return source.file_index == self._file and self._reached <= source.begin_bytes

    def take(self, source: SourceRange) -> Any:
        """Removes and returns the pass that can read a range, None if there is none."""
        if not self.has(source):
            return None
        kept, self._kept, self._file = self._kept, None, -1
        return kept

    def keep(self, done: Any, source: SourceRange) -> None:
        """Keeps the pass that has read a range."""
        self.close()
        self._kept, self._file = done, source.file_index
        self._reached = source.end_bytes

    def close(self) -> None:
        """Closes the file of the pass that is kept."""
        if self._kept is not None:
            self._kept.close()
        self._kept, self._file = None, -1


class ReadRequest(NamedTuple):
    """A range of a file, with the options of reading it.

    Attributes:
        file: The file.
        source: The range.
        skipped: Collects damaged regions; None makes them errors.
        cuts: All cuts of a compressed file, in stored bytes.
        kept: Holds the pass over a file or row group between ranges. By default it is
            read from its start.
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
        left_out: Digest of the records that were read but not selected.
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

    @property
    def _end_bytes(self) -> int:
        """The planned end; that of the file where this is read from its start to it."""
        end = self._source.end_bytes
        return self._file.size_bytes if end < 0 else end

    def open_ahead(self) -> int:
        """Begins to fetch the range if the storage is remote.

        Returns:
            The maximum number of bytes that wait in memory.
        """
        goes_on = self._kept is not None and self._kept.has(self._source)
        if self._file.remote and not goes_on:
            self._coming = self._begin_open()
            self.ahead_bytes = self._waiting_bytes()
        return self.ahead_bytes

    def _begin_open(self) -> Callable[[], Opened]:
        """Begins to open the range; returns a function that waits for it."""
        return daemon_call(self._open, thread_name="gristmill-range").result

    def _waiting_bytes(self) -> int:
        """Returns the maximum number of bytes that wait once the range is open."""
        return min(self._end_bytes - self._source.begin_bytes, BLOCK_BYTES)

    def taken(self, batch: RecordBatch) -> RecordBatch:
        """Returns the selected records of a batch, and counts the others."""
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
        self, copier: ShardWriter, options: WriterOptions
    ) -> tuple[RecordsDigest, Int64] | None:
        """Appends the records to a shard by copying their chunks.

        Returns:
            Their digest, and the place of each selected record in the file: int64
            [selected]. None if the chunks have another encoding; nothing is appended
            then.

        Raises:
            CorruptShardError: The range is damaged.
            TransposedChunkError: It holds transposed chunks.
            StorageChangedError: The file was written meanwhile.
        """
        del copier, options
        return None  # Only shards have such chunks.

    def _check_unchanged(self) -> None:
        """Raises StorageChangedError if the file was written while it was read."""
        file = self._file
        # An object is read by its version. A local file can be overwritten in place, so
        # that old and new parts were read, all with valid checksums.
        if file.version is None or file.remote:
            return
        found = storage_for(file.path).stat(file.path)
        expected = f"{file.version}, {file.size_bytes:,} bytes"
        got = f"{found.version}, {found.size_bytes:,} bytes" if found else ""
        if found and got == expected and file.noted_ns not in (0, found.noted_ns):
            got += ", but other content, permissions or links (ctime)"
        if got != expected:
            what = "file was written again while it was read"
            raise changed_error(file.path, expected=expected, got=got, what=what)


class Source(abc.ABC):
    """One format of input files, which makes records of them.

    Attributes:
        place_noun: The noun for a place in messages.
    """

    place_noun = "byte offset"

    def __init__(self, spec: SourceSpec):
        self.spec = spec

    @classmethod
    def find_spec(cls, files: InputFiles, options: RecordOptions) -> SourceSpec:
        """Returns the rules for making records from listed files.

        Raises:
            InputError: The options are not for this format, or the files do not fit
                them.
            MissingPackageError: A package of an extra is missing.
        """
        del files
        return options.spec()

    @abc.abstractmethod
    def read(self, request: ReadRequest) -> RangeReader[Any]:
        """Returns a reader of one range of a file."""

    def cut(self, file: InputFile, *, range_bytes: int) -> Iterator[tuple[int, int]]:
        """Yields ranges of a file that begin and end at records; one by default.

        Args:
            file: The file.
            range_bytes: Minimum stored bytes of a range, except the last.
        """
        yield 0, file.size_bytes if file.compression == "none" else -1

    def holds(self, span: SourceSpan, raw_bytes: int) -> bool:
        """Returns whether the records of a range fill the places that it covers.

        It is called only if nothing was damaged. A source that cannot tell returns
        True; one whose places are numbers has a record, or a row left out, for each.

        Args:
            span: The reader's span of the range.
            raw_bytes: The lengths of all its records, added.
        """
        del raw_bytes
        if FORMATS[self.spec.format].sized:
            return True
        if span.start_bytes is None or span.stop_bytes is None:
            return False
        left_out = span.stop_bytes - span.start_bytes - span.records
        return left_out == 0 or (left_out > 0 and self.spec.nulls == "skip")

    def described(self) -> dict[str, Any]:
        """Returns the facts about the inputs for `dataset.json`, besides their list."""
        return {"format": self.spec.format, "record": self.spec.record}

    def features(self) -> dict[str, Any] | None:
        """Returns the features of the records, as from `features.encode_features`.

        None if records are plain bytes.
        """
        return None

    def notes(self) -> list[str]:
        """Returns notes for the user, such as on fractions that are rounded."""
        names = [
            name
            for name, spec in (self.features() or {}).items()
            if spec["kind"] == "float" and spec.get("type") == "double"
        ]
        if not names:
            return []
        return [
            f"fractions of {some_of(names)} are rounded to 32 bits, as a "
            "tf.train.Example holds them"
        ]

    def place_text(self, place: int) -> str:
        """Returns the name of a place in messages, such as `byte offset 1,234`."""
        return f"{self.place_noun} {place:,}"


def source_type(format_name: str) -> type[Source]:
    """Returns the source of a format, one of `FORMATS`.

    Raises:
        MissingPackageError: A package is missing that reads the format.
    """
    module, name = FORMATS[format_name].source.split(":")
    try:
        found = importlib.import_module(f"{__package__}.{module}")
    except ModuleNotFoundError as e:
        raise MissingPackageError.of(e) or e from e
    return cast(type[Source], getattr(found, name))


@functools.lru_cache(maxsize=64)
def source_of(spec: SourceSpec | None) -> Source:
    """Returns the source that makes records by a spec, by default `TFRECORD`."""
    spec = TFRECORD if spec is None else spec
    return source_type(spec.format)(spec)


# Bytes of the first read: a few records need less than the blocks of a conversion.
_FIRST_BYTES = 1 << 20


class NumberedRecord(NamedTuple):
    """A record of input files.

    Attributes:
        number: Its number among all records of the files, in their order.
        path: The file.
        place: Its place in the file, as in `RecordBatch.places`.
        place_text: The same for people, such as `byte offset 1,234`.
        record: The record.
    """

    number: int
    path: str
    place: int
    place_text: str
    record: bytes


def first_records(files: InputFiles, *, offset: int = 0) -> Iterator[NumberedRecord]:
    """Yields the records of files in order, as a conversion would write them.

    Args:
        files: The files.
        offset: Number of the first record to yield. Earlier ones are read as well.

    Raises:
        CorruptInputError: A file is damaged; earlier records are yielded first.
        StorageError: Reading failed.
    """
    source, begin = source_of(files.spec), 0
    for index in range(len(files)):
        file = files[index]
        for batch in _batches(file):
            end = begin + len(batch.records)
            for at in range(max(offset - begin, 0), len(batch.records)):
                place = batch.places[at]
                text = source.place_text(place)
                yield NumberedRecord(
                    begin + at, file.path, place, text, batch.records[at]
                )
            begin = end


def _batches(file: InputFile) -> Iterator[RecordBatch]:
    """Yields the records of a file, those of its first bytes first."""
    source, size, begin = source_of(file.spec), file.size_bytes, 0
    plain = file.compression == "none"
    if plain and FORMATS[source.spec.format].sized and size > _FIRST_BYTES:
        first = SourceRange(file_index=0, begin_bytes=0, end_bytes=_FIRST_BYTES)
        reader = source.read(ReadRequest(file, first))
        yield from reader.batches()
        begin = reader.span.stop_bytes or 0
    if begin < size:
        rest = SourceRange(
            file_index=0, begin_bytes=begin, end_bytes=size if plain else -1
        )
        yield from source.read(ReadRequest(file, rest)).batches()
