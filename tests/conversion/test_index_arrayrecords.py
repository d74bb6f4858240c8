"""`IndexArrayRecords` (`indexing.index_shard`): the same dataset on every runner."""

from __future__ import annotations

import os
import pathlib
import shutil

import pytest

from gristmill import loader
from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import CorruptShardError, InputError
from gristmill.pipelines.index import index
from gristmill.pipelines.options.job_options import IndexOptions
from gristmill.transforms import IndexArrayRecords
from gristmill.transforms.checking.verification import plan_verify
from gristmill.transforms.checking.verify_shard import verify_shard
from gristmill.transforms.indexing.index_job import (
    commit_index,
    index_shard,
    plan_index,
)
from tests.support.conversion import contents
from tests.support.pipelines import BUNDLE_BASED, BUNDLES_TWICE, IN_MEMORY, run
from tests.support.records import (
    footer_of,
    frames_of,
    text_records,
    write_array_records,
)


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    found = tmp_path / "old"
    found.mkdir()
    for split, shards in (("train", 3), ("test", 1)):
        for shard in range(shards):
            write_array_records(
                found / f"old-{split}.array_record-{shard:05d}-of-{shards:05d}",
                text_records(50, seed=shard),
            )
    return found


@pytest.mark.parametrize("options", [IN_MEMORY, BUNDLES_TWICE, BUNDLE_BASED])
def test_same_bytes_as_without_beam(folder, tmp_path, monkeypatch, options):
    monkeypatch.chdir(tmp_path)  # dataset.json holds the pattern as it was given.
    shutil.copytree("old", "there/old")
    (manifest,) = run(IndexArrayRecords(files=("old/*",)), argv=options)
    assert manifest.splits.keys() == {"train", "test"}
    monkeypatch.chdir(tmp_path / "there")
    expected, directory = index(IndexOptions(files=("old/*",)), workers=1)
    assert (manifest, directory) == (expected, "old")
    assert contents(folder) == contents("old")


def test_a_file_of_another_format_among_thousands(
    tmp_path: pathlib.Path,
) -> None:
    """Not all are looked at beforehand: it is refused when it is read."""
    write_array_records(tmp_path / "0000", text_records(5))
    wrong = tmp_path / "0001"
    wrong.write_bytes(frames_of(text_records(50)))
    for number in range(2, 2100):
        os.link(tmp_path / "0000", tmp_path / f"{number:04}")
    with pytest.raises(InputError, match="TFRecord") as caught:
        index(IndexOptions(files=(f"{tmp_path}/*",)), workers=1)
    assert str(wrong) in str(caught.value)
    assert not (tmp_path / "dataset.json").exists()


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
def test_what_is_indexed_is_read_and_verified(
    tmp_path: pathlib.Path, options: str, decoding: str
) -> None:
    path = tmp_path / "x-train.array_record-00000-of-00001"
    records = [*text_records(60), b"", bytes(70_000)]
    write_array_records(path, records, options=options)
    tasks = plan_index([str(path)])
    commit_index(Gathered.of(map(index_shard, tasks)), inputs=[str(path)])
    dataset = loader.open(tmp_path, verify="always")
    assert [dataset[i] for i in range(len(records))] == dataset[:] == records
    plan = plan_verify(str(tmp_path))
    assert [*plan.findings.first, *verify_shard(next(iter(plan.tasks))).findings] == []


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", ["group_size:1", "group_size:3"])
def test_damage_in_any_byte_is_refused(
    tmp_path: pathlib.Path, options: str, decoding: str
) -> None:
    path = tmp_path / "x-train.array_record-00000-of-00001"
    write_array_records(path, text_records(60), options=options)
    good = path.read_bytes()
    (task,) = plan_index([str(path)])
    end = int(footer_of(good).chunk_offsets[-1])
    # Of the signature and of what is behind the footer, nothing is used.
    step = 501 if decoding == "compiled" else 2999
    for at in [*range(64, 120, step // 500), *range(120, end + 100, step)]:
        data = bytearray(good)
        data[at] ^= 0x10
        path.write_bytes(data)
        with pytest.raises(CorruptShardError):
            index_shard(task)
    assert not (tmp_path / "index").exists()
