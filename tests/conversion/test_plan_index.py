"""Which files become which splits: nothing is joined that names keep apart."""

from __future__ import annotations

import json
import pathlib

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.index import index
from gristmill.pipelines.options.job_options import IndexOptions
from gristmill.transforms.indexing.index_job import plan_index
from tests.support.other_formats import MAKERS
from tests.support.records import array_record_bytes, frames_of


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> bytes:
    folder = tmp_path_factory.mktemp("made")
    return array_record_bytes([b"a"], options="group_size:1", folder=str(folder))


@pytest.fixture
def make(tmp_path, data):
    """Makes files of a directory, and returns the directory."""

    def made(*names: str, folder: str = "dir") -> pathlib.Path:
        (tmp_path / folder).mkdir(exist_ok=True)
        for name in names:
            (tmp_path / folder / name).write_bytes(data)
        return tmp_path / folder

    return made


def splits(*patterns: object, **options: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for number, task in enumerate(plan_index(list(map(str, patterns)), **options)):
        found.setdefault(f"{task.name}/{task.split}", []).append(task.file)
        assert task.shard < number + 1
    return found


def refused(*patterns: object, **options: str) -> str:
    with pytest.raises(InputError) as caught:
        plan_index(list(map(str, patterns)), **options)
    return str(caught.value)


def tfds(name: str, split: str, count: int) -> list[str]:
    return [f"{name}-{split}.array_record-{i:05d}-of-{count:05d}" for i in range(count)]


class TestNames:
    def test_of_tfds(self, make):
        folder = make(*tfds("c4", "train", 2), *tfds("c4", "test", 1))
        expected = {
            "c4/test": tfds("c4", "test", 1),
            "c4/train": tfds("c4", "train", 2),
        }
        assert splits(f"{folder}/*") == expected
        assert splits(folder) == expected
        assert splits(f"{folder}/") == expected
        assert list(splits(folder, name="x", split="all")) == ["x/all"]

    def test_one_set_of_numbered_files(self, make):
        names = [f"out-{i:05d}-of-00002.arrayrecord" for i in range(2)]
        assert splits(f"{make(*names)}/*") == {"dir/train": names}

    def test_a_whole_split(self, make):
        folder = make(*tfds("c4", "train", 3)[:2])
        assert "not all shards" in refused(folder)
        assert list(splits(folder, split="train")) == ["c4/train"]


class TestJoined:
    """What was joined in silence is an error, with the way to say it was meant."""

    def test_files_of_a_dataset_and_others(self, make):
        folder = make(*tfds("c4", "validation", 1), "digits-0.array_record")
        message = refused(f"{folder}/*")
        assert "some files belong to a dataset by their names" in message
        assert "got:      digits-0.array_record" in message
        assert "`split`" in message
        assert len(splits(f"{folder}/*", split="all")["dir/all"]) == 2

    def test_datasets(self, make):
        folder = make(*tfds("a", "train", 1), *tfds("b", "train", 1))
        assert "got:      a, b" in refused(folder)
        (joined,) = splits(folder, name="ab", split="train")
        assert joined == "ab/train"

    @pytest.mark.parametrize(
        ("names", "got"),
        [
            (("train-0.ar", "train-1.ar", "val-0.ar"), "train (2 files), val (1 file)"),
            (
                ("a-00000-of-00001.ar", "b-00000-of-00002.ar"),
                "a (1 file), b (1 file)",
            ),
        ],
    )
    def test_other_names(self, make, names, got):
        folder = make(*names)
        assert f"got:      {got}" in refused(folder)
        assert splits(folder, split="all") == {"dir/all": sorted(names)}
        first = names[0].partition("-")[0]
        assert list(splits(f"{folder}/{first}-*", split=first)) == [f"dir/{first}"]


class TestDirectories:
    def test_a_second_time_what_the_first_wrote_is_left_out(self, make):
        folder = make("a.array_record")
        index(IndexOptions(files=(f"{folder}/*",)), workers=1)
        for pattern in (f"{folder}/*", f"{folder}/**", folder):
            assert "with this split already" in refused(pattern)
            again = IndexOptions(files=(str(pattern),), overwrite=True)
            manifest, _ = index(again, workers=1)
            assert manifest.splits["train"].shards == 1

    def test_of_tfds_with_names_of_its_own(self, make):
        names = ["1.train", "2.train", "1.test"]
        folder = make(*names)
        info = {
            "name": "c4",
            "fileFormat": "array_record",
            "splits": [
                {
                    "name": split,
                    "shardLengths": ["1"] * count,
                    "filepathTemplate": "{SHARD_INDEX}.{SPLIT}",
                }
                for split, count in (("train", 2), ("test", 1))
            ],
        }
        for split, count in (("train", 2), ("test", 1)):
            for number in range(count):
                old = folder / f"{number + 1}.{split}"
                old.rename(folder / f"{number:05d}.{split}")
        (folder / "dataset_info.json").write_text(json.dumps(info))
        (folder / "features.json").write_text("{}")
        (folder / "label.labels.txt").write_text("cat\ndog\n")
        expected = {
            "c4/test": ["00000.test"],
            "c4/train": ["00000.train", "00001.train"],
        }
        found = splits(folder)
        assert found == expected


@pytest.mark.parametrize("name", ["TFRecord", "Parquet", "CSV", "tar", "Avro"])
def test_other_formats(make, name):
    folder = make("a.array_record")
    data = frames_of([b"a"]) if name == "TFRecord" else MAKERS[name]()
    (folder / "b").write_bytes(data)
    message = refused(folder)
    assert f"not an ArrayRecord file, but {name}" in message
    assert f"where:    {folder}/b" in message
    assert ("`gristmill convert`" in message) == (name != "Avro")
