"""Wherever a path is given: objects of pathlib work, and no path is refused."""

from __future__ import annotations

import os
import pathlib
import re

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.util import assert_that, equal_to

from gristmill import loader, pipelines, transforms
from gristmill.dataset import InputError, open_manifest, read_manifest, read_table
from gristmill.pipelines.beam.run_pipeline import run_pipeline
from gristmill.pipelines.commands.main import main
from tests.support.conversion import contents
from tests.support.datasets import convert
from tests.support.records import text_records, write_array_records, write_tfrecords

RECORDS = text_records(30)


@pytest.fixture
def place(tmp_path) -> pathlib.Path:
    """A directory with `in` (TFRecords), `d` (a dataset) and `old/x` (ArrayRecord)."""
    write_tfrecords(tmp_path / "in", RECORDS)
    (tmp_path / "old").mkdir()
    write_array_records(tmp_path / "old" / "x", RECORDS)
    pathlib.Path(convert(tmp_path, [RECORDS])).rename(tmp_path / "d")
    return tmp_path


def check(transform, expected) -> None:
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        assert_that(pipeline | transform, expected)


def run(transform, place):
    return run_pipeline(
        transform, ["--runner=FnApiRunner"], result_path=f"{place}/result"
    )


@pytest.mark.slow
def test_reading_transforms_take_path_objects(place):
    for given in (place / "in", [place / "in"]):
        check(transforms.ReadTFRecords(given), equal_to(RECORDS))
    for given in (place / "d", place / "old" / "x", [place / "old" / "x"]):
        check(transforms.ReadArrayRecords(given), equal_to(RECORDS))
    result = run(transforms.VerifyDataset(place / "d"), place)
    assert (result.dataset, result.records) == (str(place / "d"), len(RECORDS))


@pytest.mark.slow
def test_writing_transforms_take_path_objects(place):
    manifest = run(transforms.IndexArrayRecords(files=[place / "old" / "x"]), place)
    assert manifest == open_manifest(place / "old")
    job = transforms.ConversionJob(
        inputs=place / "in", output=place / "out", name="out"
    )
    assert (job.inputs, job.output) == ((str(place / "in"),), str(place / "out"))
    run(transforms.ConvertFiles(jobs=(job,)), place)
    manifest = read_manifest(place / "out")
    assert len(read_table(place / "out", manifest.splits["train"])) == 1
    with beam.Pipeline(runner="FnApiRunner") as pipeline:
        records = pipeline | beam.Create(RECORDS)
        _ = records | transforms.WriteArrayRecords(place / "mixed", num_shards=1)
    assert sorted(loader.open(place / "mixed")[:]) == sorted(RECORDS)


@pytest.mark.slow
def test_stand_ins_take_path_objects(place):
    args = {"input": place / "in", "output": place / "out" / "c4"}
    pipeline = pipelines.convert_tf_to_arrayrecord_disk(1, args, PipelineOptions([]))
    pipeline.run().wait_until_finish()
    assert (place / "out" / "c4-00000-of-00001.arrayrecord").exists()


@pytest.mark.parametrize(
    "make",
    [
        lambda: transforms.ReadTFRecords(""),
        lambda: transforms.ReadTFRecords(["x", ""]),
        lambda: transforms.ReadArrayRecords(""),
        lambda: transforms.WriteArrayRecords(""),
        lambda: transforms.WriteArrayRecords(pathlib.Path("gs://b/x")),
        lambda: transforms.VerifyDataset(""),
        lambda: transforms.IndexArrayRecords(files=("",)),
        lambda: transforms.IndexArrayRecords(files=()),
        lambda: transforms.ConversionJob(inputs=("x",), output="", name="n"),
        lambda: transforms.ConversionJob(inputs=("",), output="y", name="n"),
        lambda: transforms.ConversionJob(inputs=(), output="y", name="n"),
        lambda: pipelines.convert_tf_to_arrayrecord_gcs(
            args={"input": "x", "output": ""}, pipeline_options=PipelineOptions([])
        ),
        lambda: open_manifest(""),
        lambda: read_manifest(""),
        lambda: loader.open(""),
        lambda: loader.open([""]),
    ],
)
def test_no_path_is_refused_when_it_is_given(make, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.cure
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("convert", "../in", ""),
        ("convert", "", "out"),
        ("convert", "../in", "", "out"),
        ("convert", "../in", "out", "--name", ""),
        ("convert", "../in", "out", "--split", ""),
        ("index", ""),
        ("index", "../old/x", "--split", ""),
        ("index", "../old/x", "--name", ""),
        ("verify", ""),
        ("verify", "../d", "--report", ""),
        ("inspect", ""),
        ("head", ""),
        ("status", ""),
        ("trace", "", "--step", "1", "--row", "1", "--batch-size", "1"),
        ("trace", "../d", "--step", "1", "--row", "1", "--state", ""),
        ("bench-loader", ""),
        ("demo", ""),
    ],
)
def test_an_empty_argument_is_refused(arguments, place, monkeypatch, capsys):
    """As after `gristmill convert in "$OUT"` where OUT is not set."""
    (place / "empty").mkdir()
    monkeypatch.chdir(place / "empty")
    before = contents(place)
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    message = capsys.readouterr().err
    assert re.match(r"(note: .*\n)*error: ", message)
    assert "to do: " in message
    assert contents(place) == before
