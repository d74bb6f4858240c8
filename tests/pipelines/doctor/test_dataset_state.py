"""Jobs that were killed for real, what is said of them, and that the cures work."""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest

from gristmill.dataset import Writer
from gristmill.dataset.base.errors import InvalidDatasetError, NotADatasetError
from gristmill.dataset.metadata.manifest import read_manifest
from gristmill.dataset.storage.directory_lock import in_use
from gristmill.pipelines.doctor.dataset_place import DatasetPlace
from gristmill.pipelines.doctor.dataset_state import look_at_jobs
from gristmill.pipelines.doctor.finding import Finding
from gristmill.pipelines.text.status import Status, read_status
from gristmill.pipelines.verify import verify
from tests.support.buckets import upload
from tests.support.gcs_server import GcsServer
from tests.support.kills import Killer
from tests.support.records import frames_of, text_records

SHARDS = 4


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    with Killer(tmp_path_factory.mktemp("killer")) as killer:
        yield killer


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "in.tfrecord").write_bytes(frames_of(text_records(40)))
    return tmp_path


def command(folder: pathlib.Path, *options: str) -> list[str]:
    source, output = str(folder / "in.tfrecord"), str(folder / "out")
    shards = str(SHARDS)
    return [
        "convert",
        source,
        output,
        "--num-shards",
        shards,
        "--workers",
        "1",
        *options,
    ]


def killed(
    killer: Killer, argv: list[str], output: pathlib.Path, stage: Callable[[], int]
) -> None:
    """Kills a command at a step after which its output is at some stage.

    `stage` returns 0 at that stage, -1 before and 1 after it: the step is found by
    bisection.
    """
    before = output.parent / "before"
    if output.exists():
        shutil.copytree(output, before)
    first, last = 1, 1 << 7
    while first < last:
        shutil.rmtree(output, ignore_errors=True)
        if before.exists():
            shutil.copytree(before, output)
        step = (first + last) // 2
        at = stage() if killer.run(argv, kill_at=step).status else 1
        if not at:
            break
        first, last = (step + 1, last) if at < 0 else (first, step)
    else:
        pytest.fail("no step leads to it")
    shutil.rmtree(before, ignore_errors=True)


def status_of(output: pathlib.Path) -> Status | None:
    with contextlib.suppress(InvalidDatasetError, NotADatasetError):
        return read_status(str(output))
    return None


def some_shards(output: pathlib.Path, split: str) -> int:
    """Stages of a new split: 0 where some of its shards are finished."""
    status = status_of(output)
    splits = () if status is None else status.splits
    finished = sum(one.finished_shards for one in splits if one.split == split)
    return (finished == SHARDS) - (finished == 0)


def is_replaced(output: pathlib.Path) -> bool:
    """Tells whether the new files of `train` are there, and no others."""
    manifest = read_manifest(str(output))
    split = None if manifest is None else manifest.splits.get("train")
    return split is not None and split.writer_options.startswith("group_size:2")


def replacing(output: pathlib.Path) -> int:
    """Stages of a replacement: 0 while its new files are made."""
    status = status_of(output)
    if status is None:
        return -1
    begun = any("." in split.split for split in status.splits)
    return 1 if is_replaced(output) else 0 if begun else -1


def look(output: pathlib.Path | str) -> list[Finding]:
    return [*look_at_jobs(DatasetPlace(str(output)))]


