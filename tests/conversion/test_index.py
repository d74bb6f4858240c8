"""An index of files in place: which splits they become, and what is refused."""

import json
import os
import re
import shutil

import pytest

from gristmill.dataset import open_manifest
from gristmill.transforms import IndexArrayRecords
from tests.commands import conftest as commands
from tests.conversion.format_files import put
from tests.conversion.other_formats import MAKERS
from tests.support.conversion import contents
from tests.support.pipelines import BUNDLE_BASED, BUNDLES_TWICE, IN_MEMORY, run
from tests.support.records import array_record_bytes, frames_of, text_records


def shards_of(dataset):
    manifest = open_manifest(dataset)
    splits = sorted(manifest.splits.items())
    return ", ".join(f"{manifest.name}/{n} {split.shards}" for n, split in splits)


def tfds(name, split, count):
    return [f"{name}-{split}.array_record-{i:05d}-of-{count:05d}" for i in range(count)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    return array_record_bytes([b"a"], options="group_size:1", folder=str(folder))


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "dir").mkdir()
    return tmp_path / "dir"


C4 = [*tfds("c4", "train", 2), *tfds("c4", "test", 1)]
FILES = {
    "c4": C4,
    "numbered": [f"out-{i:05d}-of-00002.arrayrecord" for i in range(2)],
    "part": tfds("c4", "train", 3)[:2],
    "mixed": [*tfds("c4", "validation", 1), "digits-0.array_record"],
    "two": [*tfds("a", "train", 1), *tfds("b", "train", 1)],
    "plain": ["train-0.ar", "train-1.ar", "val-0.ar"],
    "beams": ["a-00000-of-00001.ar", "b-00000-of-00002.ar"],
}
# Files of a directory, what is given behind it, options, and the splits or the error.
# What names keep apart is joined where it is said.
SPLITS = r"""
c4       | /*     |                         | c4/test 1, c4/train 2
c4       |        |                         | c4/test 1, c4/train 2
c4       | /      |                         | c4/test 1, c4/train 2
c4       |        | --name x --split all    | x/all 3
numbered | /*     |                         | dir/train 2
part     |        |                         | error: not all shards
part     |        | --split train           | c4/train 2
mixed    | /*     |                         | error: (?s)by their names.*got: *digits-0
mixed    | /*     | --split all             | dir/all 2
two      |        |                         | error: got:      a, b
two      |        | --name ab --split train | ab/train 2
plain    |        |                         | error: got: *train \(2 files\), val
plain    |        | --split a               | dir/a 3
plain    | /val-* | --split val             | dir/val 1
beams    |        |                         | error: got: *a \(1 file\), b \(1 file\)
"""


@pytest.mark.parametrize("case", SPLITS.strip().splitlines())
def test_splits_by_names(folder, data, case):
    files, pattern, options, expected = map(str.strip, case.split("|"))
    line = f"index {folder}{pattern} {options} --workers 1"
    put(folder, dict.fromkeys(FILES[files], data))
    if expected.startswith("error: "):
        assert re.search(expected.removeprefix("error: "), commands.refused(line))
        assert not (folder / "dataset.json").exists()
        return
    commands.run(line)
    assert shards_of(folder) == expected
    # A second time, what the first wrote is left out.
    for again in (line, f"index {folder}/** {options}"):
        assert "already" in commands.refused(again)
    commands.run(f"{line} --overwrite")


def test_a_dataset_that_cannot_be_read_is_replaced_on_request(folder, data):
    for file in C4:
        (folder / file).write_bytes(data)
    commands.run(f"index {folder}")
    made = open_manifest(folder)
    (folder / "dataset.json").write_text("{")
    assert "again with --overwrite" in commands.refused(f"index {folder}", code=3)
    commands.run(f"index {folder} --overwrite")
    assert open_manifest(folder).content_digest == made.content_digest


def test_splits_of_a_tfds_directory_with_names_of_its_own(folder, data):
    put(folder, dict.fromkeys(("00000.train", "00001.train", "00000.test"), data))
    template = {"filepathTemplate": "{SHARD_INDEX}.{SPLIT}"}
    splits = [
        {"name": "train", "shardLengths": ["1", "1"], **template},
        {"name": "test", "shardLengths": ["1"], **template},
    ]
    info = {"name": "c4", "fileFormat": "array_record", "splits": splits}
    put(folder, {"dataset_info.json": json.dumps(info), "features.json": "{}"})
    put(folder, {"label.labels.txt": "cat\ndog\n"})
    commands.run(f"index {folder} --workers 1")
    assert shards_of(folder) == "c4/test 1, c4/train 2"


def test_a_format_that_cannot_be_converted(folder, data):
    put(folder, {"a.array_record": data, "b": MAKERS["Avro"]()})
    said = commands.refused(f"index {folder}")
    assert "not an ArrayRecord file, but Avro" in said
    assert f"{folder}/b\n" in said
    assert "gristmill convert" not in said


def test_a_file_of_another_format_among_thousands(folder, data):
    """Not all are looked at beforehand: it is refused when it is read."""
    put(folder, {"0000": data, "0001": frames_of(text_records(50))})
    for number in range(2, 2100):
        os.link(folder / "0000", folder / f"{number:04}")
    said = commands.refused(f"index {folder}/* --workers 1")
    assert re.search(r"(?s)TFRecord.*/0001", said)
    assert not (folder / "dataset.json").exists()


@pytest.mark.parametrize("options", [IN_MEMORY, BUNDLES_TWICE, BUNDLE_BASED])
def test_same_bytes_on_beam(folder, data, monkeypatch, options):
    put(folder, dict.fromkeys(C4, data))
    shutil.copytree(folder, folder.parent / "there" / "dir")
    monkeypatch.chdir(folder.parent)  # dataset.json holds the pattern as it was given.
    (manifest,) = run(IndexArrayRecords(files=("dir/*",)), argv=options)
    monkeypatch.chdir("there")
    commands.run("index dir/* --workers 1")
    assert manifest == open_manifest("dir")
    assert contents(folder) == contents("dir")
