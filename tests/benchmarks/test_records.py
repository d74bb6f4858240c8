"""The benchmark of records compares readers of the same records."""

from __future__ import annotations

import itertools

import pytest

from benchmarks import records


@pytest.mark.slow
def test_all_readers_give_every_document_once_an_epoch(tmp_path) -> None:
    dataset = records.write_documents(str(tmp_path / "documents"), documents=300)
    whole = sorted(dataset[:])
    assert len(set(whole)) == 300
    for begin in records.readers(dataset).values():
        iterator = begin()
        assert sorted(itertools.islice(iterator, 300)) == whole
        assert records.cpu_microseconds(iterator, most=64) > 0
        iterator.close()
