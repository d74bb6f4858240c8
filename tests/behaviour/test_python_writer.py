"""Python programs that write a dataset, killed at every step and started again."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import shutil
import signal
import textwrap
from collections.abc import Iterator

import pytest

from gristmill import loader
from gristmill.dataset import (
    DataLossError,
    NotADatasetError,
    Writer,
    commit_parts,
    open_manifest,
    read_manifest,
)
from gristmill.pipelines.verify import verify
from tests.support.conversion import contents
from tests.support.gcs_server import GcsServer
from tests.support.kills import Killer

KILLED = -9
RECORDS = [b"%03d " % number * 40 for number in range(25)]
PROGRAM = """
    import sys

    from gristmill.dataset import Writer

    options = dict.fromkeys(sys.argv[2:], True)
    with Writer(sys.argv[1], name="data", records_per_shard=10, **options) as writer:
        for number in range(writer.position_records, 25):
            writer.write(b"%03d " % number * 40)
"""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.fixture
def program(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROGRAM))
    return str(path)


@pytest.fixture
def expected(tmp_path: pathlib.Path) -> list[dict[str, bytes]]:
    """The files of a dataset that was written again and again without a break."""
    output, made = tmp_path / "expected", []
    for _ in range(4):
        with Writer(
            output, name="data", records_per_shard=10, overwrite=True
        ) as writer:
            for record in RECORDS:
                writer.write(record)
        made.append(contents(output))
    return made


def what_is_read(output: str) -> str:
    """Returns which records a reader meets, or that it meets none."""
    try:
        dataset = loader.open(output, "train", verify="never", cache_dir="")
    except NotADatasetError:
        return "nothing"
    records = dataset.read(range(len(dataset)))
    return {(b"old",): "old", tuple(RECORDS): "new"}[tuple(records)]


STRIDES = [
    23,
    pytest.param(1, marks=pytest.mark.soak),
]


@pytest.mark.slow
@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.parametrize("replacing", [False, True])
def test_a_kill_at_any_step_loses_nothing(
    program: str,
    expected: list[dict[str, bytes]],
    tmp_path: pathlib.Path,
    replacing: bool,
    stride: int,
) -> None:
    output, options = tmp_path / "out", ["resume"]
    if replacing:
        options.append("overwrite")
    met, kill_at = [], stride // 2 + 1
    with Killer(tmp_path) as killer:
        while True:
            if replacing:
                with Writer(output, name="data") as writer:
                    writer.write(b"old")
            ended = killer.run([program, str(output), *options], kill_at=kill_at)
            met.append(what_is_read(str(output)))
            if ended.status != KILLED:
                break
            # What comes next can be killed as well.
            killer.run([program, str(output), *options], kill_at=kill_at % 17 + 3)
            again = killer.run([program, str(output), *options])
            assert again.status == 0, again.error
            edition = open_manifest(output).splits["train"].edition
            assert edition > 1 or not replacing
            # The id of a replacement depends on what it replaces.
            if not replacing:
                assert contents(output) == expected[edition - 1]
            found = verify(str(output), workers=1)
            assert (found.findings, found.leftovers) == ((), ())
            assert what_is_read(str(output)) == "new"
            shutil.rmtree(output)
            kill_at += stride
    assert ended.status == 0, ended.error
    before = "old" if replacing else "nothing"
    assert {*met} <= {before, "new"}
    assert (met[0], met[-1]) == (before, "new")


@pytest.mark.parametrize("stride", STRIDES)
@pytest.mark.slow
def test_a_kill_at_any_request_loses_nothing(
    server: GcsServer,
    program: str,
    expected: list[dict[str, bytes]],
    tmp_path: pathlib.Path,
    stride: int,
) -> None:
    output, met, kill_at = "gs://bucket/out", [], stride // 2 + 1
    argv = [program, output, "resume"]
    with Killer(tmp_path) as killer:
        while True:
            # Before it is sent, or before the answer is read.
            ended = killer.run(argv, kill_at=kill_at, after=kill_at % 2 == 0)
            met.append(what_is_read(output))
            if ended.status != KILLED:
                break
            again = killer.run(argv)
            assert again.status == 0, again.error
            stored = server.objects.buckets["bucket"]
            names = {name.removeprefix("out/") for name in stored}
            found = {name: stored[f"out/{name}"].data for name in names}
            assert found == expected[0]
            stored.clear()
            kill_at += stride
    assert ended.status == 0, ended.error
    assert {*met} <= {"nothing", "new"}
    assert (met[0], met[-1]) == ("nothing", "new")


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
