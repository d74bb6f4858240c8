"""Histograms, compared with all records and documents."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

from gristmill import loader
from gristmill.pipelines.view.answers.addresses import ask
from gristmill.pipelines.view.answers.opened_datasets import Opened
from gristmill.pipelines.view.answers.sizes import Limits, histogram, sizes
from tests.pipelines.view.conftest import DOCUMENTS
from tests.support.datasets import convert
from tests.support.packed_datasets import tokens_of


def in_ranges(values: list[int], edges: list[int]) -> list[int]:
    return [
        sum(first <= value < stop for value in values)
        for first, stop in itertools.pairwise(edges)
    ]


def test_all_of_a_small_dataset_are_counted(opened, records) -> None:
    found = ask(opened, "api/sizes")
    assert found["document_tokens"] is None
    found = found["record_bytes"]
    lengths = [len(record) for record in records]
    assert found["exact"]
    assert found["sampled"] == found["of"] == sum(found["counts"]) == len(records)
    assert (found["min"], found["max"]) == (min(lengths), max(lengths))
    assert found["counts"] == in_ranges(lengths, found["edges"])


def test_some_of_a_large_one_are_counted(opened, records) -> None:
    few = Limits(all_records=50, seconds=0)
    found = sizes(Opened(opened.datasets), limits=few).record_bytes
    assert found is not None
    assert not found.exact
    assert 0 < found.sampled == sum(found.counts)
    assert found.of == len(records)


def test_lengths_of_documents_are_those_that_were_packed(packed) -> None:
    found = ask(packed, "api/sizes")["document_tokens"]
    # Those without a token are in no row.
    lengths = [n for n in (len(tokens_of(one)) for one in DOCUMENTS) if n]
    assert found["exact"]
    assert found["of"] == found["sampled"] == len(lengths)
    assert found["counts"] == in_ranges(lengths, found["edges"])
    assert found["mean"] == pytest.approx(np.mean(lengths))


def test_some_documents_have_their_lengths(packed) -> None:
    few = Limits(all_documents=10, sampled_documents=60)
    found = sizes(Opened(packed.datasets), limits=few).document_tokens
    assert found is not None
    lengths = [n for n in (len(tokens_of(one)) for one in DOCUMENTS) if n]
    assert not found.exact
    # A third of them has no token.
    assert 30 < found.sampled <= 60
    every = in_ranges(lengths, found.edges)
    pairs = zip(found.counts, every, strict=True)
    assert all(count <= there for count, there in pairs)


def test_histograms_of_edge_cases() -> None:
    assert histogram(np.empty(0, np.int64), of=0) is None
    one = histogram(np.array([7, 7]), of=9)
    assert one is not None
    assert (one.edges[0], one.edges[-1], sum(one.counts)) == (7, 8, 2)
    assert not one.exact
    zeros = histogram(np.array([0, 0, 5, 1000]), of=4)
    assert zeros is not None
    assert zeros.edges[:2] == [0, 1]
    assert zeros.counts[0] == 2
    assert sum(zeros.counts) == 4


def test_an_empty_split_has_none(empty) -> None:
    assert ask(empty, "api/sizes") == {"record_bytes": None, "document_tokens": None}


def test_large_records_of_plain_files_are_not_all_read_at_once(tmp_path) -> None:
    records = [b"%d " % number * (1 << 19) for number in range(10, 58)]
    path = loader.open(convert(tmp_path, [records])).shard(0).path
    dataset = loader.open([path])
    assert dataset.mean_record_bytes is None
    tracemalloc.start()
    found = ask(Opened({"": dataset}), "api/sizes")["record_bytes"]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (found["min"], found["of"]) == (len(records[0]), 48)
    assert found["sampled"] == sum(found["counts"]) <= 48
    assert found["exact"] == (found["sampled"] == 48)
    assert peak_bytes < sum(map(len, records)) / 2
