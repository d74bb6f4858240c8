"""Where a record's frame began; test_locate.py of the loader has whole datasets."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.dataset.metadata.provenance import (
    DamagedRegion,
    frame_offset,
    frame_offsets,
)
from gristmill.dataset.metadata.shard_report import SourceSpan

SPAN = SourceSpan(
    file_index=0, begin_bytes=5, end_bytes=90, start_bytes=10, stop_bytes=110, records=3
)


def region(begin: int, end: int, *, compressed: bool = False) -> DamagedRegion:
    return DamagedRegion(
        path="f", begin_bytes=begin, end_bytes=end, compressed=compressed
    )


@pytest.mark.parametrize(
    ("lengths", "regions", "expected"),
    [
        ([4, 40, 8], [], [10, 30, 86]),
        ([4, 39, 8], [], None),
        ([4, 30, 8], [region(30, 40)], [10, 40, 86]),
        ([4, 30, 8], [region(10, 15), region(105, 110)], [15, 35, 81]),
        ([4, 30, 8], [region(15, 20), region(35, 40)], None),
        ([4, 30, 8], [region(10, 12), region(12, 20)], [20, 40, 86]),
        ([4, 40, 8], [region(10, 20)], None),
        ([4, 40, 8], [region(200, 300), region(0, 10)], [10, 30, 86]),
        ([4, 40, 8], [region(30, 80, compressed=True)], [10, 30, 86]),
    ],
)
@pytest.mark.parametrize("cuts", [[1, 2], [], [2], [1]])
def test_frames_and_regions_fill_the_range_or_are_unknown(
    lengths, regions, expected, cuts
):
    runs = [[len(part), sum(part)] for part in np.split(lengths, cuts)]
    for record in range(3):
        offset = frame_offset(
            SPAN,
            record,
            np.array(runs, np.int64),
            lengths_of=lambda first, stop: lengths[first:stop],
            regions=regions,
        )
        assert offset == (None if expected is None else expected[record])
    found = frame_offsets(SPAN, np.array(lengths), regions)
    assert (None if found is None else found.tolist()) == expected
