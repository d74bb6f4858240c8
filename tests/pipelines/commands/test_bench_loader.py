"""`gristmill bench-loader`, which must find out what limits a loader."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.loader.feed.bench import Alone, Measured, measure
from gristmill.loader.stats.feed_stats import FeedStats
from gristmill.pipelines.commands.bench_loader import (
    measured_text,
)
from gristmill.pipelines.commands.main import cli
from tests.support.datasets import convert
from tests.support.records import text_records

FILES = [text_records(2000, seed=1), text_records(2000, seed=2)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> str:
    return convert(tmp_path_factory.mktemp("data"), FILES)


def bench(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(cli, ["bench-loader", *map(str, arguments)])
    assert done.exit_code == code, done.output
    # A thread of an earlier test may warn meanwhile, on standard error.
    return done.output if code else done.stdout


def bench_json(*arguments: object) -> dict[str, Any]:
    return json.loads(bench(*arguments, "--json", "--seconds", 0.4))


@pytest.mark.parametrize(
    ("cause", "words", "measured"),
    [
        ("decode", "65% of what a batch takes is decode", {}),
        ("trainer", "the trainer waits 1% of its time", {"wait_seconds": 0.1}),
        ("read", "is decompression and checks", {"read_cpu_seconds": 16}),
        ("read", "is decompression and checks", {"read_queued_seconds": 15}),
        ("storage", "52% of what a batch takes is waiting", {"read_seconds": 18}),
        ("transfer", "is passing it to the trainer", {"transfer_seconds": 15}),
    ],
)
def test_the_cause_is_that_of_the_feed(cause, words, measured):
    alone = Alone(
        batches=1,
        records=9,
        record_bytes=90,
        io_seconds=0.1,
        read_seconds=0.3,
        decode_seconds=0.6,
        storage_bytes=None,
    )
    times = {"wait_seconds": 9, "busy_seconds": 10, "decode_seconds": 13}
    times |= {"read_seconds": 7, "read_cpu_seconds": 2, **measured}
    fed = FeedStats(batches=3, records=9, **times)
    measured = Measured(alone=alone, fed=fed, step_seconds=0.0)
    text = measured_text(measured)
    assert "10% waiting for storage" in text
    (line,) = (line for line in text.splitlines() if line.startswith("  cause "))
    assert line.startswith(f"  cause     {cause}: ")
    assert words in line
    assert text.endswith(f"\n{' ' * 12}{measured.waiting.cure}")


@pytest.mark.alone
def test_a_trainer_that_takes_no_time_is_limited_by_reading(dataset):
    # Of the few batches of a short run one may wait for a processor that others use,
    # which looks like storage or decode: of several runs one is undisturbed.
    for _ in range(10):
        found = bench_json(dataset, "--batch-size", 500)
        alone, fed = found["alone"], found["fed"]
        cause = found["waits_for"]["cause"]
        small = alone["decode_seconds"] < 0.01 * alone["read_seconds"]
        if small and cause == "read":
            break
    assert cause == "read"
    assert found["waiting_share"] > 0.2
    assert alone["records"] == alone["batches"] * 500
    assert alone["read_seconds"] > alone["io_seconds"]
    assert alone["decode_seconds"] < alone["read_seconds"]
    assert fed["records"] == fed["batches"] * 500
    seconds = fed["wait_seconds"] + fed["busy_seconds"]
    expected = 500 * (fed["batches"] - 1) / seconds
    assert found["records_per_second"] == pytest.approx(expected)


@pytest.mark.alone
def test_a_slow_trainer_is_the_limit(dataset):
    found = bench_json(dataset, "--step-ms", 60, "--batch-size", 100)
    assert found["waits_for"]["cause"] == "trainer"
    assert found["step_seconds"] == 0.06
    assert found["records_per_second"] < 100 / 0.06


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_decode_that_fails(dataset, tmp_path, monkeypatch, workers):
    (tmp_path / "bad_module.py").write_text("def decode(records):\n    return 1 / 0\n")
    monkeypatch.chdir(tmp_path)
    options = ("--decode", "bad_module:decode", "--workers", workers)
    text = bench(dataset, *options, "--seconds", 0.2, code=1)
    assert "--decode function failed: ZeroDivisionError: division by zero" in text
    assert "where:    bad_module:decode, in the batch of step 0" in text
    assert ("bad_module.py, line 2: return 1 / 0" in text) == (workers == 0)
    assert "to do: " in text


def test_wrong_usage_is_told(dataset, tmp_path):
    assert "no such split" in bench(dataset, "--split", "test", code=2)
    assert "nowhere" in bench(dataset, "--decode", "nowhere:decode", code=2)
    assert "dataset" in bench(tmp_path, code=3)
    batches = loader.global_batches(loader.open(dataset), batch_size=9, epochs=1)
    with pytest.raises(InputError, match="epochs=None"):
        measure(batches)


@pytest.mark.slow
@pytest.mark.alone
def test_batches_in_memory_show_what_a_faster_feed_would_give(
    dataset, tmp_path, monkeypatch
):
    (tmp_path / "waiting_module.py").write_text(
        "import time\n\n\ndef decode(records):\n    time.sleep(0.05)\n"
    )
    monkeypatch.chdir(tmp_path)
    options = ["--batch-size", 50, "--step-ms", 2, "--prefetch", 1]
    options += ["--decode", "waiting_module:decode"]
    found = bench_json(dataset, *options, "--repeat-cached", 3)
    cached = found["cached"]
    assert cached["records"] == 50 * cached["batches"]
    # It waits for nothing, while the feed waits for each decode.
    assert cached["wait_seconds"] < 0.1 * found["fed"]["wait_seconds"]
    speed = (cached["batches"] - 1) / (cached["wait_seconds"] + cached["busy_seconds"])
    assert 4 < 50 * speed / found["records_per_second"] < 26
    text = bench(dataset, *options, "--seconds", 0.4, "--repeat-cached", 1)
    (line,) = (line for line in text.splitlines() if "times fed" in line)
    assert float(line.split()[0]) > 4
    lines = [line.split()[0] for line in text.splitlines() if line[2] != " "]
    assert lines[-2:] == ["in", "cause"]
    assert bench_json(dataset, "--batch-size", 50)["cached"] is None
