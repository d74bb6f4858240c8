"""Commands that make and check data, as a shell calls them."""

from __future__ import annotations

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.commands.main import main
from gristmill.pipelines.options.conversion_jobs import parse_size
from gristmill.pipelines.text.printer import whole_number
from tests.support.records import text_records, write_array_records, write_tfrecords
from tests.support.shell import gristmill, records_of, succeeded
from tests.support.waiting import until

RUNNER = ("--runner", "FnApiRunner")


def test_version_help_and_a_demo_that_can_be_repeated(tmp_path):
    assert succeeded("--version", cwd=tmp_path).startswith("gristmill ")
    assert "Exit codes" in succeeded("--help", cwd=tmp_path)
    text = succeeded("demo", "demo", cwd=tmp_path)
    assert "4,000 records in 8 shards" in text
    assert "record 2:" in text
    assert "committed already" in succeeded("demo", "demo", cwd=tmp_path)


@pytest.mark.slow
def test_a_second_conversion_has_nothing_to_do(tmp_path):
    write_tfrecords(tmp_path / "in.tfrecord", text_records(300))
    command = ("convert", "in.tfrecord", "out", "--num-shards", "5", "--json")
    first = json.loads(succeeded(*command, cwd=tmp_path))
    assert (first["manifest"]["records"], first["committed_before"]) == (300, [])
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    again = json.loads(succeeded(*command, cwd=tmp_path))
    assert again["committed_before"] == ["train"]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    done = gristmill(*command, "--num-shards", "4", cwd=tmp_path)
    assert done.returncode == 2
    assert "the plan was 5 shards, is 4 shards" in done.stderr
    assert "--overwrite" in done.stderr


BEAM_PROCESSES = (
    *(*RUNNER, "--", "--direct_running_mode=multi_processing"),
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
        *(sys.executable, "-m", "gristmill", "convert", "in.tfrecord", "out"),
        *("--num-shards", "4", "--map", "slow:slow", *options),
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
    )
    try:
        until(lambda: [*tmp_path.glob("worker-*")])
        worker = min(tmp_path.glob("worker-*"))
        os.kill(int(worker.name.partition("-")[2]), signal.SIGKILL)
        (tmp_path / "go").touch()
        _, stderr = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1
    assert b"a worker process ended without a result" in stderr
    assert not (tmp_path / "out" / "dataset.json").exists()
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert records_of(tmp_path / "out") == text_records(1000)


def damage(path: pathlib.Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.slow
def test_damage_has_an_exit_code_and_a_report(tmp_path):
    write_array_records(tmp_path / "x.array_record", text_records(500))
    damage(tmp_path / "x.array_record", 9000)
    done = gristmill("index", "x.array_record", cwd=tmp_path)
    assert done.returncode == 3
    assert "x.array_record" in done.stderr
    assert not (tmp_path / "dataset.json").exists()
    write_tfrecords(tmp_path / "in.tfrecord", text_records(300))
    succeeded("convert", "in.tfrecord", "texts", "--num-shards", "3", cwd=tmp_path)
    shard = tmp_path / "texts" / "texts-train.array_record-00001-of-00003"
    damage(shard, 5000)
    for where in ((), RUNNER):
        done = gristmill("verify", "texts", *where, "--report", "r.json", cwd=tmp_path)
        assert done.returncode == 3
        assert "DAMAGED" in done.stdout
        found = json.loads((tmp_path / "r.json").read_bytes())
        assert {finding["path"] for finding in found["findings"]} == {shard.name}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("verify x --wait", "--runner DataflowRunner"),
        ("index x --cross-region --runner FnApiRunner", "--runner DataflowRunner"),
        ("index x --install-on-workers", "--runner DataflowRunner"),
        ("verify x -- --region=x", "add --runner"),
        ("index x --workers=2 --runner FnApiRunner", "--workers"),
        ("unique a --runner=DataflowRunner", "cannot be found on Dataflow"),
        ("attach a --map=m:f --runner=DataflowRunner", "one machine"),
        ("attach a b --number=n --runner FnApiRunner", "only --map runs on Beam"),
        ("convert a b --num-shrads=3 --runner FnApiRunner", "No such option"),
        ("convert a b --region=x", "No such option"),
        # Before anything is looked at: gs:// would ask for credentials.
        ("convert gs://x/y gs://z --runner Nope", "FlinkRunner"),
        ("verify gs://z --runner=Nope", "unknown Beam runner"),
        ("index x --runner FnApi --streaming=x", "does not take these"),
    ],
)
def test_options_of_runners_without_effect_are_refused(line, message, capsys):
    with pytest.raises(SystemExit) as ended:
        main(line.split())
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("text", ["", "0", "0.5B", "MiB", "-1", "1XB", "1 2", "1e3"])
def test_what_is_no_size(text):
    with pytest.raises(InputError, match="not a size") as caught:
        parse_size(text, "--cache-bytes")
    assert caught.value.cure == "give another --cache-bytes"


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", " 1", "1_0", "1.0", "\u00b2", "9" * 19]
)
def test_what_is_no_whole_number(text):
    assert whole_number(text) is None
    assert whole_number("0" * 5000 + "12") == 12
