"""Records that are erased: no file holds them, whatever was killed before."""

from __future__ import annotations

import json
import pathlib
import shutil
from collections.abc import Iterator

import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
    InvalidDatasetError,
    JobChangedError,
)
from gristmill.dataset.commit.clean import clean
from gristmill.dataset.metadata.layout import DIRECTORIES
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.anywhere import verify
from gristmill.pipelines.columns.attach import attach_tables
from gristmill.pipelines.columns.row_store import JoinBy
from gristmill.pipelines.convert import convert as run_conversion
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import ConvertOptions
from gristmill.pipelines.removal import Removed, remove
from tests.faults.kills import Killer
from tests.support.records import frames_of
from tests.support.watched import at_storage

KILLED = -9
# No compression: where they are, a search of the bytes finds them.
RECORD = b"a record that has to go"
VALUE = "a value that has to go"
RECORDS = [RECORD if n == 17 else b"record %03d of a dataset" % n for n in range(40)]
OPTIONS = ("--num-shards=2", "--compression=uncompressed", "--workers=1")
OVERWRITE = ("convert", "in", "out", "--name=d", "--overwrite", *OPTIONS)
COMMANDS = {
    "attach": ("attach", "out", "values.jsonl", "--number=n", "--workers=1"),
    "overwrite": OVERWRITE,
    "kept": (*OVERWRITE, "--keep-replaced"),
    "append": ("append", "out", "more", *OPTIONS),
    "unique": ("unique", "out", "--by=record", "--workers=1"),
    "remove": ("remove", "out", "--records=others", "--workers=1"),
    "erase": ("remove", "out", "--records=others", "--erase", "--workers=1"),
}
UNFINISHED = ".0123456789abcdef.tmp"
WRITE = "0123456789abcdef"
STRAY = f"d-train.array_record-{WRITE}-00001-of-00002"


def holding(output: str) -> list[str]:
    """Returns the files of a dataset that hold the record or its value."""
    storage = storage_for(output)
    return [
        info.path
        for info in sorted(storage.scan(output, deep=True))
        if any(word in storage.read(info.path) for word in (RECORD, VALUE.encode()))
    ]


def write_inputs(folder: pathlib.Path) -> None:
    """Writes what there is to convert, to append, to attach and to remove."""
    for name, records in (("in", RECORDS), ("more", RECORDS[15:20])):
        (folder / name).mkdir()
        (folder / name / "x.tfrecord").write_bytes(frames_of(records))
    rows = ({"n": n, "text": VALUE if n == 17 else f"value {n}"} for n in range(40))
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "values.jsonl").write_text(lines)
    (folder / "others").write_text("3\n30\n")


def convert(folder: pathlib.Path, output: str, **options: object) -> None:
    options = {"num_shards": 2, "compression": "uncompressed", **options}
    given = {"input": (f"{folder}/in",), "output": output, "name": "d", **options}
    run_conversion(**conversion_of(ConvertOptions(**given))._asdict())


def attach(folder: pathlib.Path, output: str) -> None:
    by = JoinBy(feature=None, key="n")
    attach_tables(output, [f"{folder}/values.jsonl"], by, workers=1)


def erase(output: str, **options: object) -> Removed:
    numbers = {"records": [17]}
    result = remove(output, numbers, erase=True, workers=1, **options)
    return Removed(dataset=output, result=result, erased=True)


def leftovers(output: str) -> list[str]:
    found = verify(output, quick=True)
    assert found.findings == ()
    return sorted(found.leftovers)


class TestLeft:
    """What an earlier command has left."""

    @pytest.fixture
    def made(self, tmp_path: pathlib.Path, output: str) -> str:
        write_inputs(tmp_path)
        convert(tmp_path, output)
        return output

    @pytest.mark.parametrize("place", [*DIRECTORIES, "tmp-d-train"])
    def test_a_file_that_was_being_written(self, tmp_path, place: str) -> None:
        write_inputs(tmp_path)
        output = str(tmp_path / "out")
        convert(tmp_path, output)
        left = tmp_path / "out" / place / UNFINISHED
        left.parent.mkdir(exist_ok=True)
        left.write_bytes(RECORD)
        assert leftovers(output) == [str(left.relative_to(output))]
        erase(output)
        assert holding(output) == []
        assert leftovers(output) == []

    def test_values_of_columns_that_were_given_up(
        self, tmp_path, made: str, monkeypatch
    ) -> None:
        """Its process still runs, and writes a file."""
        at_storage(monkeypatch, "write", "/columns/", lambda: erase(made, give_up=True))
        with pytest.raises(JobChangedError):
            attach(tmp_path, made)
        left = holding(made)
        assert [f"{made}/{path}" for path in leftovers(made) if "columns/" in path]
        assert left
        clean(made)
        assert (holding(made), leftovers(made)) == ([], [])

    def test_a_shard_of_a_first_edition(self, tmp_path, made: str) -> None:
        """Others may use its names, but none has an index beside it."""
        name = "d-train.array_record-00000-of-00003"
        storage = storage_for(made)
        for path in ("{}", "index/{}.index"):
            data = storage.read(f"{made}/{path.format(name.replace('3', '2'))}")
            storage.write(f"{made}/{path.format(name)}", data)
        assert leftovers(made) == [name, f"index/{name}.index"]
        clean(made)
        assert leftovers(made) == []
        storage.write(f"{made}/{name}", b"of others")
        (finding,) = verify(made, quick=True).findings
        assert "named like a shard of train" in str(finding)
        clean(made)
        assert storage.read(f"{made}/{name}") == b"of others"


