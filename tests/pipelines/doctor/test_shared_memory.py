"""Room for batches. A small `/dev/shm` is mounted in `test_disks.py`."""

from __future__ import annotations

import pathlib

from gristmill.pipelines.doctor.dataset_place import DatasetPlace
from gristmill.pipelines.doctor.shared_memory import look_at_shared_memory
from gristmill.pipelines.local.pool import default_workers
from gristmill.pipelines.text.formatting import size_text
from tests.support.datasets import convert


def test_the_need_follows_from_records_and_workers(tmp_path: pathlib.Path) -> None:
    dataset = convert(tmp_path, [[bytes(3000), bytes(1000)]])
    first, *_ = look_at_shared_memory(DatasetPlace(dataset))
    needed = 2 * default_workers() * 1024 * 2000
    assert f"need {size_text(needed)}" in first.seen
    usual, *_ = look_at_shared_memory(None)
    assert f"need {size_text(2 * default_workers() * (16 << 20))}" in usual.seen
