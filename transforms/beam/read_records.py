"""`ReadRecords` and `ReadAllRecords`: the records of inputs of any format.

    inputs -> files -> look -> gather -> parts -> cut or walk -> join -> ranges -> read

`ReadTFRecords` and `ReadArrayRecords` know the format and skip the look.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import apache_beam as beam

from gristmill.dataset.arrayrecord.writer_options import positive
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.storage.paths import StrPath, path_texts
from gristmill.transforms.beam.pipeline_input import (
    FieldsShown,
    check_begin,
    check_collection,
    check_known,
    set_types,
)
from gristmill.transforms.beam.read_ranges import (
    Listing,
    SourceRecord,
    by_file,
    cut_part,
    cut_walks,
    join_file,
    list_looked,
    list_looks,
    list_one,
    list_parts,
    read_range,
)
from gristmill.transforms.beam.run_job import gather
from gristmill.transforms.beam.same_code import sent
from gristmill.transforms.sources.find_inputs import look_at_part
from gristmill.transforms.sources.formats import RecordOptions

DEFAULT_RANGE_BYTES = 64 << 20  # 64 MiB
_PART_RANGES = 16  # Walking through a part takes seconds.


class _Reader(FieldsShown):
    """The steps and fields that all readers share."""

    split: str | None
    records: RecordOptions
    with_source: bool
    range_bytes: int
    allow_empty_files: bool
    _inputs: tuple[str, ...] | None = None  # None: elements of a PCollection name them.

    def _check(self) -> None:
        # As Beam checks it where the pipeline is built.
        takes: Any = str | os.PathLike if self._inputs is None else None
        transform: Any = self
        gives = SourceRecord if self.with_source else bytes
        set_types(transform, takes=takes, gives=gives)
        check_known(transform)
        positive("range_bytes", self.range_bytes)
        if self.records.select:
            raise InputError(
                "ReadRecords selects no records",
                got=f"select={self.records.select!r}",
                cure="write those that fulfil the condition with ConvertFiles, and "
                "read them",
            )

    def _listing(self, *, parts: bool) -> Listing:
        part_bytes = _PART_RANGES * self.range_bytes if parts else 0
        return Listing(self.split, self.records, self.allow_empty_files, part_bytes)

    def _read(self, parts: beam.PCollection[Any], how: Listing) -> Any:
        """Returns the records of parts of files."""
        found: beam.PCollection[Any] = (
            parts
            | "SpreadParts" >> beam.Reshuffle()
            | "Cut" >> beam.FlatMap(cut_part, self.range_bytes)
        )
        if how.may_walk:
            found = (
                found
                | "ByFile" >> beam.Map(by_file).with_output_types(tuple[bytes, Any])
                | "GatherFiles" >> beam.GroupByKey()
                | "JoinWalks" >> beam.FlatMap(join_file, self.range_bytes)
            )
        elif not how.part_bytes:
            found = found | "CutWalks" >> beam.FlatMap(_cut_alone, self.range_bytes)
        read = beam.FlatMap(read_range, self.with_source)
        gives = SourceRecord if self.with_source else bytes
        return (
            found
            | "SpreadRanges" >> beam.Reshuffle()
            | "ReadRanges" >> read.with_output_types(gives)
        )


def _cut_alone(found: Any, range_bytes: int) -> Any:
    return cut_walks([found], range_bytes)


@dataclasses.dataclass
class ReadRecords(
    _Reader, beam.PTransform[beam.pvalue.PBegin, beam.PCollection[bytes]]
):
    """Reads inputs of any format that `gristmill convert` reads.

    Apply it to a pipeline; it returns a PCollection of `bytes`, or of `SourceRecord`.
    Inputs are files of one format, recognised by their first bytes: TFRecord,
    ArrayRecord, Parquet and so on; or a directory with splits: a dataset, a TFDS
    directory, a Hugging Face repository. The running pipeline lists them, and all
    workers examine them. `RecordOptions` determines how rows become records.

    Guarantees: bounded; every record exactly once, since ranges are cut at records;
    records are compared with the checksums of their format or dataset; damage fails the
    pipeline and names file and place; nothing is written, so retries do no harm. The
    order of records is kept only within a range in its bundle; use `with_source` where
    it matters. A file is read by as many workers as it has ranges, a compressed file by
    one. Memory per element in flight: as for a conversion of that format.

    Attributes:
        inputs: Paths or glob patterns of files, or one directory.
        split: The split of a directory to read, or one edition of a dataset's split,
            such as `train.e00002`; None for all.
        records: The format of the inputs, and the records to make of them.
        with_source: Whether to return each record with its file and place.
        range_bytes: Minimum bytes of a range of a file that is cut.
        allow_empty_files: Whether to accept a file of 0 bytes as one without records,
            and not as an interrupted copy.
    """

    inputs: StrPath | Sequence[StrPath]
    _: dataclasses.KW_ONLY
    split: str | None = None
    records: RecordOptions = dataclasses.field(default_factory=RecordOptions)
    with_source: bool = False
    range_bytes: int = DEFAULT_RANGE_BYTES
    allow_empty_files: bool = False

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            InputError: There is nothing to read, a range would be empty, or records are
                to be selected.
        """
        super().__init__()
        self._inputs = path_texts(self.inputs, "input")
        self._check()
        if not self._inputs or "" in self._inputs:
            raise InputError(
                "no inputs given",
                cure="give paths or patterns of files, or a directory",
            )

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[bytes]:
        """Builds the chain.

        Raises:
            InputError: It is applied to a PCollection.
        """
        name = type(self).__name__
        check_begin(begin, name, "for a PCollection of patterns, use ReadAllRecords")
        how, inputs = self._listing(parts=True), self._inputs
        source = begin | "Inputs" >> beam.Create([inputs])
        if how.needs_looks:
            parts: beam.PCollection[Any] = (
                source
                | "ListFiles" >> beam.FlatMap(sent(list_looks, how))
                | "SpreadLooks" >> beam.Reshuffle()
                | "Look" >> beam.Map(look_at_part)
                | "Gather" >> gather()
                | "ListParts" >> beam.FlatMap(list_looked, inputs, how)
            )
        else:
            parts = source | "ListParts" >> beam.FlatMap(sent(list_parts, how))
        read: beam.PCollection[bytes] = self._read(parts, how)
        return read


