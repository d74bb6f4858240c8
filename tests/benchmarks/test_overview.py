"""The pages of all comparisons: ratios of rounds, versions, and what is missing."""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import subprocess

import pytest

from benchmarks import (
    contest,
    feed_packed,
    formats,
    gcs,
    load,
    maxtext,
    pack,
    reports,
    streaming,
    unique,
)
from benchmarks.comparisons import PEERS
from benchmarks.overview import Overview


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    runs = [
        {
            "contestant": key,
            "round": number,
            "kind": kind,
            "input_bytes": 10**8,
            "cpu_seconds": seconds * number,
            "wall_seconds": seconds,
        }
        for number in (1, 2, 3)
        for kind in ("startup", "main")
        for key, seconds in (
            ("gristmill_2", 2.0 if kind == "main" else 7.0),
            ("array_record_beam", 8.0 + number),
            ("tfds", 5.0),
        )
    ]
    environment = {
        "date": "2026-01-02",
        "cpu_count": 2,
        "cpu": "x",
        "packages": {"array-record": "1.2", "apache-beam": "3.4"},
    }
    results = {"environment": environment, "runs": runs}
    (tmp_path / "convert.json").write_text(json.dumps(results))
    (tmp_path / "convert.md").write_text("# Conversion\n")
    return tmp_path


def test_ratios_are_those_of_each_round(folder: pathlib.Path) -> None:
    lines = Overview(folder, folder).peers().splitlines()
    assert lines[2] == (
        "| `array_record.beam` | array-record 1.2, apache-beam 3.4 | TFRecords to "
        "shards; 2 workers | 5.00\N{MULTIPLICATION SIGN} (4.50..5.50) | "
        "5.00\N{MULTIPLICATION SIGN} (4.50..5.50) | [2026-01-02](convert.md) |"
    )


def test_the_short_table_has_what_was_measured(folder: pathlib.Path) -> None:
    lines = Overview(folder, folder).peers_in_short("docs/").splitlines()
    assert lines[2] == (
        "| `array_record.beam` | TFRecords to shards; 2 workers | "
        "5.00\N{MULTIPLICATION SIGN} | "
        "5.00\N{MULTIPLICATION SIGN} | [2026-01-02](docs/convert.md) |"
    )
    assert not any("not measured yet" in line for line in lines)


def test_says_what_is_not_known(folder: pathlib.Path) -> None:
    lines = Overview(folder, folder).peers().splitlines()
    assert len(lines) == 2 + len(PEERS)
    assert lines[3].startswith("| `tfds convert_format` | ? | the same | 2.50")
    assert "| not measured yet | not measured yet | not yet |" in lines[4]


def test_lists_the_reports_that_are_there(folder: pathlib.Path) -> None:
    assert Overview(folder, folder).reports().splitlines() == [
        "- [Conversion](convert.md): TFRecords to shards, whole processes beside peers "
        "and bare loops: 5.00\N{MULTIPLICATION SIGN} (4.50..5.50) the MB per CPU "
        "second of `array_record.beam`. Measured on 2026-01-02."
    ]
    (folder / "decode.md").write_text("# Decoding\n\nMeasured on 2026-03-04.\n")
    assert Overview(folder, folder).reports().endswith(". Measured on 2026-03-04.")
    (folder / "encode.md").write_text("# Encoding\n")
    with pytest.raises(ValueError, match=r"encode\.md does not say on which day"):
        Overview(folder, folder).reports()


def test_every_report_is_listed() -> None:
    listed = (reports.ROOT / reports.PAGES / "index.md").read_text(encoding="utf-8")
    for path in (reports.ROOT / reports.PAGES).glob("*.md"):
        assert path.name == "index.md" or f"]({path.name})" in listed, path.name


def test_the_versions_of_all_peers_are_recorded(tmp_path: pathlib.Path) -> None:
    git = ["git", "-c", "user.name=x", "-c", "user.email=x"]
    for arguments in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *arguments], cwd=tmp_path, check=True)
    # Stands for the Python of another environment.
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho 1.2.3\n")
    python.chmod(0o755)
    given = argparse.Namespace(datatrove=python, megatron=(tmp_path, python))
    of_pack = pack.describe(given)["packages"]
    assert of_pack["datatrove"] == "1.2.3"
    assert re.fullmatch("[0-9a-f]{7,}", of_pack["Megatron-LM"])
    of_formats = formats.describe(tmp_path)["packages"]
    assert of_formats["arrayrecord-converter"] == of_pack["Megatron-LM"]
    recorded = {
        "convert": contest.describe_environment()["packages"],
        "feed_packed": feed_packed.PACKAGES,
        "formats": of_formats,
        "gcs": gcs.PACKAGES,
        "load": load.PACKAGES,
        "maxtext": maxtext.PACKAGES,
        "pack": of_pack,
        "streaming": streaming.describe(python)["packages"],
        "unique": unique.describe(python)["packages"],
    }
    for one in PEERS.values():
        assert {*one.packages} <= {*recorded[one.report]}, one.peer
