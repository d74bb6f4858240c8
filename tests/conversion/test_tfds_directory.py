"""TFDS directories, made and read by tensorflow-datasets itself."""

import json
import pathlib
import shutil

import pytest

from gristmill import loader
from gristmill.dataset import GristmillError, InputError, Writer, open_manifest
from gristmill.transforms.directories.tfds_directory import (
    read_tfds_directory,
    tfds_jobs,
)
from tests.commands.conftest import run
from tests.conversion import tfds_data
from tests.support import shared
from tests.support.conversion import read_output
from tests.support.records import flip, read_tfrecords, write_tfrecords
from tests.support.told import told

NAME, SPLIT_RECORDS = tfds_data.NAME, tfds_data.SPLIT_RECORDS


@pytest.fixture(scope="session")
def made():
    """A TFDS directory, to be read only."""
    return shared.made_once("tfds", tfds_data.make_tfds) / NAME / "1.2.3"


@pytest.fixture
def source(made, tmp_path):
    """A copy of it, to be changed."""
    return pathlib.Path(shutil.copytree(made, tmp_path / "source [1]"))


def convert(source, output, options="", code=0):
    return run(f"convert --workers 1 {options}", source, output, code=code).output


def source_records(directory, split):
    files = sorted(directory.glob(f"{NAME}-{split}.tfrecord-*"))
    return [record for file in files for record in read_tfrecords(file)]


def info_of(directory):
    return json.loads((directory / "dataset_info.json").read_text())


def lengths(directory):
    return {
        split["name"]: [int(length) for length in split["shardLengths"]]
        for split in info_of(directory)["splits"]
    }


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("options", "train_shards"),
    [
        ("", 1),
        ("--match-shards", 3),
        ("--num-shards 5 --group-size 3", 5),
        ("--shard-size 2000 --group-size 100", 5),
    ],
)
def test_tfds_reads_every_example_in_order(made, tmp_path, options, train_shards):
    convert(made, tmp_path, options)
    assert len(lengths(tmp_path)["train"]) == train_shards
    found = tfds_data.read_splits(tmp_path)
    for split, count in SPLIT_RECORDS.items():
        assert len(found[split]) == count == sum(lengths(tmp_path)[split])
        assert found[split] == tfds_data.read_in_order(made, split)
        assert read_output(tmp_path, split) == source_records(made, split)


@pytest.mark.slow
def test_metadata_is_that_of_the_input(made, tmp_path):
    convert(made, tmp_path)
    for name in ("features.json", "label.labels.txt", "metadata.json", "LICENSE"):
        assert (tmp_path / name).read_bytes() == (made / name).read_bytes()
    features = json.loads((made / "features.json").read_bytes())
    assert open_manifest(tmp_path).features == features
    dataset = loader.open(tmp_path, split="train")
    labels = loader.ExampleDecoder.of(dataset, ["label"])(dataset[:4])["label"]
    examples = tfds_data.read_in_order(made, "train")[:4]
    assert labels.tolist() == [example["label"][1] for example in examples]
    before, after = map(tfds_data.read_info, (made, tmp_path))
    assert after["labels"] == list(tfds_data.LABELS)
    assert after["metadata"] == {"made_by": "hand"}
    # TFDS counts the bytes of the examples, and so do we.
    shards = {
        split: sorted(map(str, tmp_path.glob(f"{NAME}-{split}.array_record-*")))
        for split in SPLIT_RECORDS
    }
    assert after == before | {"file_format": "array_record", "files": shards}


