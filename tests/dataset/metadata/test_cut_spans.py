"""Spans that are cut at removed records: every other record keeps its place."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.metadata.cut_spans import cut_spans, places_of
from gristmill.dataset.metadata.provenance import DamagedRegion
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.metadata.sources import SourceFile


def made_span(
    file: int, kind: str, start: int, lengths: list[int], gaps: list[int]
) -> tuple[SourceSpan, list[int], list[DamagedRegion]]:
    """Returns a span, the place of each record, and what was set aside.

    There is a gap before each record, and one after the last; 0 is none.
    """
    at, places, regions = start, [], []
    for gap, length in itertools.zip_longest(gaps, lengths):
        if gap:
            rows = (at, at + gap) if kind == "parquet" else None
            regions.append(
                DamagedRegion(
                    path=f"f{file}",
                    begin_bytes=at,
                    end_bytes=at + gap,
                    compressed=False,
                    rows=rows,
                )
            )
        at += gap
        if length is not None:
            places.append(at)
            at += 16 + length if kind == "tfrecord" else 1
    span = SourceSpan(
        file_index=file,
        begin_bytes=start,
        end_bytes=at,
        start_bytes=start,
        stop_bytes=at,
        records=len(lengths),
    )
    return span, places, regions


def files_of(*kinds: str) -> list[SourceFile]:
    return [
        SourceFile(path=f"f{number}", compression="none", format=kind)
        for number, kind in enumerate(kinds)
    ]


@given(data=st.data())
@pytest.mark.parametrize("kind", ["tfrecord", "parquet", "arrayrecord"])
def test_every_kept_record_keeps_its_place(kind, data):
    counts = data.draw(st.lists(st.integers(0, 8), min_size=1, max_size=3))
    spans, places, regions, lengths = [], [], [], []
    for number, count in enumerate(counts):
        own = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
        most = 0 if kind == "arrayrecord" else 2
        gaps = st.lists(st.integers(0, most), min_size=count + 1, max_size=count + 1)
        start = data.draw(st.integers(0, 50))
        span, at, aside = made_span(number, kind, start, own, data.draw(gaps))
        spans.append(span)
        places += [(number, place) for place in at]
        regions += aside
        lengths += own
    files = files_of(*[kind] * len(counts))
    left = list(range(len(lengths)))
    # Once and again: a dataset of which records were removed may lose more.
    for _ in range(data.draw(st.integers(1, 3))):
        removed = (
            sorted(data.draw(st.sets(st.sampled_from(range(len(left))))))
            if left
            else []
        )
        spans = cut_spans(
            spans,
            np.array(removed, np.int64),
            np.array([lengths[n] for n in left], np.int64),
            files=files,
            regions=regions,
        )
        left = [n for row, n in enumerate(left) if row not in removed]
    assert sum(span.records for span in spans) == len(left)
    found, first = [], 0
    for span in spans:
        own = np.array([lengths[n] for n in left[first : first + span.records]])
        aside = [r for r in regions if r.path == f"f{span.file_index}"]
        at = places_of(span, own.astype(np.int64), kind, aside)
        assert at is not None
        assert not span.skipped_records
        found += [(span.file_index, place) for place in at.tolist()]
        first += span.records
    assert found == [places[n] for n in left]


def test_spans_stay_that_do_not_add_up():
    """A function has dropped records, or added some."""
    span, _, _ = made_span(0, "tfrecord", 0, [1, 2, 3], [0] * 4)
    about = {"files": files_of("tfrecord")}
    got = cut_spans([span], np.array([0]), np.ones(2, np.int64), **about)
    assert got == (span,)


def test_lengths_that_do_not_fit_are_told_from_those_that_do():
    span, _, _ = made_span(0, "tfrecord", 0, [1, 2, 3], [0] * 4)
    about = {"files": files_of("tfrecord")}
    got = cut_spans([span], np.array([1]), np.array([1, 2, 4]), **about)
    assert [part.skipped_records for part in got] == [0, 2]


def test_a_span_of_an_unknown_file_is_cut_by_its_records():
    span, _, _ = made_span(3, "tfrecord", 0, [1, 2, 3], [0] * 4)
    got = cut_spans([span], np.array([1]), np.array([1, 2, 3]), files=())
    assert [(part.records, part.skipped_records) for part in got] == [(1, 0), (1, 2)]
