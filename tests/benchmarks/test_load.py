"""Tests of the benchmark of reading: everything runs, and the report adds up."""

from __future__ import annotations

import json
import os
import pathlib

import numpy as np
import pytest

from benchmarks import load, load_contestants, load_report, zstd_frames
from benchmarks.contest import describe_environment
from benchmarks.load_contestants import CONTESTANTS
from benchmarks.load_data import read_shards, write_shards
from tests.support.records import read_array_records


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("load")
    write_shards(path, text_bytes=300_000, binary_bytes=1_000_000)
    return path


@pytest.mark.slow
def test_datasets_are_what_they_are_called(work_dir: pathlib.Path) -> None:
    found = {shards.name: shards for shards in read_shards(work_dir)}
    assert list(found) == ["text_g1", "text_g16", "binary_g1", "binary_g16"]
    for kind, mean in (("text", 2200), ("binary", 100_000)):
        single, grouped = found[f"{kind}_g1"], found[f"{kind}_g16"]
        assert single.record_bytes == pytest.approx(mean, rel=0.4)
        assert single.records == grouped.records
        assert single.tfrecords == grouped.tfrecords
        assert len(single.paths) == len(single.tfrecords) == 4
        records = [r for path in single.paths for r in read_array_records(path)]
        assert len(records) == single.records
        assert records == [r for p in grouped.paths for r in read_array_records(p)]


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "key", [key for key, c in CONTESTANTS.items() if not c.workers and key != "tf_data"]
)
def test_contestants_read_what_they_should(work_dir: pathlib.Path, key: str) -> None:
    shards = read_shards(work_dir)[1]
    records = [r for path in shards.paths for r in read_array_records(path)]
    reader = CONTESTANTS[key].open(shards)
    try:
        assert reader.step() == shards.batch_size == len(records)
        if reader.pick is not None:
            numbers = [5, 0, len(records) - 1, 5]
            assert list(reader.pick(numbers)) == [records[i] for i in numbers]
    finally:
        reader.close()


def test_the_floor_decompresses_every_record(work_dir: pathlib.Path) -> None:
    import zstandard

    for shards in read_shards(work_dir):
        frames, chunk_of = zstd_frames.read_frames(shards)
        assert len(chunk_of) == shards.records
        decoder = zstandard.ZstdDecompressor()
        decoded = b"".join(decoder.decompress(f, max_output_size=n) for f, n in frames)
        records = [r for path in shards.paths for r in read_array_records(path)]
        assert decoded == b"".join(records)


@pytest.mark.slow
def test_batches_are_random_and_have_every_record_once_an_epoch(
    work_dir: pathlib.Path,
) -> None:
    shards = read_shards(work_dir)[0]
    first = next(load_contestants._random_batches(shards))
    assert sorted(first.tolist()) == list(range(shards.records))
    assert (np.diff(first) != 1).any()


