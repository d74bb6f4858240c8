"""Parquet as a format of inputs: rows are cut anywhere, and counted by footers."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any, Unpack

from gristmill.dataset.base.errors import CorruptRecordError
from gristmill.dataset.formats.parquet.parquet_file import ParquetFile
from gristmill.dataset.metadata.features import encode_features
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.formats import SourceSpec
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.parquet.parquet_range import ParquetRange
from gristmill.transforms.sources.parquet.table_records import (
    features_of_spec,
    find_spec,
)
from gristmill.transforms.sources.source import ReadOptions, ReadRequest, Source

__all__ = ["ParquetSource", "find_spec", "make_source"]


def make_source(spec: SourceSpec) -> Source:
    """Returns the source of a spec."""
    return ParquetSource(spec)


class ParquetSource(Source):
    """Parquet files; see `Source` for what its methods do."""

    place_noun = "row"

    def read(
        self, file: InputFile, source: SourceRange, **options: Unpack[ReadOptions]
    ) -> ParquetRange:
        """Returns a reader of one range of a file."""
        return ParquetRange(ReadRequest(file, source, **options), self.spec)

    def cut(self, file: InputFile, *, range_bytes: int) -> Iterator[tuple[int, int]]:
        """Yields ranges of a file that begin with row groups, in order."""
        cuts: list[int] = []
        # A damaged file has one range: its reader reports the damage.
        with contextlib.suppress(CorruptRecordError), _open(file) as table:
            cuts += table.places.cuts(range_bytes)
        yield from itertools.pairwise((0, *cuts, file.size_bytes))

    def holds(self, span: SourceSpan, raw_bytes: int) -> bool:
        """Returns whether there is a record for each row of the range."""
        del raw_bytes
        if span.start_bytes is None or span.stop_bytes is None:
            return False
        rows = span.stop_bytes - span.start_bytes
        return rows == span.records or (
            self.spec.nulls == "skip" and rows > span.records
        )

    def described(self) -> dict[str, Any]:
        """Returns the facts about the inputs for `dataset.json`, besides their list."""
        columns = {"columns": list(self.spec.columns)} if self.spec.columns else {}
        return {"format": self.spec.format, "record": self.spec.record, **columns}

    def features(self) -> dict[str, Any] | None:
        """Returns the features of records, None if they are bytes of one column."""
        return encode_features(features_of_spec(self.spec)) or None


def _open(file: InputFile) -> ParquetFile:
    return ParquetFile(file.path, file.size_bytes, file.version)
