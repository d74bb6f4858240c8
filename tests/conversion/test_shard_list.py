"""Which shards a dataset has, and which files patterns match."""

from __future__ import annotations

import pathlib

import pytest

from gristmill.dataset.base.errors import InputError, NotADatasetError
from gristmill.dataset.metadata import layout
from gristmill.transforms.sources.shards.source_split import list_shards
from tests.support.conversion import dataset_of, shards_of
from tests.support.records import write_array_records


def test_splits_are_joined_by_a_list_and_not_by_a_pattern(tmp_path, caplog):
    for split in ("train", "test"):
        name = f"d-{split}.array_record-00000-of-00001"
        write_array_records(tmp_path / name, [split.encode()])
    with pytest.raises(InputError, match="several splits"):
        list(list_shards([f"{tmp_path}/*"], None))
    found = list(list_shards([f"{tmp_path}/d-tr*", f"{tmp_path}/d-te*"], None))
    assert len(found) == 2
    assert "splits are joined" in caplog.text


def test_a_pattern_leaves_out_what_describes_a_dataset(tmp_path):
    dataset = dataset_of(tmp_path, [b"a"] * 3)
    found = [shard.path for shard in list_shards([f"{dataset}/*"], None)]
    assert found == [f"{dataset}/{shard}" for shard in shards_of(dataset)]


def test_what_is_no_dataset(tmp_path: pathlib.Path) -> None:
    dataset = dataset_of(tmp_path, [b"a"] * 3)
    (dataset / layout.DATASET_JSON).unlink()
    with pytest.raises(NotADatasetError, match="unfinished"):
        list(list_shards([str(dataset)], None))
    with pytest.raises(NotADatasetError):
        list(list_shards([str(tmp_path / "nowhere")], None))
    with pytest.raises(InputError, match="no ArrayRecord file"):
        list(list_shards([str(tmp_path / "no*")], None))
    with pytest.raises(InputError, match="files have no splits"):
        list(list_shards([str(dataset / "*.array_record*")], "train"))
