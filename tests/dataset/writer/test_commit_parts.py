"""Several writers, one split: the order of its records, and what prevents a commit."""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import shutil
import threading
from typing import Any

import pytest

from gristmill import loader
from gristmill.dataset import (
    DataLossError,
    GristmillError,
    InputError,
    JobChangedError,
    Writer,
    commit_parts,
    open_manifest,
    read_manifest,
)
from gristmill.pipelines.verify import verify
from tests.support.conversion import contents
from tests.support.records import text_records
from tests.support.watched import at_storage, watched

PARTS = [text_records(count, seed=count) for count in (25, 0, 40, 7)]
RECORDS = [record for part in PARTS for record in part]


def write_part(output: Any, part: int, parts: int = len(PARTS), **options: Any) -> None:
    options = {"records_per_shard": 10, **options}
    with Writer(output, part=part, parts=parts, **options) as writer:
        for record in PARTS[part][writer.position_records :]:
            writer.write(record)


def records_of(output: Any) -> list[bytes]:
    dataset = loader.open(output)
    return dataset.read(range(len(dataset)))


def staged(output: pathlib.Path, part: int) -> pathlib.Path:
    return output / "tmp-data-train" / f"{part:05d}-of-{len(PARTS):05d}"


def test_the_parts_follow_each_other(tmp_path: pathlib.Path) -> None:
    for part in (2, 0, 3, 1):
        assert read_manifest(tmp_path / "data") is None
        write_part(tmp_path / "data", part)
    names = sorted(p.name for p in (tmp_path / "data").iterdir())
    assert names == ["index", "tmp-data-train"]
    manifest = commit_parts(tmp_path / "data")
    assert records_of(tmp_path / "data") == RECORDS
    assert manifest == open_manifest(tmp_path / "data")
    assert manifest.splits["train"].shards == 3 + 4 + 1
    assert sorted(p.name for p in (tmp_path / "data").iterdir())[-2:] == [
        "dataset.json",
        "index",
    ]
    assert not verify(str(tmp_path / "data"), workers=1).findings
    # Repeated, it does nothing; nor do the writers.
    before = contents(tmp_path / "data")
    assert commit_parts(tmp_path / "data") == manifest
    with Writer(
        *(tmp_path / "data",), part=2, parts=4, records_per_shard=10, resume=True
    ) as writer:
        assert writer.position_records == 40
    assert contents(tmp_path / "data") == before


def test_of_empty_parts_there_is_an_empty_shard(tmp_path: pathlib.Path) -> None:
    for part in range(2):
        with Writer(tmp_path / "data", part=part, parts=2):
            pass
    assert commit_parts(tmp_path / "data").splits["train"].shards == 1
    assert len(loader.open(tmp_path / "data")) == 0


def test_missing_parts_are_named(tmp_path: pathlib.Path) -> None:
    with pytest.raises(InputError, match="no parts to commit"):
        commit_parts(tmp_path / "data")
    write_part(tmp_path / "data", 2)
    with pytest.raises(DataLossError, match=r"3 of 4 parts(.|\n)*part 0, 1, 3"):
        commit_parts(tmp_path / "data")
    for part in (0, 1, 3):
        write_part(tmp_path / "data", part)
    commit_parts(tmp_path / "data")
    assert records_of(tmp_path / "data") == RECORDS


def test_a_part_is_written_once(tmp_path: pathlib.Path) -> None:
    output = tmp_path / "data"
    for part in range(len(PARTS)):
        write_part(output, part)
    with pytest.raises(JobChangedError, match="part 2 of 4 has been written already"):
        write_part(output, 2)
    with Writer(output, part=2, parts=4, records_per_shard=10, resume=True) as writer:
        assert writer.position_records == 40
        with pytest.raises(InputError, match="its part is finished"):
            writer.write(b"more")
    write_part(output, 2, overwrite=True)
    commit_parts(output)
    assert records_of(output) == RECORDS


def test_of_two_writers_of_a_part_the_later_one_has_it(tmp_path: pathlib.Path) -> None:
    first = Writer(tmp_path / "data", part=1, parts=4)

    def write_both() -> None:
        with first:
            first.write(b"first")
            write_part(tmp_path / "data", 1, records_per_shard=None)

    with pytest.raises(JobChangedError, match="taken over part 1 of 4"):
        write_both()


def test_finished_parts_with_other_options_stay(tmp_path: pathlib.Path) -> None:
    write_part(tmp_path / "data", 0)
    other = {"records_per_shard": 20}
    with pytest.raises(JobChangedError, match=r"1 of 4(.|\n)*shard was 10, is 20"):
        write_part(tmp_path / "data", 1, **other)
    write_part(tmp_path / "data", 1, **other, overwrite=True)
    with pytest.raises(DataLossError, match="part 0, 2, 3"):
        commit_parts(tmp_path / "data")