class ReadTFRecords(ReadRecords):
    """`ReadRecords` of TFRecord files, plain or compressed with gzip, zlib or zstd.

    Memory per element in flight: two blocks of 1 MiB, or two records if they are
    larger; from a bucket also 16 MiB that are requested ahead.

    Args:
        patterns: A path or glob pattern, or several.
        with_source: Whether to return each record with its file and byte offset.
        range_bytes: Minimum bytes of a range of a file that is cut.
        allow_empty_files: Whether to accept a file of 0 bytes as one without records,
            and not as an interrupted copy.
    """

    def __init__(
        self,
        patterns: StrPath | Sequence[StrPath],
        *,
        with_source: bool = False,
        range_bytes: int = DEFAULT_RANGE_BYTES,
        allow_empty_files: bool = False,
    ):
        super().__init__(
            patterns,
            records=RecordOptions(input_format="tfrecord"),
            with_source=with_source,
            range_bytes=range_bytes,
            allow_empty_files=allow_empty_files,
        )


class ReadArrayRecords(ReadRecords):
    """`ReadRecords` of a committed dataset, or of ArrayRecord files from anywhere.

    Records of a dataset are compared with the checksums in its indexes; in other files
    the hash of each chunk is compared with its header. Every compression and group size
    is accepted, transposed chunks are refused. Memory per worker: 1 MiB of the file (up
    to 4 MiB decoded), or one chunk if that is larger, 16 MiB read ahead from object
    storage, and the footers and indexes of two shards: some 35 bytes per record.

    Args:
        source: The directory of a dataset; or paths or glob patterns of files.
        split: The split of a dataset to read, or one edition of it; None for all.
        with_source: Whether to return each record with its file and number.
        range_bytes: Approximate bytes of a range of a file.
    """

    def __init__(
        self,
        source: StrPath | Sequence[StrPath],
        *,
        split: str | None = None,
        with_source: bool = False,
        range_bytes: int = DEFAULT_RANGE_BYTES,
    ):
        super().__init__(
            source,
            split=split,
            records=RecordOptions(input_format="arrayrecord"),
            with_source=with_source,
            range_bytes=range_bytes,
        )


@dataclasses.dataclass(kw_only=True)
class ReadAllRecords(
    _Reader, beam.PTransform[beam.PCollection[StrPath], beam.PCollection[bytes]]
):
    """Reads the inputs that a PCollection of paths and patterns names.

    Apply it to a PCollection of `str` or `pathlib.Path`; it returns a PCollection of
    `bytes`, or of `SourceRecord`. Each element is read as by `ReadRecords`, but one
    worker lists and examines its files.

    Guarantees: those of `ReadRecords` for each element; a file that two elements name
    is read twice. An element fails the pipeline if it matches nothing, or files of
    several splits by their names. Records are in the window of their element.

    Attributes:
        split: The split of each directory to read; all elements must then be
            directories.
        records: The format of the inputs, and the records to make of them.
        with_source: Whether to return each record with its file and place.
        range_bytes: Minimum bytes of a range of a file that is cut.
        allow_empty_files: Whether to accept a file of 0 bytes as one without records,
            and not as an interrupted copy.
    """

    split: str | None = None
    records: RecordOptions = dataclasses.field(default_factory=RecordOptions)
    with_source: bool = False
    range_bytes: int = DEFAULT_RANGE_BYTES
    allow_empty_files: bool = False

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            InputError: A range would be empty, or records are to be selected.
        """
        super().__init__()
        self._check()

    def expand(self, patterns: beam.PCollection[StrPath]) -> beam.PCollection[bytes]:
        """Builds the chain.

        Raises:
            InputError: It is not applied to a PCollection.
        """
        check_collection(patterns, "ReadAllRecords", "paths or patterns")
        # Groups of an unbounded PCollection are never complete, so a file is one part
        # there.
        how = self._listing(parts=patterns.is_bounded)
        parts: beam.PCollection[Any] = patterns | "ListParts" >> beam.FlatMap(
            sent(list_one, how)
        )
        read: beam.PCollection[bytes] = self._read(parts, how)
        return read
