"""What is said of large files that one worker reads before the work begins."""

from __future__ import annotations

import numpy as np
import pytest

from gristmill.dataset.commit.write import Write
from gristmill.transforms.conversion.begin import plan_notes
from gristmill.transforms.jobs.conversion_job import PreparedJob
from gristmill.transforms.planning.shard_plan import PlanOptions, plan_by_bytes
from gristmill.transforms.sources.input_files import InputFiles
from tests.support.conversion import job_of

GB = 10**9


def notes_of(plan: tuple[str, int | None], *files: tuple[int, bool]) -> list[str]:
    """Returns notes on files of some sizes, compressed or not."""
    options = PlanOptions(kind=plan[0], value=plan[1])  # type: ignore[arg-type]
    listed = InputFiles(
        paths=[f"in/{number}" for number in range(len(files))],
        sizes=np.array([size for size, _ in files], np.int64),
        versions=[""] * len(files),
        compressions=np.array([compressed for _, compressed in files], np.uint8),
        noted_ns=np.zeros(len(files), np.int64),
    )
    return plan_notes(
        PreparedJob(
            job=job_of("in/*", "out", plan=plan),
            files=listed,
            plan=plan_by_bytes(options, listed.sizes, listed.splittable),
            write=Write(output="out", name="data", split="train"),
        )
    )


@pytest.mark.parametrize("compressed", [False, True])
def test_one_shard_a_file(compressed: bool) -> None:
    plan = ("match_shards", None)
    large = [(GB, compressed), (50, True), (3 * GB, compressed), (9 * GB, False)]
    if not compressed:
        assert notes_of(plan, *large) == []
        return
    (note,) = notes_of(plan, *large)
    assert "2 files that are read from their start are larger than 256 MiB" in note
    assert "in/2 (3,000,000,000 bytes) becomes one shard" in note
    (note,) = notes_of(plan, (GB, True))
    assert note.startswith("1 file that is read from its start is larger")
    assert notes_of(plan, (GB // 4, True)) == []


def test_many_shards_of_a_file() -> None:
    plan = ("shard_bytes", GB)
    (note,) = notes_of(plan, (4 * GB, True), (99 * GB, False), (7 * GB, True))
    assert "2 files that are read from their start are cut into 4 shards" in note
    assert "in/2 (7,000,000,000 bytes) is the longest" in note
    assert "7 of 110" in note
    assert notes_of(plan, (3 * GB, True), (99 * GB, False)) == []
    assert notes_of(("num_shards", 2), (3 * GB, True), (99 * GB, False)) == []
