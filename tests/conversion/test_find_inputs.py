"""Inputs: which files they are, in which order, and what their names say."""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import pickle
import random

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import DataLossError, GristmillError, InputError
from gristmill.dataset.formats.file_formats import (
    JoinedFiles,
    check_joined,
    parse_file_name,
)
from gristmill.dataset.storage.base import FileInfo
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import ConvertOptions
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.sources.find_inputs import (
    find_inputs,
    look_at_part,
    look_tasks,
    looked_files,
    match_files,
    match_inputs,
)
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.sources.input_formats import look_at
from tests.servers.gcs_server import GcsServer
from tests.support.other_formats import JSON_LINES, arrow_stream
from tests.support.records import frames_of, text_records, write_tfrecords

DATA = frames_of([b"one"])
FILES = {
    "b.tfrecord": DATA,
    "a.tfrecord": DATA,
    ".hidden": DATA,
    "_SUCCESS": b"",
    "_temporary/0/part": DATA,
    "sub/c.tfrecord": DATA,
}


@pytest.fixture
def folder(tmp_path) -> pathlib.Path:
    for name, data in FILES.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    return tmp_path / "in"


def refused(pattern: object) -> str:
    with pytest.raises(InputError) as caught:
        match_inputs(str(pattern))
    return str(caught.value)


def begin_all(options: ConvertOptions) -> None:
    for job in conversion_of(options).jobs:
        begin_job(job)


@pytest.mark.parametrize("end", ["", "/", "//", "/."])
def test_the_files_in_it(folder, end):
    found = [pathlib.Path(info.path) for info in match_inputs(f"{folder}{end}")]
    assert found == [folder / "a.tfrecord", folder / "b.tfrecord"]


@pytest.mark.parametrize("end", ["", "/"])
def test_in_a_bucket(monkeypatch, end):
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        # The console makes an object for a directory.
        for name, data in {**FILES, "": b""}.items():
            server.objects.put("bucket", f"in/{name}", data)
        found = [info.path for info in match_inputs(f"gs://bucket/in{end}")]
    assert found == ["gs://bucket/in/a.tfrecord", "gs://bucket/in/b.tfrecord"]


def test_a_pattern_matches_what_it_matches(folder):
    names = [pathlib.Path(info.path).name for info in match_inputs(f"{folder}/*")]
    assert names == ["_SUCCESS", "a.tfrecord", "b.tfrecord"]


class TestDatasets:
    def test_one_of_ours(self, folder):
        (folder / "dataset.json").write_text("{}")
        message = refused(folder)
        assert "a dataset is not the only input" in message
        assert "convert it alone" in message

    def test_tfds_beside_others(self, folder):
        for name in ("dataset_info.json", "features.json"):
            (folder / name).write_text("{}")
        assert "convert it alone" in refused(folder)

    @pytest.mark.parametrize(
        "files",
        [
            # DatasetDict.save_to_disk, Dataset.save_to_disk, the cache of load_dataset,
            # download_and_prepare to Parquet, and a clone of a repository of the Hub.
            {
                "dataset_dict.json": b'{"splits": ["train"]}',
                "train/data-00000-of-00001.arrow": b"",
            },
            {
                "dataset_info.json": json.dumps({"features": {}}).encode(),
                "state.json": b"{}",
                "data-00000-of-00001.arrow": arrow_stream(),
            },
            {"dataset_info.json": b"{}", "c4-train.arrow": arrow_stream()},
        ],
    )
    def test_hugging_face(self, tmp_path, files):
        for name, data in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_bytes(data)
        message = refused(tmp_path)
        with pytest.raises(InputError) as caught:
            begin_all(ConvertOptions(input=(str(tmp_path),), output=f"{tmp_path}-out"))
        assert str(caught.value) == message
        with pytest.raises(GristmillError) as caught:
            loader.open(tmp_path)
        assert "convert it with" not in str(caught.value)
        assert "TFDS directory" not in str(caught.value)
        assert "Hugging Face dataset, which cannot be converted directly" in message
        assert "to_parquet(FILE)" in message

    def test_a_repository_of_the_hub_with_files_of_its_own(self, folder):
        (folder / "README.md").write_bytes(b"---\n")
        (folder / ".gitattributes").write_bytes(b"")
        (folder / "data.jsonl").write_bytes(JSON_LINES)
        found = {pathlib.Path(info.path).name for info in match_inputs(str(folder))}
        assert "data.jsonl" in found
        assert "README.md" not in found


