"""Writers of one local directory at the same moment: none loses what it reported."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import threading

import pytest

from gristmill.dataset.base.errors import StorageChangedError
from gristmill.dataset.commit.commit import commit_dataset, write_table
from gristmill.dataset.commit.write import Write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, open_manifest
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.local import LocalStorage
from gristmill.dataset.storage.lookup import storage_for, version_of
from tests.support.watched import watched

SPLITS = ("first", "second", "third")


def write_of(output: str, name: str) -> Write:
    return Write(output=output, name="data", split=name, id=name)


def split_of(output: str, name: str) -> Split:
    write, table = write_of(output, name), ShardTable.of([])
    return write_table(write, table, writer_options="", source={})


def commit(output: str, name: str, split: Split) -> str | None:
    """Commits a split, and returns its name if it did."""
    try:
        commit_dataset(output, "data", {write_of(output, name): split})
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
