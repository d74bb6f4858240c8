"""The protocol of sources: the interface of every input format.

A plan cuts the line of all stored bytes, from the sizes of files alone. A source knows
which records lie in a range of them: those that begin there. So every format is cut by
the same plan, made into shards by the same code, and proved to be whole by the same
spans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.damage import DamageHandler
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from gristmill.transforms.sources.forward_pass import KeptPass
from gristmill.transforms.sources.input_files import InputFile, InputFiles


class RangeReader(Protocol):
    """Reads the records of one range of a file, in order.

    Attributes:
        path: The file.
        ahead_bytes: The result of `open_ahead`.
    """

    path: str
    ahead_bytes: int

    @property
    def span(self) -> SourceSpan:
        """The span that was read: complete once all records were read."""

    def open_ahead(self) -> int:
        """Begins to fetch the range if the storage is remote.

        Returns:
            The maximum number of bytes that wait in memory.
        """

    def batches(self) -> Iterator[RecordBatch]:
        """Yields the good records.

        Raises:
            CorruptRecordError: The range is damaged, and damage is an error.
            FalseStartError: The range, entered by search, seems to be damaged.
            StorageChangedError: The file was written meanwhile.
        """


def span_of(
    source: SourceRange,
    *,
    start: int | None,
    stop: int | None,
    records: int,
    whole: bool,
) -> SourceSpan:
    """Returns the span read of a range; see `SourceSpan`."""
    return SourceSpan(
        file_index=source.file_index,
        begin_bytes=source.begin_bytes,
        end_bytes=source.end_bytes,
        start_bytes=start,
        stop_bytes=stop,
        records=records,
        whole=whole,
    )


class PartCount(NamedTuple):
    """The good records of a part of a file.

    Attributes:
        start: The place of the first; None if no record begins in the part.
        stop: The place after the last.
        records: Number of records.
        offsets: The stored bytes at which records 0, stride, 2 * stride, ... can be
            entered; only the first if others cannot.
    """

    start: int | None
    stop: int
    records: int
    offsets: Sequence[int]


class Source(Protocol):
    """One format of input files, and the making of records from it."""

    spec: SourceSpec

    def read(
        self,
        file: InputFile,
        source: SourceRange,
        *,
        on_damage: DamageHandler | None = None,
        first_place: int | None = None,
        cuts: Sequence[int] = (),
        kept: KeptPass | None = None,
    ) -> RangeReader:
        """Returns a reader of one range of a file.

        Args:
            file: The file.
            source: The range.
            on_damage: Takes damaged regions; None makes them errors.
            first_place: The place of the first record of a range that is not exact, if
                known, to avoid a search.
            cuts: All places where a compressed file is cut, in bytes as stored.
            kept: Holds the pass of an earlier range in the same compressed file or row
                group, and takes that of this one. By default the file or row group is
                read from its start.
        """

    def count(
        self,
        file: InputFile,
        source: SourceRange,
        *,
        stride_records: int,
        on_damage: DamageHandler | None = None,
        first_place: int | None = None,
    ) -> PartCount:
        """Counts the good records of a part of a file; arguments are as in `read`."""

    def cut(self, file: InputFile, *, range_bytes: int) -> Iterator[tuple[int, int]]:
        """Yields ranges of a file that begin and end at records, in order.

        Args:
            file: The file.
            range_bytes: Minimum stored bytes of a range, except the last.
        """

    def holds(self, span: SourceSpan, raw_bytes: int) -> bool:
        """Returns whether the records of a range fill the places that it covers.

        Called only if nothing was damaged. A source that cannot tell returns True.

        Args:
            span: The reader's span of the range.
            raw_bytes: The lengths of all its records, added.
        """

    def described(self) -> dict[str, Any]:
        """Returns the facts about the inputs for `dataset.json`, besides their list."""

    def features(self) -> dict[str, Any] | None:
        """Returns the features of the records, as from `features.encode_features`.

        None if records are plain bytes.
        """

    def place_text(self, place: int) -> str:
        """Returns the name of a place in messages, such as `byte offset 1,234`."""


class SourceModule(Protocol):
    """The interface of a format's module."""

    def make_source(self, spec: SourceSpec) -> Source:
        """Returns the source of a spec."""

    def find_spec(self, files: InputFiles, options: RecordOptions) -> SourceSpec:
        """Returns the rules for making records from listed files.

        Raises:
            InputError: The options are not for this format, or the files do not fit
                them.
            MissingPackageError: A package of an extra is missing.
        """