TWO = frames_of([b"one", b"two"])


@pytest.fixture
def named_files(tmp_path) -> pathlib.Path:
    for name in ("b", "a", "c.gz"):
        (tmp_path / name).write_bytes(TWO)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "d").write_bytes(TWO)
    return tmp_path


class TestFind:
    @pytest.mark.parametrize(
        ("patterns", "expected"),
        [
            (("*",), ["a", "b", "c.gz"]),
            (("a",), ["a"]),
            (("b", "a"), ["a", "b"]),
            (("[ab]", "?", "a"), ["a", "b"]),
            (("**/d", "b"), ["b", "deep/er/d"]),
        ],
    )
    def test_patterns(self, named_files, patterns, expected):
        files = find_inputs([f"{named_files}/{pattern}" for pattern in patterns])
        assert list(files.paths) == [f"{named_files}/{name}" for name in expected]
        assert files.sizes.tolist() == [len(TWO)] * len(expected)

    def test_each_pattern_must_match(self, named_files):
        with pytest.raises(InputError) as caught:
            find_inputs([f"{named_files}/a", f"{named_files}/z*"])
        assert f"{named_files}/z*" in str(caught.value)

    def test_many_empty_files_are_counted_and_some_named(self, tmp_path):
        for number in range(9):
            (tmp_path / f"empty{number}").write_bytes(b"")
        with pytest.raises(InputError) as caught:
            find_inputs([f"{tmp_path}/*"])
        assert "9 input files are empty" in str(caught.value)
        assert f"{tmp_path}/empty2 and 6 more" in str(caught.value)
        assert "empty3" not in str(caught.value)
        assert len(find_inputs([f"{tmp_path}/*"], allow_empty_files=True)) == 9


class TestList:
    def test_survives_encoding(self, named_files):
        (named_files / "nämé\udcff").write_bytes(gzip.compress(TWO, mtime=0))
        files = find_inputs([f"{named_files}/*"])
        again = InputFiles.of_arrays(files.arrays())
        assert list(again.paths) == list(files.paths)
        assert list(again.versions) == list(files.versions)
        assert again.sizes.tolist() == files.sizes.tolist()
        assert again.splittable.tolist() == files.splittable.tolist()
        assert again.digest == files.digest
        for name, array in again.arrays().items():
            np.testing.assert_array_equal(array, files.arrays()[name])

    def test_the_digest_follows_names_and_sizes(self, named_files):
        before = find_inputs([f"{named_files}/*"]).digest
        os.utime(named_files / "a", ns=(1, 1))
        assert find_inputs([f"{named_files}/*"]).digest == before
        (named_files / "a").write_bytes(TWO + TWO)
        changed = find_inputs([f"{named_files}/*"]).digest
        (named_files / "a").rename(named_files / "aa")
        assert len({before, changed, find_inputs([f"{named_files}/*"]).digest}) == 3

    def test_names_twice(self, named_files):
        assert find_inputs([f"{named_files}/*"]).notes() == []
        (named_files / "deep" / "a").write_bytes(TWO)
        (note,) = find_inputs([f"{named_files}/*", f"{named_files}/deep/a"]).notes()
        assert f"{named_files}/a and {named_files}/deep/a" in note


@pytest.fixture
def some_files(tmp_path: pathlib.Path) -> list[FileInfo]:
    """Seven some_files of several kinds."""
    for number, kind in enumerate(("", "GZIP", "", "ZLIB", "")):
        write_tfrecords(tmp_path / str(number), text_records(3), compression=kind)
    (tmp_path / "5").write_bytes(b"PAR1")
    (tmp_path / "6").write_bytes(b"\xfe\x01")
    return match_files([str(tmp_path)])


