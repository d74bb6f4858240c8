"""What `WriteArrayRecords` replaces can be kept."""

from __future__ import annotations

import pathlib

import apache_beam as beam
import pytest

from gristmill import loader
from gristmill.dataset import open_manifest
from gristmill.dataset.metadata.manifest import read_table
from gristmill.transforms import WriteArrayRecords
from tests.support.pipelines import run

OLD, NEW = [b"old %d" % i for i in range(9)], [b"new %d" % i for i in range(7)]


def by_beam(output: str, records: list[bytes], **options: bool) -> None:
    write = WriteArrayRecords(output, num_shards=2, name="data", **options)
    run(beam.Create(records), write)


def records_of(output: str, edition: int | None = None) -> list[bytes]:
    dataset = loader.open(output, edition=edition)
    return sorted(dataset.read(range(len(dataset))))


@pytest.mark.parametrize("keep", [False, True])
def test_the_edition_before_stays_if_asked(tmp_path: pathlib.Path, keep: bool) -> None:
    output = str(tmp_path / "data")
    by_beam(output, OLD)
    by_beam(output, NEW, overwrite=True, keep_replaced=keep)
    assert records_of(output) == sorted(NEW)
    split = open_manifest(output).splits["train"]
    assert [state.edition for state in split.replaced] == [1] * keep
    tables = [read_table(output, part) for part in split.known.values()]
    assert {path.name for path in pathlib.Path(output).glob("*.array_record-*")} == {
        path for table in tables for path in table.paths
    }
    if keep:
        assert records_of(output, edition=1) == sorted(OLD)
