"""`ReadRecords`: the records of inputs of any format that a conversion reads."""

from __future__ import annotations

import dataclasses
import glob
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam

from gristmill.dataset.base.errors import DataLossError, InputError, some_of
from gristmill.dataset.formats.file_names import check_joined
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.storage.paths import StrPath, path_text, path_texts
from gristmill.transforms.beam.display import displayed
from gristmill.transforms.beam.job_metrics import counter
from gristmill.transforms.beam.lineage import report_sources
from gristmill.transforms.beam.pipeline_input import check_begin, check_known, set_types
from gristmill.transforms.beam.record_coder import register
from gristmill.transforms.directories.hugging_face_directory import (
    is_repository,
    repository_jobs,
)
from gristmill.transforms.directories.tfds_directory import (
    is_tfds_directory,
    read_tfds_directory,
)
from gristmill.transforms.planning.shard_plan import SourceRange, check_positive
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import FORMATS, RecordOptions
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.shards.source_split import find_split, is_dataset
from gristmill.transforms.sources.source_of import source_of

_log = logging.getLogger(__name__)

DEFAULT_RANGE_BYTES = 64 << 20  # 64 MiB


class PlacedRecord(NamedTuple):
    """A record and where it comes from.

    Attributes:
        file: The file's path.
        place: Where it is in the file: the byte at which it begins in the decompressed
            file, or the number of the row or record, as docs/prepare/inputs.md says
            for each format.
        record: The record.
    """

    file: str
    place: int
    record: bytes


register(PlacedRecord)


class _FileRange(NamedTuple):
    """A range of a file that begins and ends at records."""

    file: InputFile
    begin_bytes: int
    end_bytes: int  # -1: the end of a compressed file.


@dataclasses.dataclass(frozen=True)
class _Listed:
    """What is to be listed, and how. Called with the inputs when the pipeline runs."""

    split: str | None
    records: RecordOptions
    allow_empty_files: bool

    def __call__(self, inputs: tuple[str, ...]) -> Iterator[InputFile]:
        report_sources(inputs)
        for files in self._splits(inputs):
            yield from files.first(len(files))

    def _splits(self, inputs: tuple[str, ...]) -> Iterator[InputFiles]:
        directory = inputs[0].rstrip("/") or "/"
        if len(inputs) == 1 and is_dataset(directory):
            names = sorted(open_manifest(directory).splits)
            for split in self._chosen(directory, names):
                yield find_split(directory, split, options=self.records)
        elif len(inputs) == 1 and is_repository(directory):
            asked = None if self.split is None else (self.split,)
            jobs = repository_jobs(
                directory, directory, name="input", splits=asked, records=self.records
            )
            for job in jobs:
                yield self._found(job.inputs)
        elif len(inputs) == 1 and is_tfds_directory(directory):
            splits = read_tfds_directory(directory).splits
            for name in self._chosen(directory, [*splits]):
                if splits[name].files:
                    pattern = splits[name].pattern
                    yield self._found((layout.join(glob.escape(directory), pattern),))
        else:
            if self.split is not None:
                raise InputError(
                    "files have no splits",
                    where=some_of(inputs),
                    got=f"split {self.split}",
                    cure="give a directory with splits, or leave the split out",
                )
            files = self._found(inputs)
            if notice := check_joined(inputs, files.paths):
                _log.warning("%s: %s", inputs[0], notice)
            yield files

    def _found(self, inputs: Sequence[str]) -> InputFiles:
        return find_inputs(
            inputs, options=self.records, allow_empty_files=self.allow_empty_files
        )

    def _chosen(self, directory: str, splits: Sequence[str]) -> Sequence[str]:
        if self.split is not None and self.split not in splits:
            raise InputError(
                "the input has no such split",
                where=directory,
                expected=f"one of {some_of(splits, 20)}",
                got=self.split,
                cure="choose one of these, or leave the split out to read all",
            )
        return splits if self.split is None else (self.split,)


def _cut(file: InputFile, range_bytes: int) -> Iterator[_FileRange]:
    if file.size_bytes:
        for begin, end in source_of(file.spec).cut(file, range_bytes=range_bytes):
            yield _FileRange(file, begin, end)


