"""ArrayRecord files and datasets as inputs: the same records, or a clear error."""

import dataclasses
import pathlib
import random
import re
import shutil

import pytest

from gristmill.dataset import (
    CorruptShardError,
    DataLossError,
    InputError,
    JobChangedError,
    RecordsDigest,
    open_manifest,
)
from gristmill.dataset.metadata import layout
from gristmill.transforms import RecordOptions
from gristmill.transforms.sources.shards.source_split import SourceSplit
from tests.commands.conftest import refused, run
from tests.conversion.tfds_data import make_tfds, read_splits
from tests.support.conversion import (
    convert,
    dataset_of,
    job_of,
    read_output,
    shards_of,
    skipped_in,
    varied_records,
)
from tests.support.records import (
    flip,
    footer_of,
    read_array_records,
    write_array_records,
)
from tests.support.told import told

pytestmark = pytest.mark.usefixtures("here")


def test_damage_is_left_out_by_chunk(tmp_path):
    records = [random.Random(n).randbytes(500) for n in range(1200)]
    path = tmp_path / "a.array_record"
    write_array_records(path, records, options="group_size:10,zstd:3")
    offsets = footer_of(path.read_bytes()).chunk_offsets.tolist()
    for chunk in (30, 31, 77):
        flip(path, (offsets[chunk] + offsets[chunk + 1]) // 2)
    # One cut is within a damaged chunk.
    options = {"shards": 11, "on_corrupt": "skip"}
    result = convert(job_of(path, "out", **options))
    kept = [*records[:300], *records[320:770], *records[780:]]
    assert read_output("out") == kept
    # Neighbours are one region.
    regions = [(offsets[30], offsets[32]), (offsets[77], offsets[78])]
    found = skipped_in("out")
    assert [(one["begin_bytes"], one["end_bytes"]) for one in found] == regions
    assert result.manifest.splits["train"].skipped_regions == 2


def test_a_record_that_is_not_the_one_of_the_index(tmp_path):
    records = [bytes([n]) * 500 for n in range(200)]
    dataset = dataset_of(tmp_path, records, compression="uncompressed", group_size=5)
    path = dataset / shards_of(dataset)[1]
    flip(path, path.read_bytes().index(bytes([90]) * 400))
    with pytest.raises(CorruptShardError, match=r"record \d+\n.*as in the shard's ind"):
        convert(job_of("out", "no"))
    convert(job_of("out", "out2", on_corrupt="skip"))
    found = read_output("out2")
    lost = [record for record in records if record not in found]
    assert bytes([90]) * 500 in lost
    assert found == [record for record in records if record not in lost]
    assert len(lost) == 5  # Those of its chunk.


@pytest.mark.parametrize("kind", ["files", "dataset"])
def test_a_file_without_footer(tmp_path, kind):
    records = varied_records(300, seed=4)
    dataset = dataset_of(tmp_path, records)
    path = dataset / shards_of(dataset)[1]
    data, whole = bytearray(path.read_bytes()), read_array_records(path)
    data[-65_536:] = bytes(65_536)
    path.write_bytes(data)
    inputs = str(dataset) if kind == "dataset" else f"{dataset}/*.array_record*"
    with told(CorruptShardError, "footer"):
        convert(job_of(inputs, "no", shards=5))
    convert(job_of(inputs, "out2", shards=5, on_corrupt="skip"))
    found = read_output("out2")
    if kind == "dataset":  # Its index knows where the chunks are.
        assert found == records
        return
    first = records.index(whole[0])
    assert found == [*records[:first], *records[first + len(whole) :]]
    lost = skipped_in("out2")
    assert sum(one["end_bytes"] - one["begin_bytes"] for one in lost) == len(data)


def test_a_dataset_whose_shard_was_cut(tmp_path):
    records = varied_records(600, seed=4)
    dataset = dataset_of(tmp_path, records, group_size=4)
    path = dataset / shards_of(dataset)[1]
    whole = read_array_records(path)
    path.write_bytes(path.read_bytes()[:70_000])
    with pytest.raises(InputError, match=r"wrong size.*\n.*00001-of"):
        convert(job_of("out", "no"))
    convert(job_of("out", "out2", on_corrupt="skip"))
    found, first = read_output("out2"), records.index(whole[0])
    kept = len(found) - (len(records) - len(whole))
    assert 0 < kept < len(whole)
    assert found == [*records[: first + kept], *records[first + len(whole) :]]
    assert len(skipped_in("out2")) == 1


def test_shards_that_have_changed_places(tmp_path):
    """Their records have the same digest together, in another order."""
    dataset = dataset_of(tmp_path, varied_records(90, seed=1))
    first, second, _ = shards_of(dataset)
    for path in (first, layout.index_path(first)):
        other = dataset / path.replace("-00000-of", "-00001-of")
        (dataset / path).rename("aside")
        other.rename(dataset / path)
        pathlib.Path("aside").rename(other)
    assert (dataset / first).stat().st_size == (dataset / second).stat().st_size
    with told(CorruptShardError, "that of another shard"):
        convert(job_of("out", "no"))


# Datasets: all their splits, in order, proved to be the same records.

SPLITS = {
    split: varied_records(count, seed=count)
    for split, count in (("train", 300), ("test", 40))
}


@pytest.fixture
def dataset(tmp_path):
    """A dataset of both in `out`."""
    for split, records in SPLITS.items():
        dataset_of(tmp_path, records, split=split)
    return tmp_path / "out"


def test_one_split_and_the_name_of_the_command(dataset):
    run(f"convert {dataset} new --split test --name other --workers 1")
    made = open_manifest("new")
    assert (made.name, [*made.splits]) == ("other", ["test"])
    said = refused(f"convert {dataset} new --split validation")
    assert re.search(r"no such split\n.*\n.*test, train", said)


def test_the_output_is_not_in_the_input(dataset, tmp_path):
    (tmp_path / "link").symlink_to(dataset)
    for output in ("out", "out/index", "link"):
        assert "is the input\n" in refused(f"convert out {output}")
        with told(InputError, "is the input\n"):
            convert(job_of("out", output, name="new"), overwrite=True)
    assert read_output("out") == SPLITS["train"]


def test_what_is_not_a_whole_dataset(dataset):
    job = job_of("out", "new")
    frames = RecordOptions(input_format="tfrecord")
    with told(InputError, "`input_format` tfrecord"):
        convert(dataclasses.replace(job, records=frames))
    shard = next(dataset.glob("*-train.array_record-00001-*"))
    shard.rename("aside")
    for on_corrupt in ("fail", "skip"):
        with pytest.raises(InputError, match=r"1 of 3 shards.*missing"):
            convert(dataclasses.replace(job, on_corrupt=on_corrupt))
    (dataset / "dataset.json").unlink()
    assert "unfinished conversion" in refused("convert out new", code=3)
    # Shards that are there can be given by name.
    left_shards = sorted(map(str, dataset.glob("*-train.array_record*")))
    convert(job_of(left_shards, "some"))
    assert 0 < len(read_output("some")) < len(SPLITS["train"])


def test_a_source_that_is_replaced_meanwhile(tmp_path):
    made = dataset_of(tmp_path, [b"other"] * 300)
    # A run that goes on with the work of an earlier one compares the datasets.
    job = job_of("out", "new")
    convert(job)
    shutil.rmtree(made)
    dataset_of(tmp_path, [b"third"] * 299)
    with pytest.raises(JobChangedError):
        convert(job)


def test_records_are_compared_with_the_digest_of_the_source():
    source = SourceSplit("d/", "train", "sha256:", 3, 30, "ab" * 16)
    read = RecordsDigest(records=3, raw_bytes=30, low=0xABABABABABABABAB, high=0)
    whole = dataclasses.replace(read, high=read.low)
    source.check_read(whole, skipped_regions=0)
    for wrong in (read, dataclasses.replace(whole, records=2)):
        with told(DataLossError, "not those of the source"):
            source.check_read(wrong, skipped_regions=0)
    fewer = dataclasses.replace(whole, records=2)
    source.check_read(fewer, skipped_regions=1)
    with pytest.raises(DataLossError):
        source.check_read(read, skipped_regions=1)


@pytest.mark.slow
def test_tfds_reads_what_was_made_of_its_directory(tmp_path):
    """Of TFRecords first; then of that dataset, and of its files alone."""
    made = make_tfds(tmp_path)
    run(f"convert {made} one --num-shards 4 --workers 1")
    expected = read_splits(tmp_path / "one")
    assert [*map(len, expected.values())] == [23, 8]
    run("convert one two --num-shards 2 --group-size 3 --workers 1")
    bare = tmp_path / "bare"
    shutil.copytree(tmp_path / "one", bare)
    (bare / "dataset.json").unlink()
    shutil.rmtree(bare / "index")
    run("convert bare three --num-shards 5 --workers 1")
    shard = sorted(bare.glob("*train.array_record*"))[1]
    write_array_records(shard, read_array_records(shard)[1:])
    assert "shardLengths" in refused("convert bare no --workers 1", code=3)
    names = {path.name for path in (tmp_path / "one").glob("*.*") if path.is_file()}
    for output in ("two", "three"):
        assert read_splits(tmp_path / output) == expected
        there = {path.name for path in (tmp_path / output).iterdir()}
        assert {name for name in names if ".array_record" not in name} <= there
