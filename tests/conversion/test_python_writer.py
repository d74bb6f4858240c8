"""Python programs that write a dataset together, one of which is killed."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import signal

import pytest

from gristmill import loader
from gristmill.dataset import (
    DataLossError,
    NotADatasetError,
    Writer,
    commit_parts,
    read_manifest,
)
from gristmill.pipelines.verify import verify

RECORDS = [b"%03d " % number * 40 for number in range(25)]


def what_is_read(output: str) -> str:
    """Returns which records a reader meets, or that it meets none."""
    try:
        dataset = loader.open(output, "train", verify="never", cache_dir="")
    except NotADatasetError:
        return "nothing"
    records = dataset.read(range(len(dataset)))
    return {(b"old",): "old", tuple(RECORDS): "new"}[tuple(records)]


def write_part(output: str, part: int, kill_at: int | None) -> None:
    """Writes a third of the records, in a process of its own."""
    begin = 9 * part
    with Writer(output, part=part, parts=3, records_per_shard=3, resume=True) as writer:
        for number in range(begin + writer.position_records, min(begin + 9, 25)):
            if number == kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            writer.write(RECORDS[number])


@pytest.mark.slow
def test_processes_write_a_part_each(tmp_path: pathlib.Path) -> None:
    output, context = str(tmp_path / "out"), multiprocessing.get_context("spawn")

    def run(*parts: int, kill_at: int | None = None) -> list[int | None]:
        processes = [
            context.Process(target=write_part, args=(output, part, kill_at))
            for part in parts
        ]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        return [process.exitcode for process in processes]

    # The second is killed in its third shard.
    assert run(0, 1, 2, kill_at=16) == [0, -signal.SIGKILL, 0]
    with pytest.raises(DataLossError, match="part 1"):
        commit_parts(output)
    assert read_manifest(output) is None
    assert run(1) == [0]
    manifest = commit_parts(output)
    assert manifest.splits["train"].shards == 9
    assert what_is_read(output) == "new"
    assert not verify(output, workers=1).findings
