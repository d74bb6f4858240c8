"""`gristmill convert`, as a shell calls it: here and by Beam's runners."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.storage.directory_lock import in_use
from tests.support.conversion import contents
from tests.support.records import read_array_records, text_records, write_tfrecords
from tests.support.shell import (
    FILES,
    RECORDS,
    expected_records,
    gristmill,
    on_terminal,
    records_of,
    succeeded,
    write_source,
)


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    return write_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def dataset(source, tmp_path_factory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("dataset") / "texts"
    succeeded("convert", "*.tfrecord", output, "--num-shards", "5", cwd=source)
    return output


def test_convert_keeps_every_record_in_order(dataset):
    assert len(list(dataset.glob("texts-train.array_record-*-of-00005"))) == 5
    assert records_of(dataset) == expected_records()


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("options", "shards"),
    [
        (["--match-shards"], FILES),
        (["--num-shards", "4", "--workers", "2"], 4),
        (["--records-per-shard", "90"], 7),
        (["--shard-size", "40kB"], 6),
        ([], 1),
    ],
)
def test_every_plan(source, tmp_path, options: Sequence[str], shards: int):
    text = succeeded(
        "convert",
        "*.tfrecord",
        tmp_path / "out",
        *("--workers", "1", *options),
        cwd=source,
    )
    assert f"600 records in {shards} shard" in text
    assert len(list((tmp_path / "out").glob("out-train.array_record-*"))) == shards
    assert records_of(tmp_path / "out") == expected_records()
    if "--records-per-shard" in options:
        first = tmp_path / "out" / "out-train.array_record-00000-of-00007"
        assert len(read_array_records(first)) == 90


@pytest.mark.slow
def test_name_split_group_size_and_compression(source, tmp_path):
    output = tmp_path / "out"
    succeeded(
        *("convert", "*.tfrecord", output, "--name", "web", "--split", "test"),
        *("--group-size", "7", "--compression", "brotli:3"),
        cwd=source,
    )
    split = open_manifest(str(output)).splits["test"]
    assert split.writer_options.startswith("group_size:7,brotli:3,gristmill:1,")
    assert (output / "web-test.array_record-00000-of-00001").exists()
    assert records_of(output, "test") == expected_records()


@pytest.mark.slow
def test_second_run_says_so_and_other_options_are_an_error(source, dataset):
    before = {path: path.stat().st_mtime_ns for path in dataset.rglob("*")}
    text = succeeded("convert", "*.tfrecord", dataset, "--num-shards", "5", cwd=source)
    assert "committed already" in text
    assert {path: path.stat().st_mtime_ns for path in dataset.rglob("*")} == before
    done = gristmill("convert", "*.tfrecord", dataset, "--num-shards", "4", cwd=source)
    assert done.returncode == 2
    assert "the plan was 5 shards, is 4 shards" in done.stderr
    assert "--overwrite" in done.stderr


@pytest.mark.slow
def test_another_process_that_makes_shards_there_is_told(source, tmp_path):
    command = ("convert", "*.tfrecord", tmp_path / "out", "--num-shards", "2")
    with in_use(layout.temporary_dir(str(tmp_path / "out"), "out", "train")):
        done = gristmill(*command, cwd=source)
    assert done.returncode == 0
    note = "note: another process of this machine makes shards of split train in "
    assert f"{note}{tmp_path}/out now. Both make all that is missing" in done.stderr
    done = gristmill(*command, "--overwrite", cwd=source)
    assert "another process" not in done.stderr


@pytest.mark.slow
def test_overwrite(source, tmp_path):
    output = tmp_path / "out"
    succeeded("convert", "*.tfrecord", output, "--num-shards", "4", cwd=source)
    succeeded(
        "convert",
        "part-1.tfrecord",
        output,
        "--match-shards",
        "--overwrite",
        cwd=source,
    )
    assert records_of(output) == text_records(RECORDS, seed=1)
    assert open_manifest(str(output)).splits["train"].shards == 1


MAP_MODULE = """
def twice(record):
    return [record, record]

def copy(record):
    return bytes(bytearray(record))

