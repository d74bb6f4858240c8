"""The spans of all shards of a conversion meet, as each followed one by one does."""

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

CHANGES: list[dict[str, Any]] = [
    *({"start_bytes": 3}, {"start_bytes": None, "stop_bytes": None}),
    *({"stop_bytes": 5}, {"end_bytes": 9}, {"whole": False}),
]


def files_of(sizes: list[int], compressed: list[bool]) -> InputFiles:
    return InputFiles(
        paths=[f"/in/{file}" for file in range(len(sizes))],
        sizes=np.array(sizes, np.int64),
        versions=["1"] * len(sizes),
        compressions=np.array(compressed, np.uint8),
        noted_ns=np.zeros(len(sizes), np.int64),
    )


def span(file: int, begin: int, end: int, start: int, stop: int) -> SourceSpan:
    """Returns a span whose frames begin and end somewhere; -1 is a compressed end."""
    here = start < stop
    return SourceSpan(
        file_index=file,
        begin_bytes=begin,
        end_bytes=end,
        start_bytes=start if here else None,
        stop_bytes=stop if here else None,
        records=1,
        whole=end < 0,
    )


def check(files: InputFiles, reports: list[ShardReport]) -> None:
    check_spans(ShardTable.of(reports).columns, files)


def made_of(number: int, spans: list[SourceSpan]) -> ShardReport:
    return dataclasses.replace(report(number, spans=0), spans=tuple(spans))


@pytest.mark.parametrize("change", [1, -1])
def test_a_wrong_begin_is_refused_with_the_place_and_the_cure(change):
    files = files_of([9000], [False])
    first = made_of(0, [span(0, 0, 5000, 0, 5010)])
    check(files, [first, made_of(1, [span(0, 5000, 9000, 5010, 9000)])])
    wrong = made_of(1, [span(0, 5000, 9000, 5010 + change, 9000)])
    with pytest.raises(DataLossError, match="do not meet") as caught:
        check(files, [first, wrong])
    assert caught.value.where == "/in/0"
    assert "byte offset 5,010" in caught.value.expected
    assert f"byte offset {5010 + change:,}" in caught.value.got
    assert "--whole-files" in caught.value.cure


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
            if begin < end:
                last = -1 if compressed[file] else end
                spans.append(span(file, begin, last, start, stop))
    if spans and draw(st.booleans()):
        number = draw(st.integers(0, len(spans) - 1))
        change = draw(st.sampled_from(CHANGES))
        spans[number] = dataclasses.replace(spans[number], **change)
    reports: list[ShardReport] = []
    while spans or not reports:
        taken = draw(st.integers(0, 3))
        reports.append(made_of(len(reports), spans[:taken]))
        del spans[:taken]
    return files_of(sizes, compressed), reports


def joins(reports: list[ShardReport], files: InputFiles) -> bool:
    """Follows the spans of each file one by one."""
    reached: dict[int, tuple[int, bool]] = {}
    for one in itertools.chain.from_iterable(each.spans for each in reports):
        before, _ = reached.get(one.file_index, (0, False))
        if one.start_bytes is None or one.stop_bytes is None:
            # No frame begins here: right if the frame before reaches over it.
            if not before >= one.end_bytes >= 0:
                return False
        elif one.start_bytes != before:
            return False
        else:
            reached[one.file_index] = one.stop_bytes, one.whole
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
    if joins(reports, files):
        check(files, reports)
    else:
        with pytest.raises(DataLossError):
            check(files, reports)
