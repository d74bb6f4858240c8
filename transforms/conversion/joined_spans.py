"""Whether all that was read joins to whole files: millions of spans at a time."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.transforms.sources.input_files import InputFiles


def spans_join(table: ShardTable, files: InputFiles) -> bool:
    """Tells whether the spans of each file follow one another, from begin to end.

    If not, `close_gaps` finds what is wrong, one span after the other.

    Args:
        table: Of all shards, in order.
        files: The inputs.
    """
    columns = table.columns
    span_files = columns["span_file"]
    if len(span_files) and not 0 <= span_files.min() <= span_files.max() < len(files):
        return False
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
    last = np.zeros(len(files), np.int64)
    whole = np.zeros(len(files), bool)
    # Of several values for one place, the last stays.
    last[of_file[holds_frames]] = stops[holds_frames]
    whole[of_file[holds_frames]] = columns["span_whole"][order][holds_frames]
    at_end = np.where(files.sized, last == files.sizes, whole | (files.sizes == 0))
    return bool(fits.all() and at_end.all())


def _stop_before(
    stops: npt.NDArray[np.int64],
    holds_frames: npt.NDArray[np.bool_],
    begins_file: npt.NDArray[np.bool_],
) -> npt.NDArray[np.int64]:
    """Returns where the last span with frames before each one stops, 0 for none."""
    rows = np.arange(len(stops))
    last = np.maximum.accumulate(np.where(holds_frames, rows, -1))
    before = np.append([-1], last)[:-1]
    first = np.maximum.accumulate(np.where(begins_file, rows, 0))
    return np.where(before >= first, stops[before], 0)
