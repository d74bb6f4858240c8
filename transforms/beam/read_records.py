"""`ReadRecords`: the records of inputs of any format that a conversion reads."""

from __future__ import annotations

import dataclasses
import glob
import logging
from collections.abc import Iterator, Sequence

import apache_beam as beam

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.formats.file_formats import check_joined
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.storage.lookup import has_file
from gristmill.dataset.storage.paths import StrPath, path_texts
from gristmill.transforms.beam.job_metrics import report_sources
from gristmill.transforms.beam.pipeline_input import check_begin
from gristmill.transforms.beam.read_ranges import (
    DEFAULT_RANGE_BYTES,
    FileRange,
    Reader,
    read_ranges,
)
from gristmill.transforms.directories.hugging_face_directory import (
    is_repository,
    repository_inputs,
)
from gristmill.transforms.directories.tfds_directory import (
    read_tfds_directory,
)
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.shards.source_split import find_split
from gristmill.transforms.sources.source import source_of

_log = logging.getLogger(__name__)


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
        if len(inputs) == 1 and has_file(directory, layout.DATASET_JSON):
            names = sorted(open_manifest(directory).splits)
            for split in self._chosen(directory, names):
                yield find_split(directory, split, options=self.records)
        elif len(inputs) == 1 and is_repository(directory):
            asked = None if self.split is None else (self.split,)
            for patterns in repository_inputs(directory, splits=asked).values():
                yield self._found(patterns)
        elif len(inputs) == 1 and has_file(directory, layout.TFDS_INFO_JSON):
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


def _cut(file: InputFile, range_bytes: int) -> Iterator[FileRange]:
    if file.size_bytes:
        for begin, end in source_of(file.spec).cut(file, range_bytes=range_bytes):
            yield FileRange(file, begin, end)


@dataclasses.dataclass
class ReadRecords(Reader, beam.PTransform[beam.pvalue.PBegin, beam.PCollection[bytes]]):
    """Reads inputs of any format that `gristmill convert` reads.

    Applied to a pipeline; gives a PCollection of `bytes`, or of `SourceRecord`. Inputs
    are files of one format, recognised by their first bytes: TFRecord, ArrayRecord,
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
        range_bytes: Minimum bytes that a worker reads of a file that is split.
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
            InputError: There is nothing to read, a range would be empty, or records are
                to be selected.
        """
        super().__init__()
        self._inputs = path_texts(self.inputs, "input")
        self._check(self.with_source)
        if self.records.select:
            raise InputError(
                "ReadRecords selects no records",
                got=f"select={self.records.select!r}",
                cure="write those that fulfil the condition with ConvertFiles, and "
                "read them",
            )
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
        check_begin(begin, "ReadRecords", "give the inputs as an argument")
        listed = _Listed(self.split, self.records, self.allow_empty_files)
        ranges = (
            begin
            | "Inputs" >> beam.Create([self._inputs])
            | "ListFiles" >> beam.FlatMap(listed)
            | "SpreadFiles" >> beam.Reshuffle()
            | "CutAtRecords" >> beam.FlatMap(_cut, self.range_bytes)
        )
        return read_ranges(ranges, with_source=self.with_source)
