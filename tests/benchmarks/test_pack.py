"""The benchmark of packing: contestants at a tiny size, and what it says."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

from benchmarks import pack, pack_peers, pack_report, pack_text
from benchmarks.contest import describe_environment

pytest.importorskip("tokenizers")
pytest.importorskip("gigatoken")


def test_bare_loops_make_the_same_tokens(tmp_path: pathlib.Path) -> None:
    pack_text.write_inputs(tmp_path, 60_000, files=1, forms=("text",))
    tokenizer = tmp_path / "t" / "tokenizer.json"
    pack_text.train_tokenizer(tokenizer, vocabulary=500, size_bytes=60_000)
    paths = sorted(map(str, (tmp_path / "text").iterdir()))
    one = pack_peers.run_bare(str(tokenizer), paths, workers=1)
    assert one == pack_peers.run_bare(str(tokenizer), paths, fast=True, workers=1)
    assert one > 10_000


def _run(key: str, number: int, cpu_seconds: float, **more: Any) -> dict[str, Any]:
    return {
        "contestant": key,
        "round": number,
        "documents": 5,
        "text_bytes": 10_000_000,
        "tokens": 2_000_000,
        "cpu_seconds": cpu_seconds,
        "wall_seconds": 1.0,
        "peak_process_bytes": 10**8,
        **more,
    }


def test_ratios_are_those_of_each_round() -> None:
    runs = [_run("pack", number, cpu) for number, cpu in ((2, 4), (1, 1), (3, 2))]
    runs += [_run("bare", number, 2) for number in (1, 2, 3)]
    lines = pack_report.render_part(runs, [("pack", "bare")]).splitlines()
    assert lines[2].endswith("| 10 | 5.0 (2.5..10.0) | 1.00 (0.50..2.00) | 1.0 | 3 |")
    assert lines[-1].endswith("| 1.00 (0.50..2.00) |")


def test_memory_is_that_above_the_tokenizers_own() -> None:
    runs = [
        _run("holding", 1, 1, peak_process_bytes=2 * 10**8),
        _run("pack_one", 1, 1, peak_process_bytes=3 * 10**8),
    ]
    assert pack_report.render_memory(runs).endswith("| 10 | 300 | 200 | 100 |")


def test_the_document_has_every_part(tmp_path: pathlib.Path) -> None:
    environment = describe_environment(("numpy",))
    parts = {
        "huggingface": {
            "environment": environment,
            "runs": [_run("pack", 1, 1), _run("bare", 1, 2)],
        },
        "fast": {"runs": [_run("pack_fast", 1, 1), _run("datatrove", 1, 20)]},
        "packing": {"runs": ["| lengths |\n| what | us a document |"]},
    }
    path = tmp_path / "pack.json"
    path.write_text(json.dumps({"parts": parts}))
    text = pack_report.render_document(tmp_path)
    assert "`gristmill pack --fast` over datatrove | 20.00 |" in text
    assert "| what | µs a document |" in text
    assert "## Memory" not in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "contestants"),
    [
        ("fast", ["pack_fast", "bare_fast"]),
        pytest.param("memory", ["holding", "pack_one"], marks=pytest.mark.soak),
    ],
)
def test_it_runs(part: str, contestants: list[str], tmp_path: pathlib.Path) -> None:
    path = tmp_path / "runs.json"
    argv = ["--bytes=60KB", "--fast-bytes=60KB", "--memory-bytes=60KB", "--rounds=1"]
    argv += ["--fast-rounds=1", "--training-bytes=60KB", "--vocabulary=500"]
    pack.main([*argv, part, "--json", str(path), "--work-dir", str(tmp_path)])
    parts = json.loads(path.read_text())["parts"]
    assert {
        name: [run["contestant"] for run in part["runs"]]
        for name, part in parts.items()
    } == {part: contestants}
