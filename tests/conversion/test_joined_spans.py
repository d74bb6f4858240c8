"""Spans in columns against spans one by one: they join, or they do not."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.dataset.base.errors import DataLossError
from gristmill.dataset.metadata.shard_report import ShardReport, SourceSpan
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.transforms.conversion.commit_shards import check_spans
from gristmill.transforms.sources.input_files import InputFiles
from tests.support.shards import report


def files_of(sizes: list[int], compressed: list[bool]) -> InputFiles:
    return InputFiles(
        paths=[f"/in/{file}" for file in range(len(sizes))],
        sizes=np.array(sizes, np.int64),
        versions=["1"] * len(sizes),
        compressions=np.array(compressed, np.uint8),
        noted_ns=np.zeros(len(sizes), np.int64),
    )


@st.composite
def conversions(draw) -> tuple[InputFiles, list[ShardReport]]:
    """Draws files, the cuts in them and where frames begin; then changes one number."""
    sizes = draw(st.lists(st.integers(0, 12), min_size=1, max_size=4))
    compressed = [bool(size) and draw(st.booleans()) for size in sizes]
    spans: list[SourceSpan] = []
    for file, size in enumerate(sizes):
        cuts = [] if compressed[file] else draw(st.sets(st.integers(1, 11)))
        edges = [0, *sorted(cut for cut in cuts if cut < size), size]
        begins = {0, size, *draw(st.sets(st.integers(0, 12)))}
        for begin, end in itertools.pairwise(edges):
            start = min(frame for frame in begins if frame >= begin)
            stop = min(frame for frame in begins if frame >= end)
            here = start < end
            if begin < end:
                spans.append(
                    SourceSpan(
                        file_index=file,
                        begin_bytes=begin,
                        end_bytes=-1 if compressed[file] else end,
                        start_bytes=start if here else None,
                        stop_bytes=stop if here else None,
                        records=1,
                        whole=compressed[file],
                    )
                )
    if spans and draw(st.booleans()):
        number = draw(st.integers(0, len(spans) - 1))
        change: dict[str, Any] = draw(
            st.sampled_from(
                [
                    {"start_bytes": 3},
                    {"start_bytes": None, "stop_bytes": None},
                    {"stop_bytes": 5},
                    {"end_bytes": 9},
                    {"whole": False},
                ]
            )
        )
        spans[number] = dataclasses.replace(spans[number], **change)
    reports = []
    while spans or not reports:
        taken = draw(st.integers(0, 3)) if reports or spans else 0
        reports.append(
            dataclasses.replace(
                report(len(reports), spans=0), spans=tuple(spans[:taken])
            )
        )
        del spans[:taken]
    return files_of(sizes, compressed), reports


def joins(reports: list[ShardReport], files: InputFiles) -> bool:
    """Follows the spans of each file one by one."""
    reached: dict[int, tuple[int, bool]] = {}
    for span in itertools.chain.from_iterable(one.spans for one in reports):
        before, _ = reached.get(span.file_index, (0, False))
        if span.start_bytes is None or span.stop_bytes is None:
            # No frame begins here: right if the frame before reaches over it.
            if not before >= span.end_bytes >= 0:
                return False
        elif span.start_bytes != before:
            return False
        else:
            reached[span.file_index] = span.stop_bytes, span.whole
    for file, size in enumerate(files.sizes.tolist()):
        stop, whole = reached.get(file, (0, False))
        if not (stop == size if files.sized[file] else whole or not size):
            return False
    return True


@pytest.mark.slow
@settings(max_examples=200)
@given(conversions())
def test_columns_say_what_spans_one_by_one_say(drawn):
    files, reports = drawn
    columns = ShardTable.of(reports).columns
    if joins(reports, files):
        check_spans(columns, files)
    else:
        with pytest.raises(DataLossError):
            check_spans(columns, files)
