"""The benchmark of harness threads runs, and measures what it says."""

from __future__ import annotations

import pytest

from benchmarks.harness_threads import main


@pytest.mark.slow
def test_a_small_run(capsys, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "")  # The benchmark sets its own.
    runs = main(["--threads", "2", "--shards", "2", "--shard-bytes", "2000000"])
    assert [run["threads"] for run in runs] == [2]
    for run in runs:
        assert run["input_bytes"] > 3_900_000
        assert run["cpu_seconds"] > 0
        assert run["memory_bytes"] > 50_000_000
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 3
    assert table[2].startswith("| 2 |")
