"""Inputs whose size and time are as before: are their records, too?"""

from __future__ import annotations

import gzip
import os
import pathlib
import random
import re
import shutil
import zlib
from collections.abc import Callable

import pytest

from gristmill.dataset.base.errors import JobChangedError, StorageChangedError
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.make_shards import convert_shard
from gristmill.transforms.conversion.shard_records import RecordSink
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.sources.formats import RecordOptions
from tests.support.conversion import (
    convert,
    job_of,
    nested_records,
    prepared_of,
    read_output,
    varied_records,
)
from tests.support.records import frames_of
from tests.support.watched import meanwhile

OLD = varied_records(90, seed=1, most_bytes=300)
NEW = [record[::-1] for record in OLD]
SHARDS = 6


@pytest.fixture
def inputs(tmp_path: pathlib.Path) -> pathlib.Path:
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(3):
        part = OLD[number * 30 : (number + 1) * 30]
        (folder / str(number)).write_bytes(frames_of(part))
    return folder


@pytest.fixture
def job(inputs: pathlib.Path, tmp_path: pathlib.Path) -> ConversionJob:
    return job_of(inputs, tmp_path / "out", plan=("num_shards", SHARDS))


def keeping_time(path: pathlib.Path, change: Callable[[], object]) -> None:
    """Changes a file, and then what the file says of that: its size and its time."""
    before = path.stat()
    change()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = path.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert after.st_ctime_ns != before.st_ctime_ns


def rewrite(path: pathlib.Path) -> None:
    """Puts other records of the same lengths into a file, in place."""
    number = int(path.name)
    data = frames_of(NEW[number * 30 : (number + 1) * 30])
    with open(path, "r+b") as file:
        keeping_time(path, lambda: (file.write(data), file.flush()))


def restore(path: pathlib.Path) -> None:
    """Puts a copy of the file in its place."""
    shutil.copy2(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)


HARMLESS: dict[str, Callable[[pathlib.Path], object]] = {
    "permissions": lambda path: path.chmod(0o444),
    "link": lambda path: os.link(path, path.parent.parent / "link"),
    "copy": restore,
    "the same bytes": lambda path: keeping_time(
        path, lambda: path.write_bytes(path.read_bytes())
    ),
}


def states(output: str) -> dict[str, tuple[int, int]]:
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in pathlib.Path(output).rglob("*array_record*")
    }


@pytest.mark.parametrize("committed", [False, True])
def test_other_records_in_place_are_refused(job, inputs, committed: bool):
    if committed:
        convert(job)
    else:
        convert_shard(prepared_of(job), 5)
    before = states(job.output)
    rewrite(inputs / "2")
    for _ in range(2):
        with pytest.raises(JobChangedError, match="its size has not") as caught:
            convert(job)
        message = str(caught.value)
        assert f"{inputs}/2" in message
        assert f"{inputs}/0" not in message
        assert re.search(
            r"data-train.array_record-0000[345]-of-00006 was made", message
        )
        assert "`overwrite`" in message
    assert before.items() <= states(job.output).items()
    convert(job, overwrite=True)
    assert read_output(job.output) == [*OLD[:60], *NEW[60:]]


def test_other_records_that_no_finished_shard_has(job, inputs):
    convert_shard(prepared_of(job), 0)
    before = states(job.output)
    rewrite(inputs / "2")
    convert(job)
    assert read_output(job.output) == [*OLD[:60], *NEW[60:]]
    assert before.items() <= states(job.output).items()


@pytest.mark.parametrize("change", HARMLESS)
@pytest.mark.parametrize("committed", [False, True])
def test_the_same_records_go_on(job, inputs, change: str, committed: bool):
    if committed:
        convert(job)
    else:
        prepared = prepared_of(job)
        for shard in (0, 4, 5):
            convert_shard(prepared, shard)
    before = states(job.output)
    HARMLESS[change](inputs / "2")
    convert(job)
    # That is known from then on.
    assert begin_job(job).committed is not None
    assert before.items() <= states(job.output).items()
    assert read_output(job.output) == OLD


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "source",
    [
        *("damaged", "gzip", "zlib in shards", "nested", "deep", "mapped"),
        "a payload of ranges",
    ],
)
def test_whatever_the_shards_were_made_of(tmp_path, source: str):
    chance = random.Random(3)
    records, options = OLD, {"plan": ("num_shards", 20)}
    data = frames_of(records)
    if source == "damaged":
        records = [*OLD[:40], *OLD[41:]]
        broken = len(frames_of(OLD[:40]))
        data = data[: broken + 2] + b"?" + data[broken + 3 :]
        options["on_corrupt"] = "skip"
    elif source == "gzip":
        data = gzip.compress(data)
        options["plan"] = ("num_shards", 1)
    elif source == "zlib in shards":
        data = zlib.compress(data)
    elif source == "mapped":
        records = [repr(record).encode() for record in records]
        options["map"] = "tests.conversion.test_input_comparison:as_text"
    else:
        if source == "nested":
            records = [nested_records(chance) * 30 for _ in range(20)]
        elif source == "deep":
            records = [nested_records(chance, depth=3) for _ in range(60)]
        else:
            inner = frames_of([chance.randbytes(1000) for _ in range(100)])
            records = [b"before", inner, b"between", inner, b"after"]
        data = frames_of(records)
        options["records"] = RecordOptions(whole_files=True)
    path = tmp_path / "in"
    path.write_bytes(data)
    job = job_of(path, tmp_path / "out", **options)
    convert(job)
    path.chmod(0o444)
    convert(job)
    assert begin_job(job).committed is not None
    assert read_output(job.output) == records


def as_text(record: bytes) -> bytes:
    return repr(record).encode()


def test_an_input_that_is_damaged_since(job, inputs):
    convert(job)
    path = inputs / "0"
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    keeping_time(path, lambda: path.write_bytes(data))
    with pytest.raises(JobChangedError, match="its size has not"):
        convert(job)


def test_while_a_shard_is_made(job, inputs, monkeypatch):
    prepared = prepared_of(job)
    meanwhile(monkeypatch, RecordSink, "write", lambda: rewrite(inputs / "0"))
    with pytest.raises(StorageChangedError, match="its size and time did not"):
        convert_shard(prepared, 0)
    convert(job)
    assert read_output(job.output) == [*NEW[:30], *OLD[30:]]


def test_a_worker_of_the_run_before_publishes_nothing(job, inputs, monkeypatch):
    # It has read all it needs, and publishes after the next run has looked.
    prepared = prepared_of(job)

    def begin_again() -> None:
        rewrite(inputs / "2")
        begin_job(job)

    meanwhile(monkeypatch, RecordSink, "write", begin_again)
    with pytest.raises(JobChangedError, match="another run of this conversion"):
        convert_shard(prepared, 0)
    convert(job)
    assert read_output(job.output) == [*OLD[:60], *NEW[60:]]