def test_a_finished_part_of_another_job_is_not_taken(tmp_path: pathlib.Path) -> None:
    output = tmp_path / "data"
    write_part(output, 0)
    shutil.copytree(staged(output, 0), tmp_path / "left")
    other = {"records_per_shard": 20}
    write_part(output, 1, **other, overwrite=True)
    # As if the writer of part 1 had not deleted it yet.
    shutil.copytree(tmp_path / "left", staged(output, 0), dirs_exist_ok=True)
    with Writer(output, part=0, parts=4, resume=True, **other) as writer:
        assert writer.position_records == 0
        left = [path for path in staged(output, 0).rglob("*") if path.is_file()]
        assert [path.name for path in left] == ["owner.json"]


@pytest.mark.slow
def test_all_writers_begin_at_once_over_what_is_left(tmp_path: pathlib.Path) -> None:
    output, barrier = tmp_path / "data", threading.Barrier(len(PARTS))

    def write(part: int) -> None:
        barrier.wait()
        write_part(output, part, overwrite=True)

    for _ in range(2):
        for part in (0, 2):
            write_part(output, part, records_per_shard=20, overwrite=True)
        with concurrent.futures.ThreadPoolExecutor(len(PARTS)) as pool:
            list(pool.map(write, range(len(PARTS))))
        commit_parts(output, overwrite=True)
        assert records_of(output) == RECORDS


def test_a_split_that_is_there_is_replaced_on_request(tmp_path: pathlib.Path) -> None:
    output = tmp_path / "data"
    with Writer(output) as writer:
        writer.write(b"old")
    with pytest.raises(JobChangedError, match="holds this split already"):
        write_part(output, 0)
    for part in range(len(PARTS)):
        write_part(output, part, overwrite=True)
    with pytest.raises(JobChangedError, match="overwrite=True"):
        commit_parts(output)
    assert records_of(output) == [b"old"]
    commit_parts(output, overwrite=True)
    assert records_of(output) == RECORDS
    with pytest.raises(InputError, match="no parts to commit"):
        commit_parts(output, overwrite=True)


SHARD, INDEX = "00001.array_record", "index/00001.array_record.index"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "other", "message"),
    [
        (SHARD, None, "is missing"),
        (SHARD, INDEX, "is not the file that was written"),
        (INDEX, None, "is missing"),
        (INDEX, SHARD, "not a shard index"),
        (INDEX, "index/00002.array_record.index", "of another shard"),
        ("shards.npz", SHARD, "table cannot be read"),
    ],
)
def test_what_is_lost_is_found_before_the_commit(
    tmp_path: pathlib.Path, name: str, other: str | None, message: str
) -> None:
    output = tmp_path / "data"
    for part in range(len(PARTS)):
        write_part(output, part)
    path = staged(output, 2) / name
    if other is None:
        path.unlink()
    else:
        path.write_bytes((staged(output, 2) / other).read_bytes())
    with pytest.raises(GristmillError, match=message):
        commit_parts(output)
    assert read_manifest(output) is None
    write_part(output, 2, overwrite=True)
    commit_parts(output)
    assert records_of(output) == RECORDS


class CrashError(BaseException):
    """Ends a program between two steps, as `kill -9` does."""


def crash_at(patch: pytest.MonkeyPatch, number: int) -> None:
    """Lets the storage end the program before one of its changes."""
    steps = iter(range(1, number + 1))

    def step(*_: Any, **__: Any) -> None:
        if next(steps, 0) == number:
            raise CrashError

    for name in ("write", "delete", "delete_tree"):
        at_storage(patch, name, "", step, times=number)
    watched(patch, os, "link", step)


@pytest.mark.slow
@pytest.mark.parametrize("replacing", [False, True])
@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_a_commit_that_is_killed_is_finished_or_begins_again(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    replacing: bool,
    stride: int,
) -> None:
    output, before, number = tmp_path / "data", tmp_path / "before", 1
    options = {"overwrite": replacing}
    if replacing:
        with Writer(output) as writer:
            writer.write(b"old")
    for part in range(len(PARTS)):
        write_part(output, part, **options)
    shutil.copytree(output, before)
    commit_parts(output, **options)
    expected = contents(output)
    old = [b"old"] if replacing else None
    while True:
        shutil.rmtree(output)
        shutil.copytree(before, output)
        with monkeypatch.context() as patch:
            crash_at(patch, number)
            try:
                commit_parts(output, **options)
            except CrashError:
                pass
            else:
                break
        there = None if read_manifest(output) is None else records_of(output)
        assert there in (old, RECORDS)
        if number % 2 and there == old:
            # A part gets other records, and other shards.
            with Writer(
                output, part=2, parts=4, records_per_shard=10, overwrite=True
            ) as writer:
                writer.write(b"other")
            commit_parts(output, **options)
            assert records_of(output) == [*PARTS[0], b"other", *PARTS[3]]
            assert not verify(str(output), quick=True).leftovers
            found = {path.name for path in output.glob("*.array_record*")}
            assert len(found) == 3 + 1 + 1
        else:
            commit_parts(output, overwrite=replacing and there == old)
            assert contents(output) == expected
        number += stride
    assert records_of(output) == RECORDS
    assert contents(output) == expected