@pytest.mark.parametrize("place", ["index", "columns", "errors", "tmp-d-train"])
def test_no_link_is_followed(tmp_path: pathlib.Path, place: str) -> None:
    write_inputs(tmp_path)
    output, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    convert(tmp_path, str(output))
    if (output / place).exists():
        shutil.move(output / place, elsewhere)
    else:
        elsewhere.mkdir()
    (output / place).symlink_to(elsewhere)
    stray = "d-train.array_record-0000000000000001-00000-of-00001"
    files = [
        UNFINISHED,
        f"d-train.{WRITE}.job.json",
        f"{STRAY}.index",
        f"{STRAY}.jsonl",
    ]
    for file in (*files, f"{stray}.x-0123456789abcdef"):
        (elsewhere / file).write_bytes(b"of others")
    before = {path: path.read_bytes() for path in elsewhere.iterdir()}
    for delete in (
        lambda: clean(str(output), unfinished=True),
        lambda: erase(str(output)),
    ):
        if place == "tmp-d-train":
            delete()
        else:
            with pytest.raises(InvalidDatasetError, match="symbolic link"):
                delete()
        assert {path: path.read_bytes() for path in elsewhere.iterdir()} == before


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder with what commands make a dataset of."""
    folder = tmp_path_factory.mktemp("erase")
    write_inputs(folder)
    return folder


@pytest.fixture(scope="module")
def killer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killer]:
    with Killer(tmp_path_factory.mktemp("killer")) as killer:
        yield killer


def run(killer: Killer, folder: pathlib.Path, *argv: str, kill_at: int = 0) -> int:
    return killer.run(argv, cwd=folder, kill_at=kill_at).status


def made_by(killer: Killer, folder: pathlib.Path, *, columns: bool) -> pathlib.Path:
    """Returns the dataset, which has the values as a column, or not."""
    place = folder / f"made-{columns}"
    if not place.exists():
        shutil.rmtree(folder / "out", ignore_errors=True)
        argv = ("convert", "in", "out", "--name=d", *OPTIONS)
        assert run(killer, folder, *argv) == 0
        assert not columns or run(killer, folder, *COMMANDS["attach"]) == 0
        shutil.move(folder / "out", place)
    return place


def erase_wherever(killer: Killer, folder: pathlib.Path, output: str) -> bool:
    """Erases the record wherever it is; returns whether that was refused at first."""
    dataset = loader.open(output, cache_dir="")
    records = dataset.read(range(len(dataset)))
    numbers = [n for n, record in enumerate(records) if record == RECORD]
    (folder / "gone").write_text("".join(f"{n}\n" for n in numbers))
    argv = ("remove", output, "--records=gone", "--erase", "--workers=1")
    ended = killer.run(argv, cwd=folder)
    if ended.status == 0:
        return False
    assert "unfinished" in ended.error, ended.error
    assert "--give-up" in ended.error, ended.error
    ended = killer.run((*argv, "--give-up"), cwd=folder)
    assert ended.status == 0, ended.error
    return True


@pytest.mark.parametrize(
    "stride",
    [pytest.param(5, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.soak)],
)
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("command", [*COMMANDS])
def test_after_a_kill_at_any_change_of_the_disk(killer, folder, command, stride):
    kill_at, refusals, status = stride // 2 + 1, set(), KILLED
    output = folder / "out"
    while status == KILLED:
        shutil.rmtree(output, ignore_errors=True)
        whole = made_by(killer, folder, columns=command != "attach")
        shutil.copytree(whole, output)
        status = run(killer, folder, *COMMANDS[command], kill_at=kill_at)
        refusals.add(erase_wherever(killer, folder, str(output)))
        assert holding(str(output)) == [], kill_at
        found = verify(str(output), workers=1)
        assert (found.findings, found.leftovers) == ((), ()), kill_at
        left = loader.open(str(output), cache_dir="")
        assert RECORD not in left.read(range(len(left)))
        kill_at += stride
    assert status == 0
    assert refusals == {False, True}
