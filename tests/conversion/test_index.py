"""An index of files in place: which splits they become, and what is refused."""

from __future__ import annotations

import json
import os
import pathlib
import shutil

import pytest

from gristmill import loader
from gristmill.dataset.base.errors import CorruptShardError, GristmillError, InputError
from gristmill.pipelines.anywhere import index, verify
from gristmill.pipelines.options.job_options import IndexOptions
from gristmill.transforms import IndexArrayRecords
from gristmill.transforms.indexing.index_job import index_shard, plan_index
from tests.conversion.other_formats import MAKERS
from tests.support.conversion import contents
from tests.support.pipelines import BUNDLE_BASED, BUNDLES_TWICE, IN_MEMORY, run
from tests.support.records import (
    array_record_bytes,
    footer_of,
    frames_of,
    text_records,
    write_array_records,
)


def index_of(*patterns: object, **options):
    files = tuple(map(str, patterns))
    return index(IndexOptions(files=files, **options), workers=1)[0]


def tfds(name: str, split: str, count: int) -> list[str]:
    return [f"{name}-{split}.array_record-{i:05d}-of-{count:05d}" for i in range(count)]


NUMBERED = [f"out-{i:05d}-of-00002.arrayrecord" for i in range(2)]
C4 = [*tfds("c4", "train", 2), *tfds("c4", "test", 1)]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> bytes:
    folder = tmp_path_factory.mktemp("made")
    return array_record_bytes([b"a"], options="group_size:1", folder=str(folder))


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "dir").mkdir()
    return tmp_path / "dir"


@pytest.mark.parametrize(
    ("names", "options", "pattern", "expected"),
    [
        *(
            (C4, {}, pattern, {"c4/train": 2, "c4/test": 1})
            for pattern in ("/*", "", "/")
        ),
        (C4, {"name": "x", "split": "all"}, "", {"x/all": 3}),
        (NUMBERED, {}, "/*", {"dir/train": 2}),
        (tfds("c4", "train", 3)[:2], {}, "", "not all shards"),
        (tfds("c4", "train", 3)[:2], {"split": "train"}, "", {"c4/train": 2}),
        # What names keep apart is joined where it is said.
        (
            [*tfds("c4", "validation", 1), "digits-0.array_record"],
            {},
            "/*",
            r"some files belong to a dataset by their names(.|\n)*got: *digits-0",
        ),
        (
            [*tfds("c4", "validation", 1), "digits-0.array_record"],
            {"split": "all"},
            "/*",
            {"dir/all": 2},
        ),
        ([*tfds("a", "train", 1), *tfds("b", "train", 1)], {}, "", "got:      a, b"),
        (
            [*tfds("a", "train", 1), *tfds("b", "train", 1)],
            {"name": "ab", "split": "train"},
            "",
            {"ab/train": 2},
        ),
        (
            ["train-0.ar", "train-1.ar", "val-0.ar"],
            {},
            "",
            r"got:      train \(2 files\), val \(1 file\)",
        ),
        (["train-0.ar", "train-1.ar", "val-0.ar"], {"split": "a"}, "", {"dir/a": 3}),
        (["train-0.ar", "val-0.ar"], {"split": "val"}, "/val-*", {"dir/val": 1}),
        (
            ["a-00000-of-00001.ar", "b-00000-of-00002.ar"],
            {},
            "",
            r"got:      a \(1 file\), b \(1 file\)",
        ),
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
    splits = [
        {
            "name": split,
            "shardLengths": ["1"] * count,
            "filepathTemplate": "{SHARD_INDEX}.{SPLIT}",
        }
        for split, count in (("train", 2), ("test", 1))
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


@pytest.mark.parametrize("name", ["TFRecord", "Parquet", "CSV", "tar", "Avro"])
def test_other_formats(folder, data, name):
    (folder / "a.array_record").write_bytes(data)
    (folder / "b").write_bytes(
        frames_of([b"a"]) if name == "TFRecord" else MAKERS[name]()
    )
    with pytest.raises(
        InputError, match=f"not an ArrayRecord file, but {name}"
    ) as caught:
        index_of(folder)
    assert caught.value.where == f"{folder}/b"
    assert ("`gristmill convert`" in str(caught.value)) == (name != "Avro")


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
    records = [*text_records(60), b"", bytes(70_000)]
    write_array_records(folder / "x", records, options=options)
    index_of(folder / "x")
    dataset = loader.open(folder, verify="always")
    assert [dataset[i] for i in range(len(records))] == dataset[:] == records
    assert verify(str(folder), workers=1).findings == ()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", ["group_size:1", "group_size:3"])
def test_damage_in_any_byte_is_refused(folder, request, options, decoding):
    write_array_records(folder / "x", text_records(60), options=options)
    good = (folder / "x").read_bytes()
    (task,) = plan_index([str(folder / "x")])
    end = int(footer_of(good).chunk_offsets[-1])
    # Of the signature and of what is behind the footer, nothing is used.
    step = 501 if "compiled" in request.node.name else 2999
    for at in [*range(64, 120, step // 500), *range(120, end + 100, step)]:
        data = bytearray(good)
        data[at] ^= 0x10
        (folder / "x").write_bytes(data)
        with pytest.raises(CorruptShardError):
            index_shard(task)
    with pytest.raises(GristmillError):
        index_of(folder / "x")
    assert not (folder / "dataset.json").exists()
