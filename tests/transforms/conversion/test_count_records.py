"""Counting in parts: the same counts, wherever files are cut and whoever counts."""

from __future__ import annotations

import itertools
import pathlib
import pickle
import random

import apache_beam as beam
import numpy as np
import pytest

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import CorruptInputError, DataLossError
from gristmill.transforms.conversion import count_records
from gristmill.transforms.conversion.begin_job import begin_job
from gristmill.transforms.conversion.count_records import (
    count_part,
    count_tasks,
    total_counts,
)
from gristmill.transforms.conversion.counted_parts import (
    DOUBTED,
    NO_RECORD,
    CountedPart,
    CountTask,
    PartCollector,
)
from gristmill.transforms.conversion.job_inputs import list_inputs
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.planning.plan_by_records import plan_by_records
from tests.support.conversion import (
    contents,
    convert,
    job_of,
    nested_records,
    read_output,
    varied_records,
)
from tests.support.records import frames_of

_PART_BYTES = 4096


def by_records(inputs: pathlib.Path, output: pathlib.Path, **options) -> ConversionJob:
    return job_of(inputs, output, plan=("records_per_shard", 7), **options)


def collected_of(parts) -> PartCollector:
    collected = PartCollector()
    for part in parts:
        collected.add(part)
    return collected


def counted(job: ConversionJob, *, part_bytes: int, **near: int) -> list[CountedPart]:
    tasks = count_tasks(job, list_inputs(job), part_bytes=part_bytes)
    return [count_part(job, task, **near) for task in tasks]


@pytest.fixture
def small_parts(monkeypatch):
    """Files of kilobytes are cut as if they had gigabytes."""
    for function in (count_records.count_tasks, count_records.total_counts):
        monkeypatch.setitem(function.__kwdefaults__, "part_bytes", _PART_BYTES)


@pytest.fixture
def inputs(tmp_path) -> pathlib.Path:
    """Files of several parts, of one, and of none; one has records of frames."""
    chance = random.Random(3)
    folder = tmp_path / "in"
    folder.mkdir()
    nested = [nested_records(chance, depth=3) for _ in range(60)]
    for name, records in {
        "a": varied_records(40, seed=1),
        "b": [],
        "c": nested,
        "d": [b"x" * 20_000, b"y", b"z" * 9_000, b"w"],
    }.items():
        (folder / name).write_bytes(frames_of(records))
    return folder


def test_parts_in_any_order_make_the_same_plan(inputs, tmp_path):
    job = by_records(inputs, tmp_path / "out", allow_empty_files=True)
    whole = counted(job, part_bytes=1 << 30)
    files, expected = total_counts(job, collected_of(whole), part_bytes=1 << 30)
    assert [len(part.offsets) for part in whole] == [1, 0, 1, 1]
    listed = list_inputs(job)
    assert list(files.paths) == list(listed.paths)
    assert list(files.versions) == list(listed.versions)
    for name in ("sizes", "compressions", "noted_ns"):
        assert (getattr(files, name) == getattr(listed, name)).all()
    parts = counted(job, part_bytes=_PART_BYTES)
    assert len(parts) > 20
    random.Random(0).shuffle(parts)
    # In two workers, with a part that is counted twice, sent as a runner sends them.
    gathered = Gathered()
    for some in (parts[:9], [*parts[9:], parts[3]]):
        other = Gathered()
        for part in some:
            other.add(part)
        gathered.extend(pickle.loads(pickle.dumps(other)))
    again, counts = total_counts(job, gathered.rows["train"], part_bytes=_PART_BYTES)
    assert again.digest == files.digest
    per_file = np.bincount(counts.files, counts.records, len(files))
    assert per_file.tolist() == expected.records.tolist() == [40, 0, 60, 4]
    plans = [
        plan_by_records(7, files.sizes, files.splittable, each)
        for each in (expected, counts)
    ]
    assert plans[0].shards == plans[1].shards == 15
    # Entered closer to where it begins, or the same.
    assert (plans[1].cut_records <= plans[0].cut_records).all()


@pytest.mark.usefixtures("small_parts")
def test_a_conversion_gives_the_same_shards(inputs, tmp_path):
    job = by_records(inputs, tmp_path / "out", allow_empty_files=True)
    assert len(list(count_tasks(job, list_inputs(job)))) > 20
    convert(job)
    records = read_output(job.output)
    one = job_of(inputs, tmp_path / "one", allow_empty_files=True)
    convert(one)
    assert records == read_output(one.output)
    sizes = [len(list(group)) for _, group in itertools.groupby(range(104), _shard)]
    assert sizes == [7] * 14 + [6]
    shards = [path for path in contents(job.output) if "array_record-" in path]
    assert len([path for path in shards if path.endswith("-of-00015")]) == 15


def _shard(record: int) -> int:
    return record // 7


