"""`ReadAllTFRecords`, `ReadAllArrayRecords`: readers of what a PCollection names."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import apache_beam as beam

from gristmill.dataset.storage.paths import StrPath, path_text
from gristmill.transforms.beam.display import displayed
from gristmill.transforms.beam.pipeline_input import (
    check_collection,
    check_known,
    set_types,
)
from gristmill.transforms.beam.read_arrayrecords import ShardRecord, read_sources
from gristmill.transforms.beam.read_tfrecords import (
    DEFAULT_RANGE_BYTES,
    SourceRecord,
    read_matches,
)
from gristmill.transforms.planning.shard_plan import check_positive

# As Beam checks it where the pipeline is built.
_HintedPath: Any = str | os.PathLike


@dataclasses.dataclass(kw_only=True)
class ReadAllTFRecords(
    beam.PTransform[beam.PCollection[StrPath], beam.PCollection[bytes]]
):
    """Reads the TFRecord files that a PCollection of paths and patterns names.

    Applied to a PCollection of texts or `pathlib.Path`; gives a PCollection of `bytes`,
    or of `SourceRecord`. Files are read as `ReadTFRecords` reads them.

    Guarantees: those of `ReadTFRecords`, for each element: a file that two elements
    name is read twice. An element that matches nothing fails the pipeline, and so does
    one that matches files of several splits by their names. Records are in the window
    of their element.

    Attributes:
        with_source: Whether to give the file and offset of each record with it.
        range_bytes: Least bytes that a worker reads of a file that is split.
        allow_empty_files: Whether a file of 0 bytes is one without records, and not an
            interrupted copy.
    """

    with_source: bool = False
    range_bytes: int = DEFAULT_RANGE_BYTES
    allow_empty_files: bool = False

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            InputError: A range would be empty.
        """
        super().__init__()
        gives = SourceRecord if self.with_source else bytes
        set_types(self, takes=_HintedPath, gives=gives)
        check_known(self)
        check_positive(range_bytes=self.range_bytes)

    def display_data(self) -> dict[str, Any]:
        """Returns what a runner's page shows."""
        return displayed(range_bytes=self.range_bytes, with_source=self.with_source)

    def expand(self, patterns: beam.PCollection[StrPath]) -> beam.PCollection[bytes]:
        """Builds the chain.

        Raises:
            InputError: It is not applied to a PCollection.
        """
        check_collection(patterns, "ReadAllTFRecords", "patterns")
        return read_matches(
            patterns | "Patterns" >> beam.Map(lambda path: (path_text(path, "input"),)),
            with_source=self.with_source,
            range_bytes=self.range_bytes,
            allow_empty_files=self.allow_empty_files,
        )


@dataclasses.dataclass(kw_only=True)
class ReadAllArrayRecords(
    beam.PTransform[beam.PCollection[StrPath], beam.PCollection[bytes]]
):
    """Reads the datasets or ArrayRecord files that a PCollection names.

    Applied to a PCollection of texts or `pathlib.Path`: directories of datasets, paths
    or patterns of files. Gives a PCollection of `bytes`, or of `ShardRecord`. They are
    read as `ReadArrayRecords` reads them.

    Guarantees: those of `ReadArrayRecords`, for each element: a file that two elements
    name is read twice. An element that matches nothing fails the pipeline, and so does
    one that matches files of several splits by their names. Records are in the window
    of their element.

    Attributes:
        split: The split to read of each; then all elements must be datasets.
        with_index: Whether to give the file and number of each record with it.
        range_bytes: About how many bytes of a file a worker reads.
    """

    split: str | None = None
    with_index: bool = False
    range_bytes: int = DEFAULT_RANGE_BYTES

    def __post_init__(self) -> None:
        """Checks the options.

        Raises:
            InputError: A range would be empty.
        """
        super().__init__()
        gives = ShardRecord if self.with_index else bytes
        set_types(self, takes=_HintedPath, gives=gives)
        check_known(self)
        check_positive(range_bytes=self.range_bytes)

    def display_data(self) -> dict[str, Any]:
        """Returns what a runner's page shows."""
        return displayed(
            split=self.split, range_bytes=self.range_bytes, with_index=self.with_index
        )

    def expand(self, sources: beam.PCollection[StrPath]) -> beam.PCollection[bytes]:
        """Builds the chain.

        Raises:
            InputError: It is not applied to a PCollection.
        """
        check_collection(sources, "ReadAllArrayRecords", "datasets or patterns")
        paths = sources | "Sources" >> beam.Map(path_text, "dataset or files")
        return read_sources(
            paths,
            split=self.split,
            with_index=self.with_index,
            range_bytes=self.range_bytes,
        )
