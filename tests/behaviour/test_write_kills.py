"""Writes of pipelines that replace a split, killed at every step and started again."""

from __future__ import annotations

import pathlib
import shutil
import textwrap
from collections.abc import Iterator

import pytest

from gristmill import loader
from gristmill.dataset import Writer
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.verify import verify
from tests.support.conversion import contents
from tests.support.gcs_server import GcsServer
from tests.support.kills import Killer

KILLED = -9
# What `WriteArrayRecords` calls, one after the other, without a pipeline's start.
PROGRAM = """
    import sys

    import google_crc32c
    import numpy as np

    from gristmill.dataset.arrayrecord.writer_options import WriterOptions
    from gristmill.dataset.base.columns import Gathered
    from gristmill.dataset.base.digest import RecordsDigest
    from gristmill.transforms.writing.write_split import WriteJob, pack_count
    from gristmill.transforms.writing.write_split import begin_write
    from gristmill.transforms.writing.write_split import commit_write
    from gristmill.transforms.writing.write_group import assign_record, encode_task
    from gristmill.transforms.writing.write_group import write_group

    job = WriteJob(
        output=sys.argv[1],
        name="data",
        split="train",
        num_shards=3,
        shard_bytes=None,
        keyed=False,
        writer=WriterOptions(),
    )
    groups, counts = [[], [], []], b""
    for number in range(25):
        record = b"%03d " % number * 40
        group, element = assign_record(record, 3)
        groups[group].append(element)
        word = google_crc32c.value(record) | len(record) << 32
        digest = RecordsDigest.of_words(np.array([word], np.uint64))
        counts += pack_count(group, digest.pack())
    plan = begin_write(job, counts, groups=3, overwrite=True)
    made = Gathered.of(
        write_group(job, group, [*groups[group], encode_task(task)])
        for group, task in plan.tasks()
    )
    commit_write(made, keep_replaced="keep" in sys.argv)
"""
NEW = sorted(b"%03d " % number * 40 for number in range(25))


@pytest.fixture
def program(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    return str(path)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


def write_old(output: str) -> None:
    with Writer(output, name="data") as writer:
        writer.write(b"old")


def what_is_read(output: str) -> str:
    dataset = loader.open(output, "train", verify="never", cache_dir="")
    records = dataset.read(range(len(dataset)))
    return {(b"old",): "old", tuple(NEW): "new"}[tuple(sorted(records))]


STRIDES = [
    41,
    pytest.param(1, marks=pytest.mark.soak),
]


@pytest.mark.slow
@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("option", ["", pytest.param("keep", marks=pytest.mark.slow)])
def test_a_kill_at_any_step_leaves_the_old_or_the_new(
    program: str, tmp_path: pathlib.Path, option: str, stride: int
) -> None:
    output, kill_at = tmp_path / "out", stride // 2 + 1
    met = []
    with Killer(tmp_path) as killer:
        write_old(str(output))
        (old,) = (path.name for path in output.glob("*.array_record*"))
        assert killer.run([program, str(output), option]).status == 0
        expected = contents(output)
        assert len(open_manifest(str(output)).splits["train"].write) == 16
        # What was replaced is gone, unless it is to be kept.
        assert (old in expected) == (option == "keep")
        while True:
            shutil.rmtree(output)
            write_old(str(output))
            argv = [program, str(output), option]
            ended = killer.run(argv, kill_at=kill_at)
            met.append(what_is_read(str(output)))
            if ended.status != KILLED:
                break
            # What comes next can be killed as well.
            killer.run(argv, kill_at=kill_at % 17 + 3)
            again = killer.run(argv)
            assert again.status == 0, again.error
            assert contents(output) == expected
            kill_at += stride
    assert ended.status == 0, ended.error
    assert (met[0], met[-1], {*met}) == ("old", "new", {"old", "new"})
    found = verify(str(output), workers=1)
    assert (found.findings, found.leftovers) == ((), ())


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.slow
def test_a_kill_at_any_request_leaves_the_old_or_the_new(
    server: GcsServer, program: str, tmp_path: pathlib.Path, stride: int
) -> None:
    output, kill_at = "gs://bucket/out", stride // 2 + 1
    met = []
    stored = server.objects.buckets["bucket"]
    with Killer(tmp_path) as killer:
        write_old(output)
        assert killer.run([program, output]).status == 0
        expected = {name: found.data for name, found in stored.items()}
        while True:
            stored.clear()
            write_old(output)
            argv = [program, output]
            ended = killer.run(argv, kill_at=kill_at, after=kill_at % 2 == 0)
            met.append(what_is_read(output))
            if ended.status != KILLED:
                break
            again = killer.run(argv)
            assert again.status == 0, again.error
            assert {name: found.data for name, found in stored.items()} == expected
            kill_at += stride
    assert ended.status == 0, ended.error
    assert (met[0], met[-1], {*met}) == ("old", "new", {"old", "new"})
