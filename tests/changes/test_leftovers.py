"""What killed commands leave, and who deletes it."""

import functools
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest

from gristmill.dataset import InvalidDatasetError
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import RESULT
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.anywhere import verify
from gristmill.pipelines.text.printer import text_of
from gristmill.transforms.conversion.begin import begin_job
from tests.changes import changes
from tests.changes.changes import NAME, assert_whole, remove
from tests.support.conversion import contents, job_of

RECORDS = [b"<record %d>" % n for n in range(60)]
UNFINISHED = ".0123456789abcdef.tmp"
WRITE = "0123456789abcdef"
RESULT_PATH = layout.result_path(NAME, "train", WRITE)


@pytest.fixture
def source(tmp_path):
    return changes.write_inputs(tmp_path, "in", RECORDS)


@pytest.fixture
def made(output, source):
    changes.convert(output, source)
    return output


@pytest.fixture
def here(tmp_path, source):
    changes.convert(str(tmp_path / "here"), source)
    return tmp_path / "here"


def left_in(output):
    found = verify(str(output), quick=True)
    assert found.findings == ()  # Nothing is wrong with the dataset.
    return sorted(found.leftovers)


# Who deletes what was left, and whether also where the split is another one.
BY = {
    "the same command": changes.convert,
    "overwrite": functools.partial(changes.convert, overwrite=True),
    "erase": lambda out, source: remove(out, [17], erase=True),
    "another split": functools.partial(changes.convert, split="test"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "place", ["", "index/", "errors/", "columns/", f"tmp-{NAME}-train/"]
)
@pytest.mark.parametrize("by", BY)
def test_of_a_committed_dataset(here, source, place, by):
    name = f"{place}{UNFINISHED}"
    (here / name).parent.mkdir(exist_ok=True)
    (here / name).write_bytes(RECORDS[17])
    assert left_in(here) == [name]
    said = text_of(verify(str(here), quick=True))
    assert "1 file of a command that was killed, or that still runs: " in said
    assert "gristmill clean deletes 1 file" in said
    assert "--unfinished" not in said
    BY[by](str(here), source)
    if by == "another split" and place == f"tmp-{NAME}-train/":
        assert (here / name).exists()  # Somebody may be at work.
    else:
        gone = by == "erase"
        assert_whole(str(here), [r for r in RECORDS if not gone or r != RECORDS[17]])
        assert not gone or changes.files_with(str(here), RECORDS[17:18]) == []


@pytest.mark.parametrize("split", ["train", "test"])
def test_the_result_of_a_killed_beam_run(made, source, split):
    place = f"{made}/{RESULT_PATH}"
    storage_for(made).write(place, b"x")
    assert left_in(made) == [RESULT_PATH]
    changes.convert(made, source, split=split)
    # Beside another split somebody may be at work.
    assert left_in(made) == [RESULT_PATH] * (split == "test")


def test_what_cannot_be_deleted_does_not_make_a_commit_fail(here, source):
    for directory in ("", "index"):
        (here / directory / UNFINISHED).mkdir()
    os.mkfifo(here / RESULT_PATH)
    changes.convert(str(here), source, overwrite=True)
    changes.convert(str(here), source)
    assert (here / "index" / UNFINISHED).is_dir()
    assert changes.records_of(str(here)) == RECORDS


def test_temporary_files_that_somebody_writes_stay(tmp_path, source):
    output = str(tmp_path / "out")
    temporary = layout.temporary_dir(output, NAME, "train")
    with storage_for(output).temporary(temporary) as local:
        path = pathlib.Path(local)
        path.write_bytes(b"half")
        changes.convert(output, source)
        clean(output, unfinished=True)
        assert path.read_bytes() == b"half"
        assert left_in(output) == [f"tmp-{NAME}-train/{path.name}"]
    changes.convert(output, source)
    assert_whole(output, RECORDS)


def test_of_a_split_that_was_never_finished(here, source):
    begin_job(job_of(source, here, name=NAME, split="test"))
    described = f"index/{NAME}-test.inputs.npz", f"index/{NAME}-test.job.json"
    begun = f"tmp-{NAME}-test/{UNFINISHED}"
    (here / begun).parent.mkdir()
    (here / begun).write_bytes(b"half")
    assert left_in(here) == [*described, begun]
    said = text_of(verify(str(here), quick=True))
    assert "gristmill clean --unfinished deletes them" in said
    assert "clean deletes" not in said
    clean(str(here))
    assert left_in(here) == [*described, begun]


def test_of_a_first_edition(made):
    """Others may use the names of its shards, but none has an index beside it."""
    name = f"{NAME}-train.array_record-00000-of-00003"
    storage = storage_for(made)
    for path in ("{}", "index/{}.index"):
        data = storage.read(f"{made}/{path.format(name.replace('3', '2'))}")
        storage.write(f"{made}/{path.format(name)}", data)
    assert left_in(made) == [name, f"index/{name}.index"]
    assert "gristmill clean deletes 2 files" in text_of(verify(made, quick=True))
    clean(made)
    assert left_in(made) == []
    storage.write(f"{made}/{name}", b"of others")
    (finding,) = verify(made, quick=True).findings
    assert "named like a shard of train" in str(finding)
    clean(made)
    assert storage.read(f"{made}/{name}") == b"of others"


@pytest.mark.parametrize("place", ["index", "columns", "errors", f"tmp-{NAME}-train"])
def test_no_link_is_followed(tmp_path, here, source, place):
    output, elsewhere = str(here), tmp_path / "elsewhere"
    elsewhere.mkdir()
    if (here / place).exists():
        shutil.copytree(here / place, elsewhere, dirs_exist_ok=True)
        shutil.rmtree(here / place)
    (here / place).symlink_to(elsewhere)
    stray = f"{NAME}-train.array_record-{WRITE}-00000-of-00001"
    described = f"{NAME}-train.{WRITE}.job.json"
    own = (f"{stray}.index", f"{stray}.jsonl", f"{stray}.x-{WRITE}")
    for file in (UNFINISHED, described, *own):
        (elsewhere / file).write_bytes(b"of others")
    before = contents(elsewhere)
    for change, replaces in (
        (lambda: clean(output, unfinished=True), False),
        (lambda: remove(output, [17], erase=True), False),
        (lambda: changes.convert(output, source, overwrite=True), True),
    ):
        if place.startswith("tmp-") or (replaces and place != "index"):
            change()
        else:
            with pytest.raises(InvalidDatasetError, match="symbolic link"):
                change()
        assert contents(elsewhere) == before


KILLED_RUNNER = """
import os, sys
import gristmill.pipelines.beam.run_pipeline as beam_run
from gristmill.pipelines.commands.main import main
true_wait = beam_run._wait
# Killed after the pipeline is done, before its result is taken: no storage is used.
def wait(result):
    true_wait(result)
    os.kill(os.getpid(), 9)
beam_run._wait = wait
main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_beam_run_that_is_killed_before_it_takes_its_result(source, tmp_path):
    output = str(tmp_path / "out")

    def run(*program):
        line = f"convert {source} {output} --name={NAME} --runner=FnApiRunner"
        argv = [sys.executable, *program, *line.split()]
        return subprocess.run(argv, capture_output=True, timeout=120)

    killed = run("-c", KILLED_RUNNER)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert changes.split_of(output).records == len(RECORDS)
    (left,) = left_in(output)
    assert RESULT.parse(left)
    done = run("-m", "gristmill")
    assert done.returncode == 0, done.stderr
    assert_whole(output, RECORDS)