def test_empty_shards_that_beam_leaves_behind(source, tmp_path):
    (source / f"{NAME}-train.tfrecord-00001-of-00003").write_bytes(b"")
    splits = info_of(source)["splits"]
    splits[0]["shardLengths"][1] = "0"
    splits.append({"name": "test"})  # A split of no files, and one of no records.
    splits.append({"name": "empty", "shardLengths": ["0"]})
    (source / f"{NAME}-empty.tfrecord-00000-of-00001").write_bytes(b"")
    tfds_data.edit_info(source, splits=splits, alternativeFileFormats=["riegeli"])
    out = tmp_path / "out"
    convert(source, out, "--match-shards")
    assert "alternativeFileFormats" not in info_of(out)
    assert lengths(out)["train"] == [8, 0, 8]
    # TFDS would fail to open any split if these were some.
    found = tfds_data.read_splits(out)
    assert found.keys() == SPLIT_RECORDS.keys()
    assert found["train"] == tfds_data.read_in_order(source, "train")
    assert "no files to convert" in convert(source, out, "--split test", code=2)


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("count", [1, 10, 99_999, 100_000])
@pytest.mark.parametrize(
    "template",
    [
        "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "{SPLIT}/part.{SHARD_INDEX}.{FILEFORMAT}",
        "a+b (c)-{NUM_SHARDS}[{SHARD_INDEX}]*.{FILEFORMAT}",
    ],
)
def test_files_are_named_as_tfds_names_them(source, template, count):
    from tensorflow_datasets.core.naming import ShardedFileTemplate

    lengths = ["1"] * count
    split = {"name": "s", "filepathTemplate": template, "shardLengths": lengths}
    tfds_data.edit_info(source, splits=[split])
    found = read_tfds_directory(str(source)).splits["s"]
    names = ShardedFileTemplate(
        data_dir=source,
        template=template,
        dataset_name=NAME,
        split="s",
        filetype_suffix="tfrecord",
    )
    assert len(set(found.files)) == count
    assert sorted(found.files) == list(found.files)
    for shard in {0, 1, count // 3, count - 2, count - 1} & set(range(count)):
        path = names.sharded_filepath(shard_index=shard, num_shards=count)
        assert f"{source}/{found.files[shard]}" == str(path)


SHARD = f"{NAME}-train.tfrecord-0000%d-of-00003"
USELESS = "cannot be used"
# A file, what is put into it or edited, and what the error says of it.
WRONG = rf"""
{SHARD % 1} gone = split train | missing: {SHARD % 1} | expected: 3 files | 2 files, 1
{SHARD % 2} put = -00002-of-00003 | expected: 8 records | 0 bytes
{NAME}-validation.tfrecord-00000-of-00016 put a = 00016 | got:      4 files | 1 more
dataset_info.json gone = no dataset_info.json
features.json gone = no features.json
dataset_info.json put = dataset_info.json {USELESS}
features.json put = features.json {USELESS}
dataset_info.json put {{ = dataset_info.json {USELESS}
features.json put [] = features.json {USELESS}
dataset_info.json put ÿ{{}} = dataset_info.json {USELESS}
features.json put null = features.json {USELESS}
dataset_info.json edit {{"name": null}} = {USELESS}
dataset_info.json edit {{"splits": ["train"]}} = {USELESS}
dataset_info.json edit {{"splits": [{{}}]}} = {USELESS}
dataset_info.json edit {{"splits": [{{"name": "a"}}, {{"name": "a"}}]}} = {USELESS}
dataset_info.json split {{"shardLengths": ["x"]}} = {USELESS}
dataset_info.json split {{"shardLengths": [null]}} = {USELESS}
dataset_info.json split {{"shardLengths": ["-1"]}} = {USELESS}
dataset_info.json edit {{"alternativeFileFormats": 7, "fileFormat": "x"}} = {USELESS}
dataset_info.json split {{"shardLengths": ["1"], "filepathTemplate": "{{ODD}}"}} = use
dataset_info.json split {{"shardLengths": ["1", "1"], "filepathTemplate": "x"}} = use
dataset_info.json split {{"shardLengths": ["1"], "filepathTemplate": "../x"}} = outside
dataset_info.json split {{"shardLengths": ["1"], "filepathTemplate": "/x"}} = outside
"""


@pytest.mark.parametrize("case", WRONG.strip().splitlines())
def test_what_is_wrong_is_said_before_the_work(source, case):
    given, words = case.split(" = ")
    name, verb, value = f"{given} ".split(" ", 2)
    if verb == "gone":
        (source / name).unlink()
    elif verb == "put":
        (source / name).write_bytes(value.strip().encode("latin-1"))
    else:
        fields = json.loads(value)
        fields = fields if verb == "edit" else {"splits": [{"name": "a"} | fields]}
        tfds_data.edit_info(source, **fields)
    output = source.parent / "out"
    # A missing file whether it is asked for or not: what is left would be half.
    for splits in (None, ("validation",)):
        with told(GristmillError, *(words.split(" | ") if splits is None else ())):
            tfds_jobs(str(source), str(output), splits=splits)
    assert not output.exists()


@pytest.mark.parametrize("end", ["", "/", "/../source [1]"])
def test_the_output_is_the_input(source, end):
    with told(InputError, "the TFDS directory itself"):
        tfds_jobs(str(source), f"{source}{end}")


@pytest.mark.parametrize("change", ["fewer", "more"])
@pytest.mark.parametrize("options", ["", "--num-shards 4"])
def test_other_records_than_promised_are_an_error(source, tmp_path, change, options):
    path, out = source / f"{NAME}-validation.tfrecord-00001-of-00003", tmp_path / "out"
    records = read_tfrecords(path)
    changed = records[1:] if change == "fewer" else [*records, records[0]]
    write_tfrecords(path, changed)
    said, got = convert(source, out, options, code=3), len(changed)
    for words in (
        "split validation",
        "1 of 3 files",
        path.name,
        "expected: 8 records, 2 in this file",
        f"got:      {6 + got} records, {got} in this file",
        "shardLengths",
    ):
        assert words in said
    assert not (out / "dataset.json").exists()
    assert not (out / "dataset_info.json").exists()

    # The cure of the message works, and shards that are finished stay.
    made_before = {p: p.stat().st_mtime_ns for p in out.glob("*-of-*")}
    splits = info_of(source)["splits"]
    splits[1]["shardLengths"][1] = str(got)
    tfds_data.edit_info(source, splits=splits)
    convert(source, out, options)
    assert sum(lengths(out)["validation"]) == 6 + got
    assert made_before == {p: p.stat().st_mtime_ns for p in made_before}


def test_records_that_moved_between_files_are_found(source, tmp_path):
    first, second = (source / (SHARD % shard) for shard in (0, 1))
    records = read_tfrecords(first)
    write_tfrecords(second, [*read_tfrecords(second), records[-1]])
    write_tfrecords(first, records[:-1])
    assert "2 of 3 files" in convert(source, tmp_path / "out", code=3)


def test_records_that_damage_costs_are_not_missed(source, tmp_path):
    path, out = source / (SHARD % 1), tmp_path / "out"
    flip(path, 20)
    convert(source, out, "--on-corrupt skip")
    assert sum(lengths(out)["train"]) == SPLIT_RECORDS["train"] - 1


def test_a_split_whose_files_tfds_would_not_find_is_not_listed(source, tmp_path):
    out = tmp_path / "out"
    with Writer(out, name=NAME) as writer:
        writer.write(b"one")
    convert(source, out, "--split validation")
    assert lengths(out).keys() == {"validation"}
