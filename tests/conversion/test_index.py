"""An index of files in place: which splits they become, and what is refused."""

import json
import os
import shutil

import pytest

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.anywhere import index, verify
from gristmill.pipelines.options.job_options import IndexOptions
from gristmill.transforms import IndexArrayRecords
from gristmill.transforms.indexing.index_job import plan_index
from tests.conversion.other_formats import MAKERS
from tests.support.conversion import contents
from tests.support.pipelines import BUNDLE_BASED, BUNDLES_TWICE, IN_MEMORY, run
from tests.support.records import (
    array_record_bytes,
    frames_of,
    text_records,
    write_array_records,
)


def index_of(*patterns, **options):
    files = tuple(map(str, patterns))
    return index(IndexOptions(files=files, **options), workers=1)[0]


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


NUMBERED = [f"out-{i:05d}-of-00002.arrayrecord" for i in range(2)]
C4 = [*tfds("c4", "train", 2), *tfds("c4", "test", 1)]
PART = tfds("c4", "train", 3)[:2]
MIXED = [*tfds("c4", "validation", 1), "digits-0.array_record"]
TWO = [*tfds("a", "train", 1), *tfds("b", "train", 1)]
PLAIN = ["train-0.ar", "train-1.ar", "val-0.ar"]
BEAMS = ["a-00000-of-00001.ar", "b-00000-of-00002.ar"]


@pytest.mark.parametrize(
    ("names", "options", "pattern", "expected"),
    [
        *((C4, {}, end, {"c4/train": 2, "c4/test": 1}) for end in ("/*", "", "/")),
        (C4, {"name": "x", "split": "all"}, "", {"x/all": 3}),
        (NUMBERED, {}, "/*", {"dir/train": 2}),
        (PART, {}, "", "not all shards"),
        (PART, {"split": "train"}, "", {"c4/train": 2}),
        # What names keep apart is joined where it is said.
        (MIXED, {}, "/*", r"a dataset by their names(.|\n)*got: *digits-0"),
        (MIXED, {"split": "all"}, "/*", {"dir/all": 2}),
        (TWO, {}, "", "got:      a, b"),
        (TWO, {"name": "ab", "split": "train"}, "", {"ab/train": 2}),
        (PLAIN, {}, "", r"got:      train \(2 files\), val \(1 file\)"),
        (PLAIN, {"split": "a"}, "", {"dir/a": 3}),
        (PLAIN, {"split": "val"}, "/val-*", {"dir/val": 1}),
        (BEAMS, {}, "", r"got:      a \(1 file\), b \(1 file\)"),
    ],
)
def test_splits_by_names(folder, data, names, options, pattern, expected):
    for name in names:
        (folder / name).write_bytes(data)
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            index_of(f"{folder}{pattern}", **options)
        assert not (folder / "dataset.json").exists()
        return
    manifest = index_of(f"{folder}{pattern}", **options)
    shards = {f"{manifest.name}/{n}": s.shards for n, s in manifest.splits.items()}
    assert shards == expected
    # A second time, what the first wrote is left out.
    for again in (f"{folder}{pattern}", f"{folder}/**"):
        with pytest.raises(InputError, match="already"):
            index_of(again, **options)
    assert index_of(f"{folder}{pattern}", overwrite=True, **options) is not None


def test_splits_of_a_tfds_directory_with_names_of_its_own(folder, data):
    for name in ("00000.train", "00001.train", "00000.test"):
        (folder / name).write_bytes(data)
    template = {"filepathTemplate": "{SHARD_INDEX}.{SPLIT}"}
    splits = [
        {"name": "train", "shardLengths": ["1", "1"], **template},
        {"name": "test", "shardLengths": ["1"], **template},
    ]
    info = {"name": "c4", "fileFormat": "array_record", "splits": splits}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    (folder / "features.json").write_text("{}")
    (folder / "label.labels.txt").write_text("cat\ndog\n")
    found = {(task.name, task.split, task.file) for task in plan_index([str(folder)])}
    assert found == {
        ("c4", "train", "00000.train"),
        ("c4", "train", "00001.train"),
        ("c4", "test", "00000.test"),
    }


@pytest.mark.parametrize("name", ["CSV", "Avro"])
def test_other_formats(folder, data, name):
    (folder / "a.array_record").write_bytes(data)
    (folder / "b").write_bytes(MAKERS[name]())
    with pytest.raises(InputError, match=f"not an ArrayRecord file, but {name}") as e:
        index_of(folder)
    assert e.value.where == f"{folder}/b"
    assert ("`gristmill convert`" in str(e.value)) == (name != "Avro")


def test_a_file_of_another_format_among_thousands(folder, data):
    """Not all are looked at beforehand: it is refused when it is read."""
    (folder / "0000").write_bytes(data)
    (folder / "0001").write_bytes(frames_of(text_records(50)))
    for number in range(2, 2100):
        os.link(folder / "0000", folder / f"{number:04}")
    with pytest.raises(InputError, match=r"(?s)TFRecord.*/0001"):
        index_of(f"{folder}/*")
    assert not (folder / "dataset.json").exists()


@pytest.mark.parametrize("options", [IN_MEMORY, BUNDLES_TWICE, BUNDLE_BASED])
def test_same_bytes_on_beam(folder, data, monkeypatch, options):
    for name in C4:
        (folder / name).write_bytes(data)
    shutil.copytree(folder, folder.parent / "there" / "dir")
    monkeypatch.chdir(folder.parent)  # dataset.json holds the pattern as it was given.
    (manifest,) = run(IndexArrayRecords(files=("dir/*",)), argv=options)
    monkeypatch.chdir("there")
    assert manifest == index_of("dir/*")
    assert contents(folder) == contents("dir")


@pytest.mark.parametrize(
    "options",
    [
        "group_size:1,zstd:3,window_log:28",
        "group_size:16,zstd:3,window_log:31",
        "group_size:1,brotli:5,window_log:30",
        "group_size:7,snappy",
        "group_size:3,pad_to_block_boundary:true",
    ],
)
def test_what_is_indexed_is_read_and_verified(folder, options, decoding):
    """`faults/test_mutations.py` damages such files."""
    records = [*text_records(60), b"", bytes(70_000)]
    write_array_records(folder / "x", records, options=options)
    index_of(folder / "x")
    dataset = loader.open(folder, verify="always")
    assert [dataset[i] for i in range(len(records))] == dataset[:] == records
    assert verify(str(folder), workers=1).findings == ()
