"""Duplicates found on this machine: those of a dict, on any number of workers."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from typing import Any

import numpy as np
import pytest

from gristmill.dataset import Writer
from gristmill.dataset.base.errors import (
    CorruptInputError,
    CorruptRecordError,
    DataLossError,
    InputError,
)
from gristmill.dataset.duplicates.certificate import open_certificate
from gristmill.pipelines.duplicates.find import find_duplicates
from gristmill.pipelines.duplicates.search import search
from gristmill.pipelines.duplicates.spooled_steps import Spool
from gristmill.pipelines.options.conversions import ConvertOptions
from gristmill.transforms.duplicates.commit_certificate import (
    checked_shards,
    commit_certificate,
    plan_search,
)
from gristmill.transforms.duplicates.digest_shards import digest_pass, digest_tasks
from gristmill.transforms.duplicates.runs import Run
from gristmill.transforms.jobs.duplicate_comparison import Comparison
from gristmill.transforms.sources.formats import RecordOptions
from tests.support.conversion import job_of, nested_records, varied_records
from tests.support.duplicates import (
    FORMATS,
    expected_of,
    options_of,
    removals_in,
    write_inputs,
)
from tests.support.records import frames_of, write_tfrecords

KINDS = [*FORMATS, "parquet"]
RECORD = Comparison.parse("record")
WHOLE = RecordOptions(whole_files=True)


def find(prepared, by, path: pathlib.Path, **options):
    options = {"workers": 1, "work_dir": f"{path}.parts", **options}
    return find_duplicates(prepared, by, str(path), **options)


def check_random(folder: pathlib.Path, seed: int) -> None:
    rng = random.Random(seed)
    kind = KINDS[seed % len(KINDS)]
    by = rng.choice(["text", "record", "normalised"])
    plan = ("shard_bytes", rng.choice([500, 5000, 1 << 28]))
    pattern = write_inputs(folder, rng, kind)
    job = job_of(pattern, folder / "c", plan=plan, records=options_of(kind))
    compared = Comparison.parse(by)
    prepared = plan_search(job, compared)
    found = find(prepared, compared, folder / "c")
    expected = expected_of(prepared.files, by)
    assert removals_in(folder / "c") == expected, (seed, kind, by)
    assert found.removed == len(expected)


@pytest.mark.parametrize("seed", range(50))
def test_removals_are_those_of_a_dict(tmp_path: pathlib.Path, seed: int) -> None:
    check_random(tmp_path, seed)


@pytest.mark.soak
@pytest.mark.parametrize("first", range(50, 1050, 100))
def test_removals_of_many_are_those_of_a_dict(tmp_path, first) -> None:
    for seed in range(first, first + 100):
        check_random(tmp_path / str(seed), seed)


def fooling(folder: pathlib.Path) -> pathlib.Path:
    """Writes records that hold frames, across which files are cut."""
    nested = [nested_records(random.Random(n), depth=2) * 20 for n in range(20)] * 2
    nested[7] = frames_of([random.Random(8).randbytes(500)] * 400)
    records = varied_records(60, seed=1)
    write_tfrecords(folder / "a", records + nested)
    write_tfrecords(folder / "b", nested[:9] + records, compression="GZIP")
    return folder


@pytest.mark.slow
def test_workers_and_cuts_do_not_matter(tmp_path: pathlib.Path) -> None:
    (tmp_path / "in").mkdir()
    inputs, data = fooling(tmp_path / "in"), set()
    for number, (shards, workers) in enumerate([(1, 1), (23, 1), (23, 3), (7, 2)]):
        path = tmp_path / f"c{number}"
        options = {"plan": ("num_shards", shards), "records": WHOLE}
        prepared = plan_search(job_of(inputs, path, **options), RECORD)
        find(prepared, RECORD, path, workers=workers)
        data.add(path.read_bytes())
    assert len(data) == 1
    assert removals_in(path) == expected_of(prepared.files, "record")
    assert not [*tmp_path.glob("*.parts*")]


def test_a_range_that_was_entered_wrongly_is_refused(tmp_path) -> None:
    (tmp_path / "in").mkdir()
    job = job_of(fooling(tmp_path / "in"), tmp_path / "c", plan=("num_shards", 23))
    with pytest.raises((CorruptInputError, DataLossError), match="--whole-files"):
        find(plan_search(job, RECORD), RECORD, tmp_path / "c")
    job = dataclasses.replace(job, records=WHOLE)
    prepared = plan_search(job, RECORD)
    find(prepared, RECORD, tmp_path / "c")
    assert removals_in(tmp_path / "c") == expected_of(prepared.files, "record")


def test_runs_and_partitions_on_disk(tmp_path: pathlib.Path) -> None:
    pattern = write_inputs(tmp_path / "in", random.Random(5), "jsonl")
    by = Comparison.parse("text")
    job = job_of(pattern, tmp_path / "c", plan=("num_shards", 3))
    prepared = plan_search(job, by)
    (tmp_path / "spool").mkdir()
    spool = Spool(str(tmp_path / "spool"))
    shards = [
        shard
        for task in digest_tasks(prepared, by)
        for shard in digest_pass(task, spool.keep, run_records=10)
    ]
    spool = spool.of(shards)._replace(partitions=16)
    resolved = sum(map(spool.resolve, range(16)))
    removed = sum(map(spool.join, range(len(spool.runs))))
    expected = expected_of(prepared.files, "text")
    assert removed == len(expected) == resolved + sum(shard.copies for shard in shards)
    rows = [row for part in spool.removals() for row in part.tolist()]
    assert rows == expected
    lost = [shards[0]._replace(copies=shards[0].copies + 1), *shards[1:]]
    with pytest.raises(DataLossError, match="while duplicates"):
        commit_certificate(
            *(str(tmp_path / "c"), prepared, by, lost, []),
            removed=0,
            work_dir=str(tmp_path / "w"),
        )


def test_a_part_that_was_not_read_is_noticed(tmp_path: pathlib.Path) -> None:
    write_tfrecords(tmp_path / "a", varied_records(60, seed=1))
    job = job_of(tmp_path / "a", tmp_path / "c", plan=("num_shards", 3))
    prepared = plan_search(job, RECORD)

    def drop(shard: int, number: int, run: Run) -> None:
        pass

    shards = [
        shard
        for task in digest_tasks(prepared, RECORD)
        for shard in digest_pass(task, drop)
    ]

    found = checked_shards(prepared, shards)
    assert [shard.shard for shard in found] == [0, 1, 2]
    with pytest.raises(DataLossError):
        checked_shards(prepared, shards[:2])


@pytest.mark.parametrize(
    "records", [[], [b"one"], [b"same"] * 500], ids=["none", "one", "same"]
)
def test_few_and_equal_records(tmp_path: pathlib.Path, records: list[bytes]) -> None:
    (tmp_path / "in.txt").write_bytes(b"".join(record + b"\n" for record in records))
    options = options_of("txt")
    job = job_of(tmp_path / "in.txt", tmp_path / "c", records=options)
    if not records:
        with pytest.raises(InputError, match="empty"):
            plan_search(job, RECORD)
        return
    found = find(plan_search(job, RECORD), RECORD, tmp_path / "c")
    assert (found.records, found.kept) == (len(records), 1)
    rows = open_certificate(str(tmp_path / "c")).between(0, 0, 1 << 40)
    assert (rows["kept_place"] == 0).all()
    assert len(rows) == len(records) - 1


def test_damage_and_missing_texts_are_errors(tmp_path: pathlib.Path) -> None:
    data = bytearray(frames_of(varied_records(60, seed=1)))
    path = tmp_path / "a"
    path.write_bytes(data)
    by = Comparison.parse("text")
    with pytest.raises(InputError, match=r"tf\.train\.Example"):
        find(plan_search(job_of(path, tmp_path / "c"), by), by, tmp_path / "c")
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptRecordError):
        find(plan_search(job_of(path, tmp_path / "c"), RECORD), RECORD, tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_several_splits_are_refused(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(frames_of([b"1", b"1"]))
    options = ConvertOptions(input=(str(path),), output=str(tmp_path / "c"))
    found, attached = search(options, "record", workers=1)
    assert (found.removed, attached) == (1, None)
    for split in ("train", "test"):
        with Writer(tmp_path / "two", split=split) as writer:
            writer.write(b"1")
    options = ConvertOptions(input=(str(tmp_path / "two"),), output=str(tmp_path / "c"))
    with pytest.raises(InputError, match="several splits"):
        search(options, "record")


@pytest.mark.parametrize("content", [b"", b"of the user", b"GMDUPES"])
def test_a_file_that_is_no_certificate_stays(
    tmp_path: pathlib.Path, content: bytes
) -> None:
    (tmp_path / "a").write_bytes(frames_of([b"1", b"1"]))
    path = tmp_path / "c"
    path.write_bytes(content)
    options = ConvertOptions(input=(str(tmp_path / "a"),), output=str(path))
    with pytest.raises(InputError, match="another file is there"):
        search(options, "record", workers=1)
    assert path.read_bytes() == content
    path.unlink()
    for _ in range(2):  # A certificate is replaced.
        assert search(options, "record", workers=1)[0].removed == 1


@pytest.mark.parametrize(
    ("given", "records", "removed"),
    [
        ({"nulls": "skip"}, 2, 1),
        ({"by": "record", "columns": "n"}, 3, 0),
        ({"by": "record", "record": "column:text", "nulls": "skip"}, 2, 1),
        ({"by": "record", "input_format": "text"}, 3, 0),
    ],
)
def test_options_of_the_inputs(
    tmp_path: pathlib.Path, given: dict[str, Any], records: int, removed: int
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        '{"text": "a", "n": 1}\n{"text": null, "n": 2}\n{"text": "a", "n": 3}\n'
    )
    by = given.pop("by", "text")
    options = ConvertOptions(input=(str(path),), output=str(tmp_path / "c"), **given)
    found, _ = search(options, by, workers=1)
    assert (found.records, found.removed) == (records, removed)


def test_memory_of_a_run_is_that_of_its_records() -> None:
    digests = np.arange(20, dtype=np.uint64).reshape(-1, 2)
    run = Run.of(digests, np.zeros(10), np.arange(10))
    assert run.entries.itemsize == 32