def test_parts_in_any_order_and_twice(some_files: list[FileInfo]) -> None:
    tasks = list(look_tasks("train", some_files, part_files=3))
    assert [len(task.files) for task in tasks] == [3, 3, 1]
    tasks += [*look_tasks("test", some_files[:2], part_files=3), tasks[1]]
    random.Random(1).shuffle(tasks)
    whole, other = Gathered(), Gathered()
    for number, task in enumerate(tasks):
        sent = pickle.loads(pickle.dumps(task))
        look_at_part(sent).gather((whole, other)[number % 2])
    whole.extend(pickle.loads(pickle.dumps(other)))
    assert looked_files(whole, "train") == (some_files, look_at(some_files))
    assert looked_files(whole, "test") == (some_files[:2], look_at(some_files[:2]))


def test_a_part_that_is_missing(some_files: list[FileInfo]) -> None:
    looked = Gathered()
    for task in list(look_tasks("train", some_files, part_files=3))[1:]:
        look_at_part(task).gather(looked)
    with pytest.raises(DataLossError, match="not all parts of the listing"):
        looked_files(looked, "train")
    with pytest.raises(DataLossError):
        looked_files(looked, "test")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("c4/c4-train.tfrecord-00000-of-00010", ("c4", "train", 10)),
        ("gs://b/c4-validation.array_record-00000-of-00001", ("c4", "validation", 1)),
        ("a-b-c-train_1.tfrecords-0000000-of-1000000", ("a-b-c", "train_1", 1_000_000)),
        ("__local_x-test.tfrecord-00001-of-00002", ("__local_x", "test", 2)),
        ("train-00000-of-01024", (None, "train", None)),
        ("validation-00000-of-00128.tfrecord.gz", (None, "validation", None)),
        ("c4-train.00000-of-01024.gz", ("c4", "train", None)),
        ("out-00000-of-00004.arrayrecord", ("out", None, None)),
        ("val2017_3.tfrecord", (None, "val", None)),
        ("TEST_3.tfrecord", (None, "test", None)),
        ("dir/dev/part-1.tfrecord", (None, "dev", None)),
        ("dev/train-1.tfrecord", (None, "train", None)),
        ("train_test_split.tfrecord", (None, None, None)),
        ("pretrain/latest-trained-1.tfrecord", (None, None, None)),
        ("x", (None, None, None)),
        ("", (None, None, None)),
    ],
)
def test_names(path, expected):
    assert parse_file_name(path) == (*expected, "")


def test_names_with_the_id_of_a_write():
    write = "0123456789abcdef"
    name = f"c4/c4-train.array_record-{write}-00003-of-00010"
    assert parse_file_name(name) == ("c4", "train", 10, write)


def test_a_notice_names_what_is_joined():
    splits = [
        f"c4-{split}.tfrecord-0000{i}-of-00003" for i in range(3) for split in "ab"
    ]
    assert JoinedFiles.of([*splits, "c4-a.tfrecord-00000-of-00001"]).notice() == (
        "files of several splits are joined: a (4 files), b (3 files)"
    )
    datasets = ["c4-train.tfrecord-00000-of-00001", "x-train.tfrecord-00000-of-00001"]
    assert check_joined(["*"], datasets) == (
        "files of several datasets are joined: c4 (1 file), x (1 file)"
    )


def test_one_pattern_is_of_one_split_and_a_list_joins():
    paths = ["train-00000-of-00001", "test-00000-of-00001"]
    with pytest.raises(InputError, match="several splits") as caught:
        check_joined(["dir/*"], paths)
    for part in ("where:    dir/*", "train (1 file), test (1 file)", "a list with"):
        assert part in str(caught.value)
    assert "train (1 file), test (1 file)" in (
        check_joined(["tr*", "te*"], paths) or ""
    )
