"""A check that the records read of a range are complete, once each, in order.

The reader of a range says which places of a file it has taken, and how many records
were there. What came out of it is counted again here: a fault between the two, in any
format, is an error of the conversion and no lost record.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import DataLossError
from gristmill.dataset.formats.streams.record_batch import RecordBatch
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.sources.source import SkippedRegions, Source, source_of


class SpanCheck:
    """Follows the records of one range.

    Args:
        source: Source of the file's format.
        path: The file.
        skipped: What takes damaged regions, if they are accepted.
    """

    def __init__(self, source: Source, path: str, skipped: SkippedRegions | None):
        self._source, self._path, self._skipped = source, path, skipped
        self._regions = self._regions_now()
        self._last = -1
        self._records = self._raw_bytes = 0

    def _regions_now(self) -> int:
        if self._skipped is None:
            return 0
        return len(self._skipped.found) + self._skipped.passed

    def follow(self, batch: RecordBatch) -> npt.NDArray[np.int64]:
        """Takes records that were read, and returns their places: int64 [records].

        Raises:
            DataLossError: They are not in order, or there is one twice.
        """
        places = np.array(batch.places, np.int64)
        rising = np.diff(places, prepend=self._last) > 0
        if not rising.all() or not len(places) == len(batch.records) == len(
            batch.crc32cs
        ):
            at = int(np.argmin(rising))
            raise self._lost(
                "records of an input came twice, or in another order",
                expected=f"a place after {self._source.place_text(self._last)}",
                got=f"{self._source.place_text(int(places[at]))}",
            )
        self._last = int(places[-1]) if len(places) else self._last
        self._records += len(places)
        self._raw_bytes += sum(map(len, batch.records))
        return places

    def add(self, copied: RecordsDigest) -> None:
        """Takes records that were copied with their chunks."""
        self._records += copied.records
        self._raw_bytes += copied.raw_bytes

    def finish(self, span: SourceSpan) -> None:
        """Compares the records with what their reader says of the range.

        Raises:
            DataLossError: They are others, or not as many as the range can hold.
        """
        damaged = self._regions_now() != self._regions
        if span.records != self._records:
            raise self._lost(
                "records were lost or added while an input was read",
                expected=f"{span.records:,} records of {span}",
                got=f"{self._records:,}",
            )
        if not damaged and not self._source.holds(span, self._raw_bytes):
            raise self._lost(
                "the records of an input do not fill the range that they are from",
                expected=f"all of {span}",
                got=f"{self._records:,} records with {self._raw_bytes:,} bytes",
            )

    def _lost(self, what: str, *, expected: str, got: str) -> DataLossError:
        return DataLossError(
            what,
            where=self._path,
            expected=expected,
            got=got,
            cure="run again; if it repeats, please report it",
        )


def check_spans(columns: Mapping[str, npt.NDArray[Any]], files: InputFiles) -> None:
    """Checks that the spans of each file follow one another, from begin to end.

    Args:
        columns: Those of the spans in the table of all shards, in order.
        files: The inputs.

    Raises:
        DataLossError: Two do not meet, or a file was not read to its end.
    """
    span_files = columns["span_file"]
    order = np.argsort(span_files, kind="stable")
    of_file = span_files[order]
    starts = columns["span_start_bytes"][order]
    stops = columns["span_stop_bytes"][order]
    ends = columns["span_end_bytes"][order]
    holds_frames = (starts >= 0) & (stops >= 0)
    begins_file = np.diff(of_file, prepend=-1) > 0
    reached = _stop_before(stops, holds_frames, begins_file)
    # Without a frame in it: right if the frame before reaches over it. Where a
    # compressed file ends, its size does not tell; nor does that of a table.
    fits = np.where(
        holds_frames,
        starts == reached,
        (reached >= ends) & (ends >= 0) & files.sized[of_file],
    )
    place_text = source_of(files.spec).place_text
    if not fits.all():
        at = int(np.argmin(fits))
        raise DataLossError(
            "two ranges of an input file do not meet",
            where=files.paths[int(of_file[at])],
            expected=f"a range from {place_text(int(reached[at]))} on",
            got=f"one from {place_text(int(starts[at]))} on"
            if holds_frames[at]
            else f"none up to {place_text(int(ends[at]))}",
            cure="give --whole-files: the search for a record went wrong where the "
            "file is cut, in a record that holds frames of TFRecord, or in damage",
        )
    last = np.zeros(len(files), np.int64)
    whole = np.zeros(len(files), bool)
    # Of several values for one place, the last stays.
    last[of_file[holds_frames]] = stops[holds_frames]
    whole[of_file[holds_frames]] = columns["span_whole"][order][holds_frames]
    at_end = np.where(files.sized, last == files.sizes, whole | (files.sizes == 0))
    if not at_end.all():
        file = int(np.argmin(at_end))
        raise DataLossError(
            "an input file was not read to its end",
            where=files.paths[file],
            expected=f"{int(files.sizes[file]):,} bytes",
            got=place_text(int(last[file])),
            cure="make sure that no process writes to it, then convert again",
        )


def _stop_before(
    stops: npt.NDArray[np.int64],
    holds_frames: npt.NDArray[np.bool_],
    begins_file: npt.NDArray[np.bool_],
) -> npt.NDArray[np.int64]:
    """Returns where the last span with frames before each one stops, or 0."""
    rows = np.arange(len(stops))
    last = np.maximum.accumulate(np.where(holds_frames, rows, -1))
    before = np.append([-1], last)[:-1]
    first = np.maximum.accumulate(np.where(begins_file, rows, 0))
    return np.where(before >= first, stops[before], 0)
