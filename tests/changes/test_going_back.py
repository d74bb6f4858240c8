"""Going back to earlier editions, cleaning, and what readers see of both."""

from __future__ import annotations

import pathlib
import shutil

import pytest
from click.testing import CliRunner, Result

from gristmill import loader
from gristmill.dataset.base.errors import (
    InputError,
    NotADatasetError,
    StorageMissingError,
)
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.commit.commit import roll_back
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.anywhere import verify
from gristmill.pipelines.commands.main import cli
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import make_shard, shard_tasks
from gristmill.transforms.jobs.conversion_job import ShardNames
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import convert, job_of
from tests.support.editions import add_edition, files_of, replace_by_newest
from tests.support.records import frames_of, text_records
from tests.support.watched import at_storage

RECORDS = {n: text_records(10 + n, seed=n) for n in (1, 2, 3)}


def records_of(output: str, edition: int | None = None) -> list[bytes]:
    return list(loader.open(output, "train", edition=edition))


def run(*arguments: str) -> Result:
    done = CliRunner().invoke(cli, arguments)
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Datasets: `appended` of editions 1 and 2, `replaced` of 2 that replaced 1."""
    folder = tmp_path_factory.mktemp("made")
    add_edition(folder, str(folder / "first"), 1, RECORDS[1])
    shutil.copytree(folder / "first", folder / "appended")
    add_edition(folder, str(folder / "appended"), 2, RECORDS[2])
    shutil.copytree(folder / "appended", folder / "replaced")
    replace_by_newest(str(folder / "replaced"))
    return folder


@pytest.fixture
def appended(made: pathlib.Path, tmp_path: pathlib.Path) -> str:
    return str(shutil.copytree(made / "appended", tmp_path / "out"))


@pytest.fixture
def replaced(made: pathlib.Path, tmp_path: pathlib.Path) -> str:
    return str(shutil.copytree(made / "replaced", tmp_path / "out"))


def put(source: pathlib.Path, output: str) -> None:
    """Copies a dataset to where it is to be."""
    storage = storage_for(output)
    for path in source.rglob("*"):
        if path.is_file():
            to = layout.join(output, path.relative_to(source).as_posix())
            storage.write(to, path.read_bytes())


class TestRollback:
    def test_what_cannot_be(self, replaced, tmp_path):
        with pytest.raises(InputError, match="expected: edition 1, 2"):
            roll_back(replaced, "train", 3)
        with pytest.raises(InputError, match="no such split"):
            roll_back(replaced, "test", 1)
        with pytest.raises(NotADatasetError):
            roll_back(str(tmp_path / "nothing"), "train", 1)
        (first,) = pathlib.Path(replaced).glob("*record-00000-*")
        before = files_of(replaced)
        first.unlink()
        with pytest.raises(StorageMissingError, match="not there any more"):
            roll_back(replaced, "train", 1)
        first.write_bytes(before[first.name])
        assert files_of(replaced) == before


@pytest.mark.slow
def test_no_request_is_for_a_shard(tmp_path, monkeypatch):
    counts = []
    for shards in (2, 8):
        with GcsServer("bucket") as server:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
            for edition in (1, 2):
                add_edition(tmp_path, "gs://bucket/d", edition, RECORDS[1], shards)
            before = server.requests.total()
            roll_back("gs://bucket/d", "train", 1)
            counts.append(server.requests.total() - before)
    assert counts[0] == counts[1]


class TestClean:
    def test_what_no_edition_names_goes(self, made, output):
        put(made / "replaced", output)
        before = files_of(output)
        told: dict[str, int] = {}
        found = clean(output, delete=False, seen=told.__setitem__)
        assert files_of(output) == before
        assert found.editions == (("train", 1),)
        assert clean(output) == found
        assert (found.files, found.file_bytes) == (len(told), sum(told.values()))
        after = files_of(output)
        assert before.keys() - after.keys() == told.keys()
        assert {name: len(before[name]) for name in told} == told
        assert records_of(output) == RECORDS[2]
        assert clean(output).files == 0
        assert files_of(output) == after
        result = verify(output, workers=1)
        assert (result.findings, list(result.leftovers)) == ((), [])

    def test_files_of_others_beside_a_replaced_edition_stay(self, replaced):
        (first, _) = sorted(pathlib.Path(replaced).glob("*.array_record-?????-of-*"))
        others = [
            first.with_name(f"{first.name}.md5"),
            first.with_name("d-train.array_record-notes"),
            pathlib.Path(replaced, "errors", f"{first.name}.md5.jsonl"),
        ]
        others[-1].parent.mkdir()
        for path in others:
            path.write_bytes(b"mine")
        clean(replaced, unfinished=True)
        assert not first.exists()
        assert all(path.exists() for path in others)

    def test_directories_of_commands_that_were_killed(self, made, output):
        put(made / "appended", output)
        before = files_of(output)
        storage = storage_for(output)
        committed = open_manifest(output).splits["train"].part(2).write
        left = {
            # Of one that was killed just after its commit.
            f"tmp-d-train.{committed}/.0.tmp": False,
            "tmp-d-train/.0.tmp": False,
            f"tmp-d-train.{'0' * 16}/.0.tmp": True,
        }
        others = ["tmp-d-train.old/a", "tmp-d-trains/a"]
        for path in (*left, *others):
            storage.write(layout.join(output, path), b"{}")
        clean(output)
        there = {path for path, unfinished in left.items() if unfinished}
        assert files_of(output).keys() - before.keys() == {*others, *there}
        clean(output, unfinished=True)
        assert files_of(output).keys() - before.keys() == {*others}

    def test_nothing_goes_where_a_table_cannot_be_read(self, appended):
        roll_back(appended, "train", 1)
        split = open_manifest(appended).splits["train"]
        pathlib.Path(appended, split.table).unlink()
        shards = {path for path in files_of(appended) if ".array_record-" in path}
        with pytest.raises(StorageMissingError):
            clean(appended)
        assert shards <= files_of(appended).keys()

    def test_of_shards_that_are_named_otherwise(self, tmp_path, output):
        """As the stand-ins for other functions name them: no write is in the name."""
        for number in (1, 2, 3):
            folder = tmp_path / str(number)
            folder.mkdir()
            (folder / f"x{number}").write_bytes(frames_of(RECORDS[number]))
            names = ShardNames(kind="inputs", suffix=".ar")
            job = job_of(folder, output, names=names, plan=("match_shards", None))
            convert(job, overwrite=True)
        (shard,) = (path for path in files_of(output) if path.endswith(".ar"))
        assert shard.endswith("-x3.ar")
        found = verify(output, workers=1)
        assert (found.findings, list(found.leftovers)) == ((), [])

    def test_work_that_is_committed_meanwhile_stays(
        self, made, tmp_path, output, monkeypatch
    ):
        """It commits just when a cleaning of unfinished work has seen its files."""
        put(made / "appended", output)
        inputs = tmp_path / "inputs"
        inputs.mkdir()
        (inputs / "in.tfrecord").write_bytes(frames_of(RECORDS[3]))
        job = job_of(inputs, output, name="d", appends=True)
        tasks = shard_tasks(begin_job(job).prepared)
        results = [make_shard(task) for task in tasks]

        at_storage(
            monkeypatch,
            "write",
            "dataset.json",
            lambda: commit_shards([job], results),
        )
        clean(output, unfinished=True)
        assert records_of(output) == RECORDS[1] + RECORDS[2] + RECORDS[3]
        assert not verify(output, workers=1).findings


class TestAfterARemoval:
    def test_files_and_cleaning(self, appended, made):
        import grain.python as grain

        gone = [0, 13]  # One of each edition.
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(pathlib.Path(appended).parent)
            pathlib.Path("gone.txt").write_text("0\n13\n")
            run("remove", appended, "--records", "gone.txt", "--workers", "1")
        both = RECORDS[1] + RECORDS[2]
        left = [record for n, record in enumerate(both) if n not in gone]
        files = run("inspect", appended, "--files").stdout.splitlines()
        source = grain.ArrayRecordDataSource(files)
        assert [source[i] for i in range(len(source))] == left
        text = run("inspect", appended).output
        assert "edition   3, by remove, of 1 record of edition 1: 10 records" in text
        assert "give the files that `gristmill inspect --files` prints" in text
        run("rollback", appended, "2")
        assert records_of(appended) == both
        run("rollback", appended, "4")
        run("clean", appended)
        assert records_of(appended) == left
        result = verify(appended, workers=1)
        assert (result.findings, list(result.leftovers)) == ((), [])
        # Shards that lost nothing are those of the editions before.
        kept = {path.rpartition("/")[2] for path in files}
        assert kept == {p.name for p in pathlib.Path(appended).glob("*.array_record-*")}
        assert kept & files_of(str(made / "appended")).keys()
