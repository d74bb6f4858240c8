"""Datasets as inputs: all their splits, in order, proved to be the same records."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import shutil

import pytest

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import (
    DataLossError,
    InputError,
    JobChangedError,
    NotADatasetError,
)
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.convert import convert as run_conversion
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import ConvertOptions
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.shards.source_split import (
    SourceSplit,
    find_split,
)
from tests.support.conversion import (
    convert,
    dataset_of,
    job_of,
    read_output,
    varied_records,
)
from tests.support.records import frames_of, write_array_records
from tests.support.tfds_data import make_tfds, read_splits

RECORDS = {
    split: varied_records(count, seed=count)
    for split, count in (("train", 300), ("test", 40))
}


@pytest.fixture
def dataset(tmp_path: pathlib.Path) -> pathlib.Path:
    for split, records in RECORDS.items():
        dataset_of(tmp_path, records, split=split)
    return tmp_path / "out"


def reshard(
    source: pathlib.Path | str, output: pathlib.Path, **options: object
) -> None:
    """Converts as the command does."""
    given = ConvertOptions(input=(str(source),), output=str(output), **options)
    jobs, features, tfds_directory, *_ = conversion_of(given)
    run_conversion(jobs, features=features, tfds_directory=tfds_directory)


def test_one_split_and_the_name_of_the_command(
    dataset: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    reshard(dataset, tmp_path / "new", split="test", name="other")
    made = open_manifest(tmp_path / "new")
    assert (made.name, [*made.splits]) == ("other", ["test"])
    with pytest.raises(InputError, match=r"no such split\n.*\n.*test, train"):
        reshard(dataset, tmp_path / "new", split="validation")


def test_the_output_is_not_in_the_input(
    dataset: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    (tmp_path / "link").symlink_to(dataset)
    for output in (dataset, dataset / "new", dataset / "index", tmp_path / "link"):
        with pytest.raises(InputError, match="is the input\n") as error:
            reshard(dataset, output)
        assert "choose another output" in str(error.value)
        with pytest.raises(InputError, match="is the input\n"):
            convert(job_of(str(dataset), output, name="new"), overwrite=True)
    assert read_output(dataset) == RECORDS["train"]


def test_what_is_not_a_whole_dataset(
    dataset: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    job = job_of(str(dataset), tmp_path / "new")
    with pytest.raises(InputError, match="`input_format` tfrecord"):
        find_split(
            str(dataset), "train", options=RecordOptions(input_format="tfrecord")
        )
    shard = next(dataset.glob("*-train.array_record-00001-*"))
    shard.rename(tmp_path / "aside")
    with pytest.raises(InputError, match=r"1 of 3 shards.*missing"):
        convert(job)
    with pytest.raises(InputError, match=r"1 of 3 shards.*missing"):
        convert(dataclasses.replace(job, on_corrupt="skip"))
    (dataset / "dataset.json").unlink()
    with pytest.raises(NotADatasetError, match="unfinished conversion"):
        reshard(dataset, tmp_path / "new")
    # Shards that are there can be given by name.
    left_shards = sorted(map(str, dataset.glob("*-train.array_record*")))
    convert(job_of(left_shards, tmp_path / "some"))
    left = read_output(tmp_path / "some")
    assert 0 < len(left) < len(RECORDS["train"])


def test_a_source_that_is_replaced_meanwhile(
    dataset: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    made = dataset_of(folder, [b"other"] * 300)
    shutil.copytree(made, dataset, dirs_exist_ok=True)
    # A run that goes on with the work of an earlier one compares the datasets.
    reshard(made, tmp_path / "new")
    shutil.rmtree(made)
    (folder / "train.tfrecord").write_bytes(frames_of([b"third"] * 299))
    convert(job_of(str(folder / "train.tfrecord"), made, plan=("num_shards", 3)))
    with pytest.raises(JobChangedError):
        reshard(made, tmp_path / "new")


def test_records_are_compared_with_the_digest_of_the_source() -> None:
    source = SourceSplit("d/", "train", "sha256:", 3, 30, "ab" * 16)
    read = RecordsDigest(records=3, raw_bytes=30, low=0xABABABABABABABAB, high=0)
    whole = dataclasses.replace(read, high=read.low)
    source.check_read(whole, skipped_regions=0)
    for wrong in (read, dataclasses.replace(whole, records=2)):
        with pytest.raises(DataLossError, match="not those of the source"):
            source.check_read(wrong, skipped_regions=0)
    fewer = dataclasses.replace(whole, records=2)
    source.check_read(fewer, skipped_regions=1)
    with pytest.raises(DataLossError):
        source.check_read(read, skipped_regions=1)
    assert SourceSplit.of_spec(source.spec) == source


@pytest.mark.slow
def test_tfds_reads_what_was_made_of_its_directory(tmp_path: pathlib.Path) -> None:
    """Of TFRecords first; then of that dataset, and of its files alone."""
    made = make_tfds(tmp_path)
    reshard(made, tmp_path / "one", num_shards=4)
    expected = read_splits(tmp_path / "one")
    assert [*map(len, expected.values())] == [23, 8]
    reshard(tmp_path / "one", tmp_path / "two", num_shards=2, group_size=3)
    bare = tmp_path / "bare"
    shutil.copytree(tmp_path / "one", bare)
    (bare / "dataset.json").unlink()
    shutil.rmtree(bare / "index")
    reshard(bare, tmp_path / "three", num_shards=5)
    names = {path.name for path in (tmp_path / "one").glob("*.*") if path.is_file()}
    for output in ("two", "three"):
        assert read_splits(tmp_path / output) == expected
        there = {path.name for path in (tmp_path / output).iterdir()}
        assert {name for name in names if ".array_record" not in name} <= there


def test_a_tfds_directory_of_array_records(tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    parts = [varied_records(count, seed=count) for count in (20, 30)]
    for number, part in enumerate(parts):
        name = f"d-train.array_record-0000{number}-of-00002"
        write_array_records(folder / name, part)
    lengths = {"name": "train", "shardLengths": ["20", "30"]}
    info = {"name": "d", "fileFormat": "array_record", "splits": [lengths]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text("{}")
    (folder / "label.labels.txt").write_text("cat\n")
    reshard(folder, tmp_path / "out", num_shards=3)
    assert read_output(tmp_path / "out") == [*parts[0], *parts[1]]
    made = json.loads((tmp_path / "out" / "dataset_info.json").read_text())
    assert made["fileFormat"] == "array_record"
    assert sum(map(int, made["splits"][0]["shardLengths"])) == 50
    assert (tmp_path / "out" / "label.labels.txt").read_text() == "cat\n"
    lengths["shardLengths"] = ["20", "31"]
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with pytest.raises(DataLossError, match="shardLengths"):
        reshard(folder, tmp_path / "no")
