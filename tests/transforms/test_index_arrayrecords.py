"""`IndexArrayRecords` (`indexing.index_shard`): the same dataset on every runner.

Covers: transforms/indexing/index_shard.py.
"""

from __future__ import annotations

import pathlib
import shutil

import pytest

from gristmill.dataset.errors import CorruptShardError, InputError
from gristmill.pipelines.index import index
from gristmill.pipelines.options.definitions import IndexOptions
from gristmill.transforms import IndexArrayRecords
from tests.support.conversion import contents
from tests.support.graphs import graph_of
from tests.support.pipelines import BUNDLE_BASED, BUNDLES_TWICE, IN_MEMORY, run
from tests.support.records import text_records, write_array_records


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


def test_name_split_and_overwrite(folder):
    files = (f"{folder}/*train*",)
    (manifest,) = run(IndexArrayRecords(files=files, name="new", split="all"))
    assert (manifest.name, list(manifest.splits)) == ("new", ["all"])
    with pytest.raises(InputError, match="with this split already"):
        run(IndexArrayRecords(files=files, name="new", split="all"))
    again = IndexArrayRecords(files=files, name="new", split="all", overwrite=True)
    assert run(again) == [manifest]


def test_damage_commits_nothing(folder):
    path = folder / "old-train.array_record-00001-of-00003"
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptShardError, match="cannot read this ArrayRecord file"):
        run(IndexArrayRecords(files=(f"{folder}/*",)))
    assert not (folder / "dataset.json").exists()


def test_the_graph_has_no_side_input():
    assert not graph_of(IndexArrayRecords(files=("old/*",))).side_inputs