@pytest.mark.slow
def test_a_killed_conversion_is_taken_up_or_given_up(
    killer: Killer, folder: pathlib.Path
) -> None:
    output, argv = folder / "out", command(folder)
    killed(killer, argv, output, lambda: some_shards(output, "train"))
    (found,) = look(output)
    assert found.level == "error"  # There is no dataset yet.
    assert "of 4 shards finished; no process of this machine works at it" in found.seen
    assert "0 minutes ago" in found.seen
    assert found.cure.startswith("run the same command again")

    (work,) = output.glob("tmp-*")
    with in_use(str(work)):
        (running,) = look(output)
    assert running.level == "ok"
    assert "a process of this machine works at it" in running.seen

    with GcsServer("bucket") as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", server.url)
        upload(server, output, "out")
        (remote,) = look("gs://bucket/out")
    assert remote.level == "error"
    assert "see it with `gristmill status gs://bucket/out`" in remote.cure

    other = folder / "given up"
    shutil.copytree(output, other)
    (found,) = look(other)
    _, _, cure = found.cure.partition("to give up: ")
    subprocess.run(cure, shell=True, check=True)
    assert [path for path in other.rglob("*") if path.is_file()] == []
    with pytest.raises(NotADatasetError):
        look(other)

    assert killer.run(argv).status == 0
    (found,) = look(output)
    assert found.level == "ok"
    assert found.seen == "out: 40 records in 4 shards, committed; nothing is left over"


@pytest.mark.slow
def test_a_conversion_that_was_killed_as_it_began(
    killer: Killer, folder: pathlib.Path
) -> None:
    output, argv = folder / "out", command(folder)

    def begun() -> int:
        job, files = (
            (output / "index" / f"out-train.{name}").exists()
            for name in ("job.json", "inputs.npz")
        )
        return files - (not job)

    killed(killer, argv, output, begun)
    (found,) = look(output)
    assert found.level == "error"
    assert "lacks its list of files" in found.seen
    assert found.cure.endswith("start over with --overwrite")
    assert killer.run([*argv, "--overwrite"]).status == 0
    assert look(output)[0].level == "ok"


@pytest.mark.slow
def test_a_killed_split_beside_others(killer: Killer, folder: pathlib.Path) -> None:
    output = folder / "out"
    assert killer.run(command(folder)).status == 0
    argv = command(folder, "--split", "validation")
    killed(killer, argv, output, lambda: some_shards(output, "validation"))
    (found,) = look(output)
    assert (found.level, "split validation" in found.seen) == ("warning", True)
    _, _, cure = found.cure.partition("to give up: ")
    subprocess.run(cure, shell=True, check=True)
    (found,) = look(output)
    assert found.level == "ok"
    assert read_manifest(str(output)).splits.keys() == {"train"}
    assert verify(str(output)).findings == ()


@pytest.mark.slow
def test_a_killed_replacement(killer: Killer, folder: pathlib.Path) -> None:
    output, argv = folder / "out", command(folder, "--overwrite", "--group-size", "2")
    assert killer.run(command(folder)).status == 0

    killed(killer, argv, output, lambda: replacing(output))
    (found,) = look(output)
    assert found.level == "warning"
    assert "split train.e00002: a job is not committed" in found.seen
    assert killer.run(argv).status == 0
    assert look(output)[0].level == "ok"


@pytest.mark.slow
def test_what_a_killed_command_left_in_a_dataset(
    killer: Killer, folder: pathlib.Path
) -> None:
    output, argv = folder / "out", command(folder)

    assert killer.run(argv).status == 0
    # As of a worker that was killed after the others had committed.
    work = output / "tmp-out-train"
    work.mkdir()
    (work / ".0123456789abcdef.tmp").write_bytes(bytes(2048))
    (found,) = look(output)
    assert found.level == "warning"
    assert "1 file of commands that were killed, or still run: 2.0 KiB" in found.seen
    cure, _, _ = found.cure.partition(", once")
    assert cure == f"rm -r {work}"
    subprocess.run(cure, shell=True, check=True)
    assert look(output)[0].level == "ok"


def test_a_program_that_did_not_commit(tmp_path: pathlib.Path) -> None:
    output = str(tmp_path / "numbers")

    def stop() -> None:
        with Writer(output) as writer:
            writer.write(b"1")
            raise KeyError

    with pytest.raises(KeyError):
        stop()
    (found,) = look(output)
    assert (found.level, "0 of 1 part finished" in found.seen) == ("warning", True)
    _, _, cure = found.cure.partition("to give up: ")
    subprocess.run(cure, shell=True, check=True)
    with pytest.raises(NotADatasetError):
        look(output)
