"""Datasets made of datasets, by whole commands: killed, in buckets, on Beam."""

from __future__ import annotations

import os
import pathlib
import shutil

import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.dataset import Writer
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.anywhere import verify
from gristmill.pipelines.commands.main import cli
from tests.servers.buckets import upload
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import contents, dataset_of, read_output
from tests.support.datasets import convert as add_edition
from tests.support.records import frames_of, text_records, write_array_records

RECORDS = text_records(700)


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    return dataset_of(tmp_path, RECORDS, group_size=3)


def run(*argv: str | os.PathLike[str]) -> str:
    result = CliRunner().invoke(cli, [str(arg) for arg in argv])
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["--shard-size=60kB", "--num-shards=4"])
def test_beam_makes_the_same_bytes(
    source: pathlib.Path, tmp_path: pathlib.Path, plan: str
) -> None:
    for name, option in (("here", "--workers=2"), ("beam", "--runner=FnApiRunner")):
        run("convert", source, tmp_path / name, plan, "--name=d", option)
    made = [contents(tmp_path / name) for name in ("here", "beam")]
    assert made[0] == made[1]


@pytest.mark.slow
def test_from_and_to_a_bucket(
    source: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ("--num-shards=7", "--name=d")
    run("convert", source, tmp_path / "local", *options)
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        upload(server, source, "c4")
        run("convert", "gs://bucket/c4", "gs://bucket/new", *options)
        run("convert", "gs://bucket/c4/", tmp_path / "copied", *options)
        assert not verify("gs://bucket/new").findings
        digests = [
            open_manifest(str(place)).content_digest
            for place in (tmp_path / "local", "gs://bucket/new", tmp_path / "copied")
        ]
        assert len({*digests}) == 1
        opened = loader.open("gs://bucket/new")
        batches = loader.global_batches(opened, batch_size=700, shuffle="none")
        location = batches.locate(0, 555)
    assert location.source_path == str(tmp_path / "train.tfrecord")
    assert location.source_offset_bytes == len(frames_of(RECORDS[:555]))


def test_editions_become_one_and_are_traced(tmp_path: pathlib.Path) -> None:
    parts = [text_records(70, seed=1), text_records(31, seed=2)], [RECORDS[:40]]
    for edition, files in enumerate(parts, 1):
        add_edition(tmp_path, files, edition=edition)
    every = [record for files in parts for file in files for record in file]
    run("convert", tmp_path / "out", tmp_path / "one", "--num-shards=2")
    shutil.rmtree(tmp_path / "out")
    made = open_manifest(tmp_path / "one").splits["train"]
    assert (len(made.parts), made.records) == (1, len(every))
    assert read_output(tmp_path / "one") == every
    opened = loader.open(str(tmp_path / "one"))
    batches = loader.global_batches(opened, batch_size=len(every), shuffle="none")
    for row in (0, 69, 70, 100, 101, len(every) - 1):
        place = batches.locate(0, row)
        data = pathlib.Path(place.source_path or "").read_bytes()
        assert place.source_offset_bytes is not None, place.source_note
        assert data[place.source_offset_bytes :].startswith(frames_of([every[row]]))


def test_a_dataset_is_appended_to_another(
    source: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    more = text_records(50, seed=9)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "in.tfrecord").write_bytes(frames_of(more))
    run("convert", f"{tmp_path}/more/in.tfrecord", tmp_path / "week", "--num-shards=2")
    run("append", source, tmp_path / "week")
    assert read_output(source) == [*RECORDS, *more]
    assert "nothing to do" in run("append", source, tmp_path / "week")
    shutil.rmtree(tmp_path / "week")
    opened = loader.open(str(source))
    batches = loader.global_batches(opened, batch_size=750, shuffle="none")
    for row in (700, 731, 749):
        place = batches.locate(0, row)
        assert place.source_path == f"{tmp_path}/more/in.tfrecord"
        assert place.source_offset_bytes == len(frames_of(more[: row - 700]))
    result = CliRunner().invoke(cli, ["append", str(source), str(source)])
    assert result.exit_code == 2
    assert "is the input" in result.output


def test_datasets_of_every_origin(source: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Indexed in place, and written by a loop: both know their shards by name."""
    (tmp_path / "files").mkdir()
    for number in range(2):
        path = tmp_path / "files" / f"odd-{number}.ar"
        write_array_records(path, RECORDS[number::2], options="group_size:7")
    run("index", tmp_path / "files")
    run("convert", tmp_path / "files", tmp_path / "one", "--num-shards=3")
    assert read_output(tmp_path / "one") == [*RECORDS[::2], *RECORDS[1::2]]
    with Writer(tmp_path / "written", split="train") as writer:
        for record in RECORDS:
            writer.write(record)
    run("convert", tmp_path / "written", tmp_path / "two", "--num-shards=3")
    assert read_output(tmp_path / "two") == RECORDS
    text = run("trace", tmp_path / "two", "--step=0", "--row=3", "--batch-size=16")
    assert f"source    {tmp_path}/written/" in text
