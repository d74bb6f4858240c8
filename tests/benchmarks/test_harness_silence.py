"""The benchmark of silences: what it measures, and its table."""

from __future__ import annotations

import time

import pytest

from benchmarks import harness_silence


@pytest.mark.slow
def test_small_records_are_measured():
    asked = ("zstd:1", 200_000, 2)
    found = harness_silence.measure(*asked)
    names = ("compression", "record_bytes", "records")
    run = dict(zip(names, asked, strict=True)) | found
    assert all(run[f"{step}_seconds"] > 0 for step in ("convert", "index", "verify"))
    line = harness_silence.table([run]).splitlines()[-1]
    assert line.startswith("| zstd:1 | 0 MB | ")
    assert line.count(" s |") == 4


def test_a_thread_that_holds_the_lock_is_noticed():
    silence = harness_silence.Silence()
    silence.start()
    begin = time.monotonic()
    sum(range(10_000_000))  # One call into C.
    taken = time.monotonic() - begin
    assert silence.end() > taken / 2