@pytest.mark.soak
def test_tiny_run(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = ["gristmill_read", "official_read", "feed_2"]
    status = load.main(
        [
            *("--quick", "--text-bytes", "300KB", "--binary-bytes", "1MB"),
            *("--seconds", "0.05", "--contestants", *chosen),
            *("--work-dir", str(tmp_path)),
            *("--json", str(tmp_path / "runs.json")),
            *("--markdown", str(tmp_path / "report.md")),
        ]
    )
    results = json.loads((tmp_path / "runs.json").read_text())
    assert status == 0, results["contestants"]
    datasets = ["text_g1", "text_g16", "binary_g1", "binary_g16"]
    runs = results["runs"]
    assert [(run["contestant"], run["dataset"]) for run in runs] == [
        (key, dataset) for key in chosen for dataset in datasets
    ]
    for run in runs:
        assert run["records"] > 0 < run["wall_seconds"]
        assert run["cpu_seconds"] >= 0 < run["first_seconds"]
    checksums = {(run["dataset"], run["checksum"]) for run in runs[:8]}
    assert len(checksums) == 4
    for run in runs[-4:]:
        # The trainer's process and the one that reads for it on this little data.
        assert run["index"]["processes"] >= 2
        assert run["index"]["private_dirty_bytes"] == 0
        assert run["index"]["pss_bytes"] < run["index"]["rss_bytes"]
    report = (tmp_path / "report.md").read_text()
    assert report == capsys.readouterr().out[:-1]
    assert "records per CPU second over the official batch read's" in report
    assert os.listdir(tmp_path).count("bench-") == 0


def _run(contestant: str, number: int, records: int, cpu: float) -> dict:
    index = {"file_bytes": 8_130, "rss_bytes": 16_384, "pss_bytes": 8_192}
    return {
        "contestant": contestant,
        "round": number,
        "dataset": "text_g1",
        "records": records,
        "wall_seconds": 1.0,
        "cpu_seconds": cpu,
        "first_seconds": 0.5,
        "checksum": None,
        "index": index | {"private_dirty_bytes": 0, "processes": 2},
    }


@pytest.fixture
def results() -> dict:
    keys = ["decompression", "gristmill_read", "official_read", "guide_grain_0"]
    entries = {
        key: {"label": f"the {key}", "status": "ok", "error": None}
        for key in [*keys, "feed_0"]
    }
    entries["broken"] = {"label": "the broken", "status": "failed", "error": "why\nso"}
    entries["absent"] = {"label": "the absent", "status": "not installed", "error": "x"}
    runs = []
    # The second round runs on a machine half as fast: the ratios stay.
    for number, slow in ((0, 1), (1, 2)):
        runs.append(_run("decompression", number, 200_000 // slow, 1.0))
        runs.append(_run("gristmill_read", number, 150_000 // slow, 1.0))
        runs.append(_run("official_read", number, 100_000 // slow, 1.5))
        runs.append(_run("guide_grain_0", number, 3_000 // slow, 1.5))
        runs.append(_run("feed_0", number, 90_000 // slow, 1.0))
    about = {"records": 1000, "record_bytes": 2200.0, "shard_bytes": 10**6}
    return {
        "environment": describe_environment(("numpy",)),
        "settings": {"rounds": 2, "worker_rounds": 1, "seconds": 1.0},
        "datasets": {"text_g1": about | {"shards": 4, "batch_size": 100}},
        "contestants": entries,
        "runs": runs,
    }


def test_targets_compare_within_rounds(results: dict) -> None:
    found = [(t.measured.median, t.met) for t in load_report.list_targets(results)]
    values = [value for value, _ in found]
    assert values == pytest.approx([2.25, 4 / 3, 30.0, 8.13])
    assert all(met for _, met in found)
    slower = [
        {**run, "cpu_seconds": 1.3} if run["contestant"] == "gristmill_read" else run
        for run in results["runs"]
    ]
    targets = load_report.list_targets({**results, "runs": slower})
    assert [target.met for target in targets] == [False, False, True, True]


def test_report_hides_no_failure(results: dict) -> None:
    report = load_report.render_markdown(results)
    assert "| the broken | **failed** |" in report
    assert "why\nso" in report
    assert "the absent: not installed (x)." in report
    # 100,000 and 50,000 records in 1.5 CPU seconds.
    assert "| the official_read | 75,000 (50,000..100,000) | 165 | 22.5 " in report


@pytest.mark.slow
def test_other_records_than_others_have_read_are_a_failure(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_once(key: str, *args: object, **options: object):
        run = _run(key, 0, 10, 1.0)
        return [run | {"checksum": 1 if key == "official_read" else 2}], None

    monkeypatch.setattr(load, "run_once", run_once)
    arguments = "--quick --text-bytes 10KB --binary-bytes 200KB --contestants"
    path = tmp_path / "runs.json"
    keys = ["official_read", "gristmill_read"]
    assert load.main([*arguments.split(), *keys, "--json", str(path)]) == 1
    entry = json.loads(path.read_text())["contestants"]["gristmill_read"]
    assert entry["error"] == "has read other records of text_g1 than others did"


def test_a_crash_is_quoted(tmp_path: pathlib.Path) -> None:
    measured, error = load.run_once(
        "gristmill_read", tmp_path, seconds=0.1, timeout_seconds=60
    )
    assert measured == []
    assert error is not None
    assert error.startswith("exit code 1")
    assert "shards.json" in error


@pytest.mark.slow
def test_timeout_is_a_failure_with_a_reason(work_dir: pathlib.Path) -> None:
    measured = load.run_once("feed_2", work_dir, seconds=60, timeout_seconds=1)
    assert measured == ([], "killed after 1 s")


def test_defaults() -> None:
    full = load.parse_arguments([])
    assert (full.rounds, full.worker_rounds) == (3, 1)
    assert full.contestants == list(CONTESTANTS)
    quick = load.parse_arguments(["--quick", "--rounds", "2"])
    assert quick.rounds == 2
    assert "feed_2" not in quick.contestants
