"""What is replaced can be kept by everything that writes a split."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import apache_beam as beam
import pytest

from gristmill import loader
from gristmill.dataset import Writer, commit_parts, open_manifest
from gristmill.transforms import WriteArrayRecords
from tests.support.pipelines import run

OLD, NEW = [b"old %d" % i for i in range(9)], [b"new %d" % i for i in range(7)]


def by_writer(output: str, records: list[bytes], **options: bool) -> None:
    with Writer(output, **options) as writer:
        for record in records:
            writer.write(record)


def by_parts(output: str, records: list[bytes], **options: bool) -> None:
    overwrite = options.get("overwrite", False)
    for part in range(2):
        with Writer(output, part=part, parts=2, overwrite=overwrite) as writer:
            for record in records[part::2]:
                writer.write(record)
    commit_parts(output, **options)


def by_beam(output: str, records: list[bytes], **options: bool) -> None:
    write = WriteArrayRecords(output, num_shards=2, name="data", **options)
    run(beam.Create(records), write)


def records_of(output: str, edition: int | None = None) -> list[bytes]:
    dataset = loader.open(output, edition=edition)
    return sorted(dataset.read(range(len(dataset))))


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("write", [by_writer, by_parts, by_beam])
def test_the_edition_before_stays_if_asked(
    tmp_path: pathlib.Path, write: Callable[..., None], keep: bool
) -> None:
    output = str(tmp_path / "data")
    write(output, OLD)
    write(output, NEW, overwrite=True, keep_replaced=keep)
    assert records_of(output) == sorted(NEW)
    split = open_manifest(output).splits["train"]
    assert [state.edition for state in split.replaced] == [1] * keep
    first = list(pathlib.Path(output).glob("data-train.array_record-0*"))
    assert bool(first) == keep
    if keep:
        assert records_of(output, edition=1) == sorted(OLD)
