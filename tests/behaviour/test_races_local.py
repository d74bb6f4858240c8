"""Writers of one local directory at the same moment: none loses what it reported."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pathlib
import subprocess
import sys
import threading

import pytest

from gristmill.dataset.base.errors import StorageChangedError
from gristmill.dataset.commit.commit import commit_dataset, write_table
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.local import LocalStorage
from gristmill.dataset.storage.lookup import storage_for, version_of
from tests.support.records import text_records, write_tfrecords
from tests.support.watched import watched

SPLITS = ("first", "second", "third")


def split_of(output: str, name: str) -> Split:
    return write_table(
        output,
        "data",
        name,
        ShardTable.of([]),
        writer_options="",
        source={"job": name},
    )


def commit(output: str, name: str, split: Split) -> str | None:
    """Commits a split, and returns its name if it did."""
    try:
        commit_dataset(output, "data", {name: split}, based_on={name: 0})
    except StorageChangedError:
        return None
    return name


@pytest.mark.slow
@pytest.mark.parametrize(
    "rounds",
    [
        8,
        pytest.param(2000, marks=pytest.mark.soak),
    ],
    ids=str,
)
def test_splits_that_three_processes_add_at_once(tmp_path, rounds: int):
    output = str(tmp_path)
    splits = {name: split_of(output, name) for name in ("base", *SPLITS)}
    base = Manifest(name="data", splits={"base": splits["base"]}).encode()
    place = layout.join(output, layout.DATASET_JSON)
    context = multiprocessing.get_context("spawn")
    told = 0
    with concurrent.futures.ProcessPoolExecutor(3, mp_context=context) as pool:
        for _ in range(rounds):
            storage_for(output).write(place, base)
            futures = [pool.submit(commit, output, n, splits[n]) for n in SPLITS]
            done = {name for future in futures if (name := future.result())}
            assert done
            assert set(open_manifest(output).splits) == {"base", *done}
            told += 3 - len(done)
    # Otherwise nothing was tried: the commits came one after the other.
    assert told or rounds < 2000


def add_lines(path: str, lines: int) -> None:
    """Adds lines to a file, each by a write that replaces what was read."""
    storage = storage_for(path)
    for line in range(lines):
        while True:
            found = storage.load(path)
            data = found.data if found else b""
            data += b"%d of %d\n" % (line, os.getpid())
            try:
                storage.write(path, data, replaces=found.version if found else "")
            except StorageChangedError:
                continue
            break


@pytest.mark.slow
def test_no_write_that_succeeded_is_lost(tmp_path):
    path = str(tmp_path / "lines")
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=add_lines, args=(path, 60)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    lines = pathlib.Path(path).read_bytes().splitlines()
    assert len(lines) == len(set(lines)) == 180
    assert os.listdir(tmp_path) == ["lines"]


def test_the_moment_between_the_look_and_the_rename_held_open(tmp_path, monkeypatch):
    storage, path = LocalStorage(), str(tmp_path / "a")
    storage.write(path, b"old", replaces="")
    seen = version_of(path)
    outcomes: dict[bytes, bool] = {}

    def write(data: bytes) -> None:
        try:
            storage.write(path, data, replaces=seen)
        except StorageChangedError:
            outcomes[data] = False
        else:
            outcomes[data] = True

    other = threading.Thread(target=write, args=(b"other",))

    def replace(source: str, target: str) -> None:
        if threading.current_thread() is not other and not other.is_alive():
            other.start()
            other.join(0.5)  # As long as it would need, could it go on.
            assert other.is_alive()

    watched(monkeypatch, os, "replace", replace)
    write(b"one")
    other.join()
    assert outcomes == {b"one": True, b"other": False}
    assert storage.read(path) == b"one"


def test_a_file_is_not_deleted_that_was_replaced_after_the_look(tmp_path, monkeypatch):
    storage, path = LocalStorage(), str(tmp_path / "a")
    storage.write(path, b"old", replaces="")
    seen = version_of(path)
    other = threading.Thread(target=storage.write, args=(path, b"new"))

    def unlink(name: str) -> None:
        if name == path and other.ident is None:
            other.start()
            other.join(0.5)
            assert other.is_alive()

    watched(monkeypatch, os, "unlink", unlink)
    storage.delete(path, version=seen)
    other.join()
    assert storage.read(path) == b"new"


def test_a_replacement_never_has_the_version_of_what_it_replaces(tmp_path):
    # Clocks of file systems tick every few milliseconds.
    storage, path = LocalStorage(), str(tmp_path / "a")
    storage.write(path, b"0", replaces="")
    versions = [version_of(path)]
    for number in range(1, 200):
        storage.write(path, b"%d" % number)
        versions.append(version_of(path))
    assert sorted(set(map(int, versions))) == list(map(int, versions))
    os.utime(path, ns=(1, 2**61))  # A clock that ran ahead.
    storage.write(path, b"last")
    assert int(version_of(path)) > 2**61


# A conversion that holds two moments open: before dataset.json is looked at for the
# last time, and between that look and the rename. Both have read the old one by then.
SLOW_COMMIT = """
import os, sys
from gristmill.dataset.storage.local import LocalStorage
from gristmill.pipelines.commands.main import main
true_write, true_replace = LocalStorage.write, os.replace
def wait(where, path):
    if path.endswith("dataset.json"):
        print(where, flush=True)
        sys.stdin.readline()
def write(storage, path, data, **options):
    wait("look", path)
    true_write(storage, path, data, **options)
def replace(source, target):
    wait("rename", target)
    true_replace(source, target)
LocalStorage.write, os.replace = write, replace
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_two_conversions_that_add_a_split_each(tmp_path):
    write_tfrecords(tmp_path / "in", text_records(20))

    def start(split: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                *(sys.executable, "-c", SLOW_COMMIT, "convert", "in", "out"),
                *("--split", split, "--workers", "1"),
            ],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def is_at(process: subprocess.Popen[str], where: str) -> None:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{where}\n"

    def go_on(process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()

    def ended(process: subprocess.Popen[str]) -> str:
        return process.communicate("\n" * 9, timeout=120)[1]

    with start("train") as first:
        errors = ended(first)
        assert first.returncode == 0, errors
    with start("test") as slow, start("validation") as other:
        is_at(slow, "look")
        is_at(other, "look")
        go_on(slow)
        is_at(slow, "rename")
        go_on(other)
        # It could go on, were it not kept out: nothing else is left for it to do.
        with pytest.raises(subprocess.TimeoutExpired):
            other.communicate("\n", timeout=5)
        errors = ended(slow)
        assert slow.returncode == 0, errors
        errors = other.communicate(timeout=120)[1]
        # It has found the other split there, which stays, and committed beside it.
        assert other.returncode == 0, errors
    splits = set(open_manifest(str(tmp_path / "out")).splits)
    assert splits == {"train", "test", "validation"}
    assert not [name for name in os.listdir(tmp_path / "out") if name[0] == "."]
