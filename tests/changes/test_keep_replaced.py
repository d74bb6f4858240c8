"""What is replaced can be kept by everything that writes a split."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import apache_beam as beam
import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.dataset import Writer, commit_parts, open_manifest
from gristmill.dataset.metadata.manifest import read_table
from gristmill.pipelines.commands.main import cli
from gristmill.transforms import WriteArrayRecords
from tests.support.pipelines import run
from tests.support.records import frames_of

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


def command(*arguments: str) -> None:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output


def by_command(output: str, records: list[bytes], **options: bool) -> None:
    inputs = pathlib.Path(f"{output}-{len(records)}.tfrecord")
    inputs.write_bytes(frames_of(records))
    given = [f"--{name.replace('_', '-')}" for name, on in options.items() if on]
    command("convert", str(inputs), output, "--name=data", "--workers=1", *given)


def records_of(output: str, edition: int | None = None) -> list[bytes]:
    dataset = loader.open(output, edition=edition)
    return sorted(dataset.read(range(len(dataset))))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("write", [by_writer, by_parts, by_beam, by_command])
def test_the_edition_before_stays_if_asked(
    tmp_path: pathlib.Path, write: Callable[..., None], keep: bool
) -> None:
    output = str(tmp_path / "data")
    write(output, OLD)
    write(output, NEW, overwrite=True, keep_replaced=keep)
    assert records_of(output) == sorted(NEW)
    split = open_manifest(output).splits["train"]
    assert [state.edition for state in split.replaced] == [1] * keep
    tables = [read_table(output, part) for part in split.known.values()]
    assert {path.name for path in pathlib.Path(output).glob("*.array_record-*")} == {
        path for table in tables for path in table.paths
    }
    if keep:
        assert records_of(output, edition=1) == sorted(OLD)