def test_frames_in_a_record_mislead_nobody(tmp_path):
    # The second part begins in a record that is full of frames, to beyond its end.
    inner = frames_of([bytes([i]) * 30 for i in range(200)])
    path = tmp_path / "in"
    path.write_bytes(frames_of([b"a", inner, b"b", b"c" * 3000, b"d"]))
    job = by_records(path, tmp_path / "out")
    parts = counted(job, part_bytes=_PART_BYTES)
    assert sum(part.records for part in parts) > 5
    _, counts = total_counts(job, collected_of(parts), part_bytes=_PART_BYTES)
    assert counts.records.tolist() == [2, 0, 3]
    # Also where the search led to a frame that is damaged, as it seems.
    bad = bytearray(inner)
    bad[100 * 46 + 20] ^= 1
    path.write_bytes(frames_of([b"a", bytes(bad), b"b", b"c" * 3000, b"d"]))
    for near_bytes in (0, 1 << 30):
        parts = counted(job, part_bytes=_PART_BYTES, near_bytes=near_bytes)
        assert parts[1].start_bytes == (NO_RECORD if near_bytes else DOUBTED)
        _, counts = total_counts(job, collected_of(parts), part_bytes=_PART_BYTES)
        assert counts.records.tolist() == [2, 0, 3]


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("near_bytes", [0, 1 << 30])
def test_damage_in_any_part(tmp_path, monkeypatch, near_bytes):
    monkeypatch.setitem(count_part.__kwdefaults__, "near_bytes", near_bytes)
    records = [bytes([i]) * 500 for i in range(60)]
    data = bytearray(frames_of(records))
    for damaged in (3, 17, 40):
        data[damaged * 516 + 100] ^= 1
    path = tmp_path / "in"
    path.write_bytes(data)
    with pytest.raises(CorruptInputError):
        convert(by_records(path, tmp_path / "fail"))
    job = by_records(path, tmp_path / "out", on_corrupt="quarantine")
    convert(job)
    good = [record for i, record in enumerate(records) if i not in (3, 17, 40)]
    assert read_output(job.output) == good


@pytest.mark.slow
def test_a_conversion_that_ends_while_it_counts_leaves_nothing(inputs, tmp_path):
    job = by_records(inputs, tmp_path / "out", allow_empty_files=True)

    def count_some(job, files):
        for task in itertools.islice(count_tasks(job, files), 2):
            count_part(job, task)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        begin_job(job, count_files=count_some)
    assert not pathlib.Path(job.output).exists()
    convert(job)
    other = by_records(inputs, tmp_path / "other", allow_empty_files=True)
    convert(other)
    shards = [path for path in contents(job.output) if "array_record" in path]
    assert shards
    assert all(contents(job.output)[s] == contents(other.output)[s] for s in shards)


def test_a_part_that_nobody_counted_is_missed(inputs, tmp_path):
    job = by_records(inputs, tmp_path / "out", allow_empty_files=True)
    parts = counted(job, part_bytes=_PART_BYTES)
    with pytest.raises(DataLossError, match="not all parts") as caught:
        total_counts(job, collected_of(parts[:-1]), part_bytes=_PART_BYTES)
    assert f"{len(parts) - 1} parts" in str(caught.value)


@pytest.mark.slow
def test_elements_are_small(tmp_path):
    path = "gs://bucket/data/" + "c" * 60 + "{:07d}.tfrecord"
    coder = beam.coders.registry.get_coder(object)
    chance = random.Random(0)
    collected = Gathered()
    shards = 20_000
    for number in chance.sample(range(shards), shards):
        task = CountTask(
            "train",
            number,
            path.format(number // 4),
            (1 << 30) + chance.randrange(1 << 20),
            f"17{chance.randrange(10**14):014d}",
            "none",
            1_700_000_000_000_000_000 + chance.randrange(10**15),
            None,
            number % 4 << 28,
            (number % 4 + 1) << 28,
        )
        begins = itertools.accumulate(
            (chance.randrange(33_000_000, 34_000_000) for _ in range(8)),
            initial=task.begin_bytes + chance.randrange(2000),
        )
        offsets = tuple(begins)[:8]
        part = CountedPart(
            "train",
            number,
            None if number % 4 else tuple(task.file),
            offsets[0],
            task.end_bytes + chance.randrange(2000),
            121_000 + chance.randrange(2000),
            offsets,
        )
        collected.add(part)
        if number % 1000 == 0:
            assert len(coder.encode(task)) <= 200 + len(task.path)
            assert len(coder.encode(part)) <= 200 + len(task.path)
    assert len(coder.encode(collected)) <= 100 * shards
    # Also if they arrive one by one, from bundles of one part each.
    one_by_one = Gathered()
    for _ in range(500):
        one = Gathered()
        one.add(part)
        encoded = coder.encode(one)
        assert len(encoded) <= 400 + len(task.path)
        one_by_one.extend(coder.decode(encoded))
    assert len(coder.encode(one_by_one)) <= 100 * 500
