"""What random reads of chunks with many records cost."""

from __future__ import annotations

import pathlib

import pytest

from gristmill.pipelines.doctor.dataset_place import DatasetPlace
from gristmill.pipelines.doctor.dataset_state import look_at_group_size
from tests.support.datasets import convert

RECORDS = [[bytes(1024)] * 40]


def test_one_record_in_a_chunk_suits_any_shuffle(tmp_path: pathlib.Path) -> None:
    (found,) = look_at_group_size(DatasetPlace(convert(tmp_path, RECORDS)))
    assert found.level == "ok"


@pytest.mark.parametrize(("group_size", "times"), [(16, 16), (100, 40)])
def test_a_global_shuffle_of_chunks_is_costly(
    tmp_path: pathlib.Path, group_size: int, times: int
) -> None:
    dataset = convert(tmp_path / "a b", RECORDS, group_size=group_size)
    convert(tmp_path / "a b", RECORDS, split="validation")
    found, fine = look_at_group_size(DatasetPlace(dataset))
    assert found.level == "warning"
    assert f"split train: chunks of {group_size} records of 1.0 KiB" in found.seen
    assert f"decodes {times}.0 KiB for each record" in found.why
    assert f"{times} times" in found.why
    assert 'shuffle="block"' in found.cure
    again = f"gristmill convert '{dataset}' '{dataset}-single' --group-size 1"
    assert again in found.cure
    assert fine.seen.startswith("validation:")


def test_without_a_dataset_nothing_is_said(tmp_path: pathlib.Path) -> None:
    assert [*look_at_group_size(DatasetPlace(str(tmp_path)))] == []
