"""Tests of the benchmark of reading from a bucket: its server, and a tiny run of it."""

from __future__ import annotations

import json
import pathlib

import pytest
import requests

from benchmarks import gcs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("bucket")
    (folder / "c4").mkdir()
    (folder / "c4" / "a b").write_bytes(bytes(range(256)) * 1000)
    (folder / "c4" / "z").write_bytes(b"z")
    return folder


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "path",
    [
        "/storage/v1/b/bench/o/c4%2Fa%20b?alt=media",
        "/download/storage/v1/b/bench/o/c4%2Fa%20b?alt=media",
        "/bench/c4/a%20b",
    ],
)
@pytest.mark.parametrize(
    ("sent", "begin", "end"),
    [
        (None, 0, 256_000),
        ("bytes=5-9", 5, 10),
        ("bytes=255990-", 255_990, 256_000),
        ("bytes=-7", 255_993, 256_000),
        ("bytes=255999-300000", 255_999, 256_000),
    ],
)
def test_the_server_sends_what_is_asked_for(
    folder: pathlib.Path, path: str, sent: str | None, begin: int, end: int
) -> None:
    data = (folder / "c4" / "a b").read_bytes()
    with gcs.serve(folder, 1, 0) as url, requests.Session() as session:
        headers = {} if sent is None else {"Range": sent}
        answer = session.get(url + path, headers=headers)
        assert answer.content == data[begin:end]
        assert answer.status_code == (200 if sent is None else 206)
        if sent is not None:
            expected = f"bytes {begin}-{end - 1}/{len(data)}"
            assert answer.headers["Content-Range"] == expected
        assert session.get(url + path.replace("a%20b", "none")).status_code == 404
        counters = session.get(f"{url}/counters").json()
        assert counters["requests"] == 2
        assert counters["connections"] == 1


@pytest.mark.alone
def test_latency_and_bandwidth_are_kept(folder: pathlib.Path) -> None:
    more = "--connection-mb-per-second=1", "--slow-every=3", "--slow-ms=200"
    with gcs.serve(folder, 50, 100, *more) as url, requests.Session() as session:
        path = f"{url}/bench/c4/z"
        seconds = [session.get(path).elapsed.total_seconds() for _ in range(3)]
        assert seconds[0] >= 0.15
        assert 0.05 <= seconds[1] < seconds[2]
        assert seconds[2] >= 0.25
        whole = session.get(f"{url}/bench/c4/a%20b")
        assert len(whole.content) == 256_000
        # A MB a second: the last of four pieces leaves after a quarter of a second.
        assert whole.elapsed.total_seconds() >= 0.05


@pytest.mark.slow
def test_a_tiny_run_reports_every_reader(tmp_path: pathlib.Path) -> None:
    out, table = tmp_path / "out.json", tmp_path / "out.md"
    arguments = ["--quick", "--json", str(out), "--markdown", str(table)]
    assert gcs.main(arguments) == 0
    runs = json.loads(out.read_text())["runs"]
    assert [run["reader"] for run in runs] == ["gristmill_global", "gristmill_client"]
    assert all(run["records"] > 0 and "error" not in run for run in runs)
    assert "gristmill, global shuffle" in table.read_text()
