"""Inputs that are written again before a conversion goes on."""

import gzip
import os
import pathlib
import re
import shutil

import pytest

from gristmill.dataset import JobChangedError
from gristmill.transforms.conversion.begin import begin_job
from gristmill.transforms.conversion.make_shards import convert_shard
from gristmill.transforms.conversion.shard_records import RecordSink
from tests.conversion.format_files import put, write_in_place
from tests.support.conversion import (
    convert,
    job_of,
    prepared_of,
    read_output,
    varied_records,
)
from tests.support.records import frames_of
from tests.support.watched import meanwhile

OLD = varied_records(90, seed=1, most_bytes=300)
NEW = [record[::-1] for record in OLD]


def part(records, number):
    return frames_of(records[number * 30 : (number + 1) * 30])


@pytest.fixture
def inputs(tmp_path):
    return put(tmp_path / "in", {str(n): part(OLD, n) for n in range(3)})


@pytest.fixture
def job(inputs, tmp_path):
    return job_of(inputs, tmp_path / "out", shards=6)


def rewrite(path):
    """Puts other records of the same lengths into a file."""
    write_in_place(path, part(NEW, int(path.name)))


def restore(path):
    """Puts a copy of the file in its place."""
    shutil.copy2(path, f"{path}.copy")
    os.replace(f"{path}.copy", path)


def damage(path):
    data = path.read_bytes()
    write_in_place(path, data[:20] + b"?" + data[21:])


HARMLESS = {
    "permissions": lambda path: path.chmod(0o444),
    "link": lambda path: os.link(path, path.parent.parent / "link"),
    "copy": restore,
    "the same bytes": lambda path: write_in_place(path, path.read_bytes()),
}


def states(output):
    return {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in pathlib.Path(output).rglob("*array_record*")
    }


@pytest.mark.parametrize(
    ("change", "committed"), [(rewrite, False), (rewrite, True), (damage, True)]
)
def test_other_records_in_place_are_refused(job, inputs, committed, change):
    if committed:
        convert(job)
    else:
        convert_shard(prepared_of(job), 5)
    before = states(job.output)
    change(inputs / "2")
    for _ in range(2):
        with pytest.raises(JobChangedError, match="its size has not") as caught:
            convert(job)
        assert caught.value.where.endswith(f"{inputs}/2")
        assert f"{inputs}/0" not in caught.value.where
        assert re.search(r"array_record-0000[345]-of-0", caught.value.expected)
        assert "--overwrite" in caught.value.cure
    assert before.items() <= states(job.output).items()
    if change is rewrite:
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
def test_the_same_records_go_on(job, inputs, change, committed):
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


def as_text(record):
    return repr(record).encode()


DAMAGED = bytearray(frames_of(OLD))
DAMAGED[len(frames_of(OLD[:40])) + 2] = 63
# What is converted, how, and the records of that.
SOURCES = {
    "damaged": (DAMAGED, {"on_corrupt": "skip"}, [*OLD[:40], *OLD[41:]]),
    "gzip": (gzip.compress(frames_of(OLD)), {"shards": 1}, OLD),
    "mapped": (frames_of(OLD), {"map": f"{__name__}:as_text"}, [*map(as_text, OLD)]),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("source", SOURCES)
def test_whatever_the_shards_were_made_of(tmp_path, source):
    data, options, records = SOURCES[source]
    (path := tmp_path / "in").write_bytes(data)
    job = job_of(path, tmp_path / "out", **{"shards": 20, **options})
    convert(job)
    path.chmod(0o444)
    convert(job)
    assert begin_job(job).committed is not None
    assert read_output(job.output) == records


def test_a_worker_of_the_run_before_publishes_nothing(job, inputs, monkeypatch):
    # It has read all it needs, and publishes after the next run has looked.
    prepared = prepared_of(job)

    def begin_again():
        rewrite(inputs / "2")
        begin_job(job)

    meanwhile(monkeypatch, RecordSink, "write", begin_again)
    with pytest.raises(JobChangedError, match="another run of this conversion"):
        convert_shard(prepared, 0)
    convert(job)
    assert read_output(job.output) == [*OLD[:60], *NEW[60:]]