def _read_range(piece: _FileRange, with_source: bool) -> Iterator[Any]:
    file, begin_bytes, end_bytes = piece
    whole = SourceRange(
        file_index=0, begin_bytes=begin_bytes, end_bytes=end_bytes, exact=True
    )
    source = source_of(file.spec)
    reader = source.read(file, whole)
    records = counter("records-read")
    raw_bytes = counter("raw-bytes-read")
    for batch in reader.batches():
        records.inc(len(batch.records))
        raw_bytes.inc(sum(map(len, batch.records)))
        if with_source:
            for place, record in zip(batch.places, batch.records, strict=True):
                yield PlacedRecord(file.path, place, record)
        else:
            yield from batch.records
    span, last = reader.span, end_bytes in (-1, file.size_bytes)
    # Where places are no bytes, that they meet is a matter of the format's own cuts.
    sized = file.compression == "none" and FORMATS[source.spec.format].sized
    if not (span.stop_bytes == end_bytes if sized else span.whole or not last):
        raise DataLossError(
            "a range of an input file was not read to its end",
            where=f"{file.path}, range from byte offset {begin_bytes:,}",
            expected="the end of the file"
            if last
            else f"a range that ends at byte offset {end_bytes:,}",
            got=source.place_text(span.stop_bytes or 0),
            cure="do not write to the file while it is read, then run again",
        )


@dataclasses.dataclass
class ReadRecords(beam.PTransform[beam.pvalue.PBegin, beam.PCollection[bytes]]):
    """Reads inputs of any format that `gristmill convert` reads.

    Applied to a pipeline; gives a PCollection of `bytes`, or of `PlacedRecord`. Inputs
    are files of one format, which their first bytes tell: TFRecord, ArrayRecord,
    Parquet and so on; or a directory with splits: a dataset, a TFDS directory, a
    repository of Hugging Face. They are listed when the pipeline runs, and looked into
    by one worker. Rows become records as `RecordOptions` says.

    Guarantees: bounded; every record exactly once, since ranges are cut at records;
    records are compared with the checksums that their format has; damage fails the
    pipeline with file and place; nothing is written, so retries do no harm. The order
    of a range is kept within its bundle, and none beyond that: use `with_source` where
    it matters. Files are read by as many workers as they have ranges, compressed ones
    by one worker each; one worker goes through the headers of a TFRecord file to find
    its ranges. Memory per element in flight: as for a conversion of that format.

    Attributes:
        inputs: Paths or glob patterns of files, or one directory.
        split: The split of a directory to read; None for all.
        records: What is known of the inputs, and of the records to make of them.
        with_source: Whether to give the file and place of each record with it.
        range_bytes: Least bytes that a worker reads of a file that is split.
        allow_empty_files: Whether a file of 0 bytes is one without records, and not an
            interrupted copy.
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
            InputError: There is nothing to read, or a range would be empty.
        """
        super().__init__()
        set_types(self, gives=PlacedRecord if self.with_source else bytes)
        inputs = self.inputs
        if isinstance(inputs, (str, os.PathLike)):
            self._inputs: tuple[str, ...] = (path_text(inputs, "input"),)
        else:
            self._inputs = path_texts(inputs, "input")
        check_known(self)
        if not self._inputs or "" in self._inputs:
            raise InputError(
                "no inputs given",
                cure="give paths or patterns of files, or a directory",
            )
        check_positive(range_bytes=self.range_bytes)

    def display_data(self) -> dict[str, Any]:
        """Returns what a runner's page shows."""
        return displayed(
            input=self._inputs,
            split=self.split,
            range_bytes=self.range_bytes,
            with_source=self.with_source,
        )

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection[bytes]:
        """Builds the chain.

        Raises:
            InputError: It is applied to a PCollection.
        """
        check_begin(begin, "ReadRecords", "give the inputs as an argument")
        listed = _Listed(self.split, self.records, self.allow_empty_files)
        records: beam.PCollection[Any] = (
            begin
            | "Inputs" >> beam.Create([self._inputs])
            | "ListFiles" >> beam.FlatMap(listed)
            | "SpreadFiles" >> beam.Reshuffle()
            | "CutAtRecords" >> beam.FlatMap(_cut, self.range_bytes)
            | "SpreadRanges" >> beam.Reshuffle()
            | "ReadRanges"
            >> beam.FlatMap(_read_range, self.with_source).with_output_types(
                PlacedRecord if self.with_source else bytes
            )
        )
        return records
