"""Contests: what they read is like C4, what they measure is right, and they run."""

import itertools
import json
import statistics
import sys
import time

import numpy as np
import pytest
import zstandard

from benchmarks import (
    c4_like,
    contest,
    convert,
    cost,
    feed,
    formats,
    gcs,
    gcs_convert,
    load,
    pack,
    padding,
    report,
    scale,
)
from benchmarks.resume import __main__ as resume
from benchmarks.resume import trial
from benchmarks.resume.environments import QUICK


@pytest.fixture(scope="module")
def records():
    return list(itertools.islice(c4_like.generate_records(seed=7), 2048))


@pytest.mark.slow
@pytest.mark.parametrize("group", sorted(c4_like.REAL_C4_RATIOS))
def test_text_compresses_like_c4(records, group):
    compressor = zstandard.ZstdCompressor(level=3)
    compressed = sum(
        len(compressor.compress(b"".join(records[start : start + group])))
        for start in range(0, len(records), group)
    )
    ratio = compressed / sum(map(len, records))
    assert ratio == pytest.approx(c4_like.REAL_C4_RATIOS[group], abs=0.03)


def test_lengths_have_the_mean_and_the_tail_of_c4(records):
    lengths = sorted(map(len, records))
    assert statistics.mean(lengths) == pytest.approx(2200, rel=0.1)
    # Real C4: 1,348 bytes, 13,850 bytes and 221 bytes.
    assert statistics.median(lengths) == pytest.approx(1400, rel=0.1)
    assert lengths[len(lengths) * 99 // 100] > 9_000
    assert lengths[0] < 300


def test_ratios_are_of_the_rounds_that_both_have():
    runs = [
        {"case": "", "contestant": key, "round": number, "work": 8.0, "cpu_seconds": s}
        for key, number, s in (
            *(("a", 3, 1.0), ("a", 1, 2.0)),
            *(("b", 1, 4.0), ("b", 2, 1.0), ("b", 3, 3.0)),
        )
    ]
    a, b = (report.speeds({"runs": runs}, "", key, "cpu") for key in "ab")
    assert report.times(a, b) == [3.0, 2.0]
    assert report.spread([3, 1, 2]) == "2.00 (1.00..3.00)"


@pytest.mark.alone
def test_cpu_time_of_a_process_left_behind_counts():
    spin = (
        "import time; end = time.process_time() + 0.5\n"
        "while time.process_time() < end: pass"
    )
    leave = (
        f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {spin!r}])"
    )
    assert cost.run_measured([sys.executable, "-c", leave])["cpu_seconds"] >= 0.5


@pytest.mark.slow
@pytest.mark.alone
def test_memory_is_that_of_the_whole_tree():
    hold = "data = bytearray(b'x') * (64 << 20)\n"
    other = f"{hold}print(flush=True)\ninput()"
    both = (
        f"import subprocess as s, sys, time\n"
        f"command = [sys.executable, '-c', {other!r}]\n"
        f"other = s.Popen(command, stdin=s.PIPE, stdout=s.PIPE)\n{hold}"
        # Both hold it, however long the other took to start.
        f"other.stdout.readline()\ntime.sleep(3)\n"
        f"other.communicate(b'\\n')"
    )
    peak_bytes = cost.run_measured([sys.executable, "-c", both])["peak_bytes"]
    assert (128 << 20) < peak_bytes < (192 << 20)


def test_the_tree_is_killed_after_the_timeout():
    begin = time.monotonic()
    with pytest.raises(RuntimeError, match=r"^exit code -9$"):
        cost.run_measured(["sh", "-c", "sleep 300 & sleep 300"], timeout_seconds=0.3)
    assert time.monotonic() - begin < 100


class Losing(convert.Convert):
    # One loses records and exits with 0, the other crashes.
    def _command(self, key, output):
        if key == "bare":
            return self.program("bare", 1, output, self._paths[0])
        return [sys.executable, "-c", "raise TypeError('not an int')"]


@pytest.mark.slow
def test_who_loses_records_or_crashes_has_failed(tmp_path):
    path = tmp_path / "runs.json"
    argv = ["--quick", "--bytes=60000", f"--json={path}", "-c", "gristmill_1", "bare"]
    assert contest.main(Losing, argv=argv) == 1
    found = json.loads(path.read_text())
    assert found["runs"] == []
    assert found["failed"]["bare"].startswith("records: got ")
    assert found["failed"]["gristmill_1"].startswith("exit code 1\n")
    assert found["failed"]["gristmill_1"].endswith("TypeError: not an int")


# The peers that have to be installed are in `dev`.
QUICK_RUNS = {
    "convert": (convert.Convert, "gristmill_1 array_record_beam tfds bare"),
    "formats": (formats.Formats, "gristmill_jsonl gristmill_parquet jsonl_loop"),
    "pack": (pack.Pack, "gristmill bare gristmill_chat"),
    "padding": (padding.Padding, "gristmill_best-fit FirstFit"),
    "load": (load.Load, "gristmill_read gristmill_feed array_record grain_guide"),
    "gcs": (gcs.Gcs, "gristmill_global"),
    "gcs_convert": (gcs_convert.GcsConvert, "gristmill_20_ms"),
    "feed": (feed.Feed, "gristmill bare gristmill_block"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK_RUNS)
def test_a_contest_runs(name, tmp_path):
    kind, contestants = QUICK_RUNS[name]
    path = tmp_path / "runs.json"
    argv = ["--quick", f"--json={path}", "-c", *contestants.split()]
    assert contest.main(kind, argv=argv) == 0
    found = json.loads(path.read_text())
    assert {run["contestant"] for run in found["runs"]} == {*contestants.split()}
    assert all(run["work"] > 0 and run["cpu_seconds"] > 0 for run in found["runs"])
    assert found["failed"] == {}
    report.draw(found, tmp_path / "chart.svg")


@pytest.mark.slow
@pytest.mark.parametrize("path", scale.PATHS)
def test_plans_grow_as_they_should(path):
    found = scale.measure(path, 500)
    assert found["element_bytes"] <= 800  # With the path of a temporary file.
    # Of so few, what is gathered once counts.
    assert found["gathered_shard_bytes"] <= 90


def test_a_record_is_lost_or_repeated_or_moved():
    whole, resumed = ([1, 2, 2], [3, 4]), ([1, 2], [9], [3, 3, 4])
    steps = (map(np.array, each) for each in (whole, resumed))
    expected = {"lost": 1, "repeated": 1, "moved": 1, "new": 1}
    assert trial.compare(*steps, records=9) == expected


# What loaders take of other data, they take without a look at it.
OUTCOMES = {
    "gristmill": {"stopped": "exact", "packing": "exact", "other": "refused"},
    "grain_map": {"stopped": "exact", "packing": "exact", "other": "accepted"},
    "tf_data": {"stopped": "exact", "packing": "not offered", "other": "accepted"},
    # It has no state: its numbers are those of two draws.
    "webdataset": {"stopped": "differs", "packing": "not offered"},
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "loader",
    [
        pytest.param(name, marks=pytest.mark.soak) if name != "gristmill" else name
        for name in QUICK
    ],
)
def test_loaders_resume_and_gristmill_is_exact(loader, tmp_path):
    path = tmp_path / "resume.json"
    assert resume.main(["--quick", f"--json={path}", "--loaders", loader]) == 0
    found = json.loads(path.read_text())["loaders"][loader]
    outcomes = {case: one["outcome"] for case, one in found["cases"].items()}
    assert {**outcomes, **OUTCOMES[loader]} == outcomes
    assert "failed" not in outcomes.values()
