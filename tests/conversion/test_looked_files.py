"""Looking into files in parts: the same looks, in the order of the files."""

from __future__ import annotations

import pathlib
import pickle
import random

import pytest

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import DataLossError
from gristmill.dataset.storage.base import FileInfo
from gristmill.transforms.sources.find_inputs import (
    look_at_part,
    look_tasks,
    looked_files,
    match_files,
)
from gristmill.transforms.sources.input_formats import look_at
from tests.support.records import text_records, write_tfrecords


@pytest.fixture
def files(tmp_path: pathlib.Path) -> list[FileInfo]:
    """Seven files of several kinds."""
    for number, kind in enumerate(("", "GZIP", "", "ZLIB", "")):
        write_tfrecords(tmp_path / str(number), text_records(3), compression=kind)
    (tmp_path / "5").write_bytes(b"PAR1")
    (tmp_path / "6").write_bytes(b"\xfe\x01")
    return match_files([str(tmp_path)])


def test_parts_in_any_order_and_twice(files: list[FileInfo]) -> None:
    tasks = list(look_tasks("train", files, part_files=3))
    assert [len(task.files) for task in tasks] == [3, 3, 1]
    tasks += [*look_tasks("test", files[:2], part_files=3), tasks[1]]
    random.Random(1).shuffle(tasks)
    whole, other = Gathered(), Gathered()
    for number, task in enumerate(tasks):
        sent = pickle.loads(pickle.dumps(task))
        look_at_part(sent).gather((whole, other)[number % 2])
    whole.extend(pickle.loads(pickle.dumps(other)))
    assert looked_files(whole, "train") == (files, look_at(files))
    assert looked_files(whole, "test") == (files[:2], look_at(files[:2]))


def test_a_part_that_is_missing(files: list[FileInfo]) -> None:
    looked = Gathered()
    for task in list(look_tasks("train", files, part_files=3))[1:]:
        look_at_part(task).gather(looked)
    with pytest.raises(DataLossError, match="not all parts of the listing"):
        looked_files(looked, "train")
    with pytest.raises(DataLossError):
        looked_files(looked, "test")