def shout(record):
    if record.startswith(b"0"):
        return None
    return [record.upper(), b"!"]

def fail(record):
    raise KeyError("nothing here")
"""


@pytest.mark.slow
def test_map(source, tmp_path):
    (tmp_path / "mine.py").write_text(MAP_MODULE)
    pattern = str(source / "*.tfrecord")
    text = succeeded(
        "convert", pattern, "out", "--map", "mine:shout", "--workers", "2", cwd=tmp_path
    )
    kept = [r for r in expected_records() if not r.startswith(b"0")]
    assert records_of(tmp_path / "out") == [
        out for record in kept for out in (record.upper(), b"!")
    ]
    counts = (
        f"{600 - len(kept)} records dropped, {len(kept)} added, {len(kept)} changed"
    )
    assert counts in text
    # They are compared with what the function returned, not with what was read.
    assert "every record in the shards with what --map returned" in text
    assert counts in succeeded("inspect", "out", cwd=tmp_path)
    done = gristmill("convert", pattern, "bad", "--map", "mine:fail", cwd=tmp_path)
    assert done.returncode == 1
    assert "KeyError: 'nothing here'" in done.stderr
    assert "mine.py, line 14, in fail" in done.stderr
    assert "part-0.tfrecord, byte offset 0" in done.stderr


@pytest.mark.slow
def test_the_summary_says_what_was_compared(source, tmp_path):
    (tmp_path / "mine.py").write_text(MAP_MODULE)

    def convert(*options: str) -> str:
        return succeeded("convert", source / "*.tfrecord", *options, cwd=tmp_path)

    text = convert("plain")
    assert "--map" not in text
    assert "every record in the shards with what was read" in text
    text = convert("sample", "--check", "sample")
    assert "all lengths, and the records of one chunk in 64, with what was" in text
    text = convert("same", "--map", "mine:copy")
    assert "0 records dropped, 0 added, 0 changed" in text
    found = json.loads(convert("twice", "--map", "mine:twice", "--json"))
    train = found["manifest"]["splits"]["train"]
    assert found["check"] == "records"
    assert (train["records"], train["source"]["records"]) == (1200, 600)
    assert (train["dropped_records"], train["added_records"]) == (0, 600)
    assert train["source"]["changed_records"] == 0


@pytest.mark.slow
def test_the_summary_and_the_bytes_of_a_beam_run(source, tmp_path):
    (tmp_path / "mine.py").write_text(MAP_MODULE)
    command = ("convert", source / "*.tfrecord", "out", "--map", "mine:shout")
    command += ("--num-shards", "5")
    here = succeeded(*command, cwd=tmp_path)
    shutil.move(tmp_path / "out", tmp_path / "here")
    options = ("--runner", "FnApiRunner", "--", "--direct_runner_bundle_repeat=1")
    beam = succeeded(*command, *options, cwd=tmp_path)
    assert "changed" in here
    assert beam.splitlines()[:-1] == here.splitlines()[:-1]  # The last has the time.
    assert contents(tmp_path / "out") == contents(tmp_path / "here")


@pytest.mark.slow
def test_changed_records_are_counted_over_two_runs(source, tmp_path):
    (tmp_path / "mine.py").write_text(
        "import os\n\n\n"
        "def shout(record):\n"
        f"    if record == {expected_records()[-1]!r} and os.path.exists('fail'):\n"
        "        raise ValueError\n"
        "    return record.upper()\n"
    )
    (tmp_path / "fail").touch()
    command = ("convert", source / "*.tfrecord", "out", "--map", "mine:shout")
    command += ("--num-shards", "3", "--workers", "1")
    assert gristmill(*command, cwd=tmp_path).returncode == 1
    assert len(list((tmp_path / "out/index").glob("*.index"))) == 2
    (tmp_path / "fail").unlink()
    text = succeeded(*command, cwd=tmp_path)
    changed = sum(record != record.upper() for record in expected_records())
    assert f"0 added, {changed} changed" in text


@pytest.mark.slow
def test_corrupt_input(source, tmp_path):
    data = bytearray((source / "part-0.tfrecord").read_bytes())
    data[20] ^= 1
    (tmp_path / "bad.tfrecord").write_bytes(data)
    done = gristmill("convert", "bad.tfrecord", "out", cwd=tmp_path)
    assert done.returncode == 3
    for part in ("bad.tfrecord, byte offset 0", "expected", "got", "--on-corrupt"):
        assert part in done.stderr
    assert not (tmp_path / "out" / "dataset.json").exists()
    none = gristmill(
        *("convert", "bad.tfrecord", "out", "--on-corrupt", "quarantine"),
        *("--max-corrupt", "0"),
        cwd=tmp_path,
    )
    assert none.returncode == 3
    assert "--max-corrupt" in none.stderr
    text = succeeded(
        "convert", "bad.tfrecord", "out", "--on-corrupt", "quarantine", cwd=tmp_path
    )
    assert "QUARANTINED  1 damaged region" in text
    assert records_of(tmp_path / "out") == text_records(RECORDS, seed=0)[1:]


@pytest.mark.slow
def test_check_sample_writes_the_same_dataset(source, dataset, tmp_path):
    succeeded(
        *("convert", "*.tfrecord", tmp_path / "texts", "--num-shards", "5"),
        *("--check", "sample"),
        cwd=source,
    )
    for path in dataset.rglob("*"):
        if path.is_file():
            other = tmp_path / "texts" / path.relative_to(dataset)
            # The description of the job says how it was checked, and nothing else.
            if not path.name.endswith(".job.json"):
                assert other.read_bytes() == path.read_bytes(), path


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param((), marks=pytest.mark.soak),
        ("--", "--direct_running_mode=multi_processing"),
    ],
    ids=["in memory", "processes"],
)
def test_beam_error_is_our_message(tmp_path, options):
    (tmp_path / "bad.tfrecord").write_bytes(b"\xfe" * 40)
    done = gristmill(
        *("convert", "bad.tfrecord", "out", "--runner", "FnApiRunner", *options),
        cwd=tmp_path,
    )
    assert done.returncode in (1, 3)
    message = done.stderr[done.stderr.rindex("error: not a TFRecord file") :]
    assert "bad.tfrecord, byte offset 0" in message
    assert "while running" not in message


BEAM_PROCESSES = (
    *("--runner", "FnApiRunner", "--", "--direct_running_mode=multi_processing"),
    "--direct_num_workers=2",
)


@pytest.mark.one_in(2)
@pytest.mark.slow
@pytest.mark.parametrize("options", [("--workers", "2"), BEAM_PROCESSES])
def test_killed_worker_is_an_error_and_a_rerun_finishes(tmp_path, options):
    (tmp_path / "slow.py").write_text(
        "import itertools, os, time\n"
        "calls = itertools.count(1)\n"
        "def slow(record):\n"
        "    if next(calls) > 10:  # It is tried on so many, in another process.\n"
        "        open(f'worker-{os.getpid()}', 'w').close()\n"
        "    if not os.path.exists('go'):\n"
        "        time.sleep(0.1)\n"
        "    return record\n"
    )
    write_tfrecords(tmp_path / "in.tfrecord", text_records(1000))
    command = [
        *(
            sys.executable,
            "-m",
            "gristmill",
            "convert",
            "in.tfrecord",
        ),
        *("out", "--num-shards", "4", "--map", "slow:slow", *options),
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while not (workers := sorted(tmp_path.glob("worker-*"))):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        os.kill(int(workers[0].name.partition("-")[2]), signal.SIGKILL)
        (tmp_path / "go").touch()
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    assert b"a worker process ended without a result" in stderr
    assert not (tmp_path / "out" / "dataset.json").exists()
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert records_of(tmp_path / "out") == text_records(1000)


@pytest.mark.slow
def test_progress_bar_on_a_terminal(tmp_path):
    records = text_records(1500) * 40
    for file in range(4):
        write_tfrecords(tmp_path / f"in-{file}.tfrecord", records)
    text = on_terminal(
        "convert", "in-*.tfrecord", "out", "--num-shards", "8", cwd=tmp_path
    )
    assert "converting" in text
    assert "/8 shards" in text
    assert "MB/s" in text
