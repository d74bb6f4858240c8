"""Tests of the benchmarks: the text they use, what they measure, what they say."""

from __future__ import annotations

import importlib.util
import itertools
import json
import pathlib
import re
import statistics
import sys
import time

import pytest
import zstandard

from benchmarks import (
    c4_like,
    convert,
    convert_report,
    peers,
    plan_scale,
    process_cost,
    rounds,
)
from benchmarks.contestants import CONTESTANTS, Contestant, Input
from tests.support import tfds_data
from tests.support.records import read_tfrecords
from tests.support.tensorflow_process import with_tensorflow


@pytest.fixture(scope="module")
def records() -> list[bytes]:
    return list(itertools.islice(c4_like.generate_records(seed=7), 2048))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Input:
    directory = tmp_path_factory.mktemp("c4_like")
    written = c4_like.write_dataset(directory, size_bytes=300_000, files=2)
    return Input(kind="main", directory=directory, files=tuple(written))


@with_tensorflow
def _parsed(records: list[bytes]) -> dict[str, list[bytes]]:
    import tensorflow as tf

    spec = {name: tf.io.FixedLenFeature([], tf.string) for name in c4_like.FEATURES}
    parsed = tf.io.parse_example(records, spec)
    return {name: tensor.numpy().tolist() for name, tensor in parsed.items()}


@with_tensorflow
def _read_frames_tensorflow(path: str) -> list[bytes]:
    return list(peers.read_frames_tensorflow(path))


class TestC4Like:
    @pytest.mark.slow
    @pytest.mark.parametrize("group", sorted(c4_like.REAL_C4_RATIOS))
    def test_compresses_like_c4(self, records: list[bytes], group: int) -> None:
        compressor = zstandard.ZstdCompressor(level=3)
        compressed = sum(
            len(compressor.compress(b"".join(records[start : start + group])))
            for start in range(0, len(records), group)
        )
        ratio = compressed / sum(map(len, records))
        assert ratio == pytest.approx(c4_like.REAL_C4_RATIOS[group], abs=0.03)

    def test_lengths_have_the_mean_and_the_tail_of_c4(
        self, records: list[bytes]
    ) -> None:
        lengths = sorted(map(len, records))
        assert statistics.mean(lengths) == pytest.approx(2200, rel=0.1)
        # Real C4: 1,348 bytes, 13,850 bytes and 221 bytes.
        assert statistics.median(lengths) == pytest.approx(1400, rel=0.1)
        assert lengths[len(lengths) * 99 // 100] > 9_000
        assert lengths[0] < 300

    @pytest.mark.slow
    def test_mean_record_bytes_moves_the_mean(self) -> None:
        longer = c4_like.generate_records(seed=1, mean_record_bytes=6000)
        mean = statistics.mean(map(len, itertools.islice(longer, 2048)))
        assert mean == pytest.approx(6000, rel=0.12)

    def test_mean_record_bytes_leaves_room_for_the_other_features(self) -> None:
        with pytest.raises(ValueError, match=r"must exceed 400.*got 300"):
            next(c4_like.generate_records(seed=1, mean_record_bytes=300))

    def test_same_seed_same_bytes(self, tmp_path: pathlib.Path) -> None:
        contents = []
        for name, seed in (("a", 1), ("b", 1), ("c", 2)):
            written = c4_like.write_dataset(
                tmp_path / name, size_bytes=50_000, files=2, seed=seed
            )
            contents.append([file.path.read_bytes() for file in written])
        assert contents[0] == contents[1]
        assert contents[0][0] != contents[0][1]
        assert contents[0][0] != contents[2][0]

    def test_a_file_is_the_beginning_of_a_longer_one(
        self, tmp_path: pathlib.Path
    ) -> None:
        one = c4_like.write_dataset(tmp_path / "one", size_bytes=60_000, files=1)
        three = c4_like.write_dataset(tmp_path / "three", size_bytes=60_000, files=3)
        long, short = one[0].path.read_bytes(), three[0].path.read_bytes()
        assert long.startswith(short)
        assert 60_000 <= len(long) < 60_000 + c4_like._TEXT_BYTES_LIMIT * 2
        assert [len(file.path.read_bytes()) for file in three] == [
            file.size_bytes for file in three
        ]

    def test_tensorflow_reads_it(self, source: Input) -> None:
        for file in source.files:
            serialized = read_tfrecords(file.path)
            assert len(serialized) == file.records
            parsed = _parsed(serialized)
            for text in parsed["text"]:
                first, *others = text.decode().split()
                assert first[0].isupper() or first[0].isdigit() or not others
                assert text.endswith(b".")
            for moment in parsed["timestamp"]:
                time.strptime(moment.decode(), "%Y-%m-%dT%H:%M:%SZ")
            assert all(url.startswith(b"https://") for url in parsed["url"])

    def test_tensorflow_datasets_reads_it(self, source: Input) -> None:
        examples = tfds_data.read_in_order(source.directory, "train")
        assert len(examples) == source.records
        assert set(examples[0]) == set(c4_like.FEATURES)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("7", 7),
            ("7B", 7),
            ("1.5 kB", 1500),
            ("300MB", 300_000_000),
            ("2GiB", 2 << 30),
        ],
    )
    def test_parse_size(self, text: str, expected: int) -> None:
        assert c4_like.parse_size(text) == expected

    @pytest.mark.parametrize("text", ["", "MB", "-1", "1 XB", "1e3", "1.2.3"])
    def test_parse_size_refuses(self, text: str) -> None:
        with pytest.raises(ValueError, match="expected a size such as"):
            c4_like.parse_size(text)

    def test_needs_a_file(self, tmp_path: pathlib.Path) -> None:
        with pytest.raises(ValueError, match="files must be at least 1, got 0"):
            c4_like.write_dataset(tmp_path, size_bytes=1, files=0)

    def test_command_line(
        self, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        arguments = "--bytes 20KB --files 3 --seed 5 --mean-record-bytes 1000"
        c4_like.main([str(tmp_path / "out"), *arguments.split()])
        expected = c4_like.write_dataset(
            tmp_path / "expected",
            size_bytes=20_000,
            files=3,
            seed=5,
            mean_record_bytes=1000,
        )
        for file in expected:
            got = tmp_path / "out" / file.path.name
            assert got.read_bytes() == file.path.read_bytes()
        assert "3 files" in capsys.readouterr().out


class TestMeasureCommand:
    @pytest.mark.alone
    def test_counts_cpu_of_a_process_left_behind(self) -> None:
        spin = (
            "import time; end = time.process_time() + 0.5\n"
            "while time.process_time() < end: pass"
        )
        leave = (
            "import subprocess, sys\n"
            f"subprocess.Popen([sys.executable, '-c', {spin!r}])"
        )
        cost = process_cost.measure_command([sys.executable, "-c", leave])
        assert cost.exit_code == 0
        assert cost.cpu_seconds >= 0.5

    @pytest.mark.slow
    @pytest.mark.alone
    def test_sums_memory_over_the_tree(self) -> None:
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
        cost = process_cost.measure_command([sys.executable, "-c", both])
        assert cost.exit_code == 0
        assert (128 << 20) < cost.peak_tree_bytes < (192 << 20)
        assert (64 << 20) < cost.peak_process_bytes < (112 << 20)

    def test_reports_the_failure(self) -> None:
        cost = process_cost.measure_command(
            [sys.executable, "-c", "raise SystemExit('no such luck')"]
        )
        assert cost.exit_code == 1
        assert cost.output == "no such luck"
        assert not cost.timed_out

    def test_kills_the_tree_after_the_timeout(self) -> None:
        begin = time.monotonic()
        cost = process_cost.measure_command(
            ["sh", "-c", "sleep 300 & sleep 300"], timeout_seconds=0.3
        )
        assert cost.timed_out
        assert time.monotonic() - begin < 100

    def test_passes_the_environment(self) -> None:
        cost = process_cost.measure_command(
            ["sh", "-c", "echo $GREETING"], environment={"GREETING": "hello"}
        )
        assert cost.output == "hello"


def _read_array_records(directory: pathlib.Path) -> list[bytes]:
    from array_record.python.array_record_module import ArrayRecordReader

    found: list[bytes] = []
    for path in sorted(directory.iterdir()):
        reader = ArrayRecordReader(str(path))
        found += reader.read_all()
        reader.close()
    return found


class TestPeers:
    @pytest.mark.parametrize(("reader", "workers"), [("plain", 1), ("plain", 2)])
    def test_bare_loop_keeps_every_record(
        self, source: Input, tmp_path: pathlib.Path, reader: str, workers: int
    ) -> None:
        peers.run_bare(source.paths, str(tmp_path), reader=reader, workers=workers)
        expected = [
            r for path in source.paths for r in peers.read_frames_unchecked(path)
        ]
        assert len(expected) == source.records
        assert _read_array_records(tmp_path) == expected

    def test_both_readers_read_the_same(self, source: Input) -> None:
        path = source.paths[0]
        assert _read_frames_tensorflow(path) == list(peers.read_frames_unchecked(path))

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "key", [pytest.param("array_record_beam", marks=pytest.mark.soak), "tfds"]
    )
    def test_published_converters_keep_every_record(
        self, source: Input, tmp_path: pathlib.Path, key: str
    ) -> None:
        contestant = CONTESTANTS[key]
        for package in contestant.packages:
            pytest.importorskip(package)
        measured, error = convert.run_once(contestant, source, tmp_path / "out", 300)
        assert error is None
        assert measured["output_records"] == source.records


class TestRunOnce:
    def _run(
        self, source: Input, tmp_path: pathlib.Path, program: str
    ) -> tuple[dict[str, object], str | None]:
        contestant = Contestant(
            label="test",
            packages=(),
            imports="",
            command=lambda _, output: [sys.executable, "-c", program, str(output)],
        )
        return convert.run_once(contestant, source, tmp_path / "work" / "out", 30)

    def test_a_conversion_that_loses_records_is_no_success(
        self, source: Input, tmp_path: pathlib.Path
    ) -> None:
        program = (
            "import sys; from benchmarks import peers; "
            f"peers.run_bare([{source.paths[0]!r}], sys.argv[1])"
        )
        measured, error = self._run(source, tmp_path, program)
        assert error is not None
        assert f"wrote {source.files[0].records:,} of {source.records:,}" in error
        assert measured["output_records"] == source.files[0].records
        assert not (tmp_path / "work" / "out").exists()

    def test_a_crash_is_quoted(self, source: Input, tmp_path: pathlib.Path) -> None:
        _, error = self._run(source, tmp_path, "raise TypeError('not an int')")
        assert error is not None
        assert error.startswith("exit code 1")
        assert error.endswith("TypeError: not an int")


def _run(contestant: str, kind: str, number: int, wall: float, cpu: float) -> dict:
    size_bytes = {"main": 10**9, "startup": 10**4, "small": 10**7, "memory": 2 * 10**9}
    return {
        "contestant": contestant,
        "round": number,
        "kind": kind,
        "input_bytes": size_bytes[kind],
        "input_records": 1000,
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "peak_tree_bytes": 500_000_000,
        "peak_process_bytes": 250_000_000,
        "output_records": 1000,
        "output_bytes": size_bytes[kind] // 2,
    }


@pytest.fixture
def results() -> dict:
    keys = ["gristmill_1", "gristmill_2", "array_record_beam", "bare", "bare_pool"]
    entries = {
        key: {"label": f"the {key}", "status": "ok", "imports_rss_bytes": 100_000_000}
        for key in keys
    }
    entries["broken"] = {
        "label": "the broken one",
        "status": "crashed",
        "crashed_on": "startup",
        "error": "exit code 1\nTypeError: not an int",
    }
    entries["absent"] = {
        "label": "the absent one",
        "status": "not installed",
        "error": "absent_package",
    }
    runs = []
    # The second round runs on a machine half as fast: the ratios stay.
    for number, slow in ((0, 1), (1, 2)):
        for key, wall, cpu, startup in (
            ("gristmill_1", 22, 22, 2),
            ("gristmill_2", 12, 24, 4),
            ("array_record_beam", 48, 48, 8),
            ("bare", 18, 18, 0.1),
            ("bare_pool", 10, 19, 0.2),
        ):
            runs.append(_run(key, "main", number, wall * slow, cpu * slow))
            runs.append(_run(key, "startup", number, startup * slow, startup * slow))
        runs.append(_run("gristmill_2", "small", number, 5 * slow, 5 * slow))
    runs.append(_run("gristmill_1", "memory", 0, 40, 40))
    environment = {
        "date": "2026-01-02",
        "cpu_count": 2,
        "cpu": "x",
        "python": "3",
        "packages": {"p": "1"},
    }
    settings = {"seed": 0, "rounds": 2, "files": 8, "writer_options": "group_size:1"}
    return {
        "environment": environment,
        "settings": settings,
        "contestants": entries,
        "runs": runs,
    }


class TestReport:
    def test_targets_compare_within_rounds(self, results: dict) -> None:
        targets = {t.name: t for t in convert_report.list_targets(results)}
        expected = {
            "wall throughput over array_record.beam's, 2 workers": (4.0, True),
            "MB per CPU second over array_record.beam's, 2 workers": (2.0, False),
            "MB per CPU second over the bare loop's, start-up aside": (0.895, True),
            "wall throughput over the bare pool's, 2 workers": (10 / 12, False),
            "wall throughput over the bare pool's, start-up aside": (9.8 / 8, True),
            "gristmill_2: seconds for 10 MB, start to finish": (7.5, True),
            "gristmill_1: MB of the largest process above bare imports, "
            "2,000 MB of input": (150.0, True),
        }
        assert targets.keys() == expected.keys()
        for name, (measured, met) in expected.items():
            assert targets[name].measured.median == pytest.approx(measured), name
            assert targets[name].met is met, name

    def test_spread(self) -> None:
        assert rounds.Spread.of([3, 1, 2]).show(1) == "2.0 (1.0..3.0)"
        assert rounds.Spread.of([1234.5]).show(0) == "1,234"

    def test_markdown_hides_no_failure(self, results: dict) -> None:
        report = convert_report.render_markdown(results)
        assert "| the broken one | **crashed** |" in report
        assert "TypeError: not an int" in report
        assert "| the absent one | **not installed** |" in report
        assert "absent_package" in report
        # 1,000 MB in 48 and 96 seconds.
        assert (
            "| the array_record_beam | 72.0 (48.0..96.0) | 15.6 (10.4..20.8)" in report
        )
        assert (
            "| gristmill_2 / array_record_beam | 4.00 | 5.00 | 2.00 | 2.00 |" in report
        )

    def test_markdown_without_a_finished_run(self, results: dict) -> None:
        report = convert_report.render_markdown({**results, "runs": []})
        assert "No contestant finished a run." in report
        assert "TypeError: not an int" in report

    def test_the_page_shows_its_figure(self, results: dict) -> None:
        report = convert_report.render_markdown(results)
        assert (
            "\n\n![Conversion of TFRecords: text of 2.2 KB](convert.svg)\n\n" in report
        )


class TestCommandLine:
    def test_defaults(self) -> None:
        full = convert.parse_arguments([])
        assert (full.bytes, full.rounds, full.files) == (10**9, 5, 8)
        assert full.contestants == list(CONTESTANTS)
        quick = convert.parse_arguments(["--quick", "--rounds", "2"])
        assert (quick.bytes, quick.rounds) == (4_000_000, 2)
        assert quick.contestants == ["gristmill_1", "bare"]
        assert quick.memory_bytes == []

    def test_rounds_must_be_positive(self, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(SystemExit):
            convert.parse_arguments(["--rounds", "0"])
        assert "--rounds must be at least 1, got 0" in capsys.readouterr().err

    @pytest.mark.slow
    def test_bare_loop_end_to_end(
        self, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "work").mkdir()
        arguments = "--quick --bytes 600KB --small-bytes 100KB --files 3 --rounds 2"
        status = convert.main(
            [
                *arguments.split(),
                *("--contestants", "bare", "bare_pool", "--seed", "3"),
                *("--timeout-seconds", "60", "--work-dir", str(tmp_path / "work")),
                *("--json", str(tmp_path / "runs.json")),
                *("--markdown", str(tmp_path / "report.md")),
            ]
        )
        assert status == 0
        results = json.loads((tmp_path / "runs.json").read_text())
        assert results["settings"]["seed"] == 3
        runs = results["runs"]
        # 2 contestants, 2 rounds, 3 inputs; the second round begins with the other.
        assert [run["contestant"] for run in runs] == [
            *["bare"] * 3 + ["bare_pool"] * 3,
            *["bare_pool"] * 3 + ["bare"] * 3,
        ]
        for run in runs:
            assert run["output_records"] == run["input_records"]
            assert run["wall_seconds"] > 0 < run["cpu_seconds"]
        sizes = {run["kind"]: run["input_bytes"] for run in runs}
        assert sizes["main"] >= 600_000 > sizes["small"] >= 100_000
        assert (tmp_path / "report.md").read_text() == capsys.readouterr().out[:-1]
        assert list(tmp_path.glob("*.svg")) == []  # Without the peer that is 1.
        assert list((tmp_path / "work").iterdir()) == []

    @pytest.mark.slow
    def test_timeout_is_a_failure_with_a_reason(self, tmp_path: pathlib.Path) -> None:
        path = tmp_path / "runs.json"
        arguments = "--quick --contestants bare --timeout-seconds 0.001 --json"
        assert convert.main([*arguments.split(), str(path)]) == 0
        entry = json.loads(path.read_text())["contestants"]["bare"]
        assert entry["status"] == "crashed"
        assert entry["error"].startswith("killed after 0.001 s")

    @pytest.mark.slow
    def test_quick(
        self, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        if importlib.util.find_spec("gristmill") is None:
            pytest.skip("gristmill is not installed")
        path = tmp_path / "runs.json"
        arguments = ["--quick", "--memory-bytes", "1MB", "--json", str(path)]
        assert convert.main(arguments) == 0, capsys.readouterr().err
        runs = json.loads(path.read_text())["runs"]
        assert {(run["contestant"], run["kind"]) for run in runs} == {
            ("gristmill_1", "startup"),
            ("gristmill_1", "main"),
            ("gristmill_1", "memory"),
            ("bare", "startup"),
            ("bare", "main"),
        }
        assert "gristmill_1 / bare" in capsys.readouterr().out

    def test_failure_of_gristmill_is_the_exit_status(
        self, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failing = Contestant(
            label="failing",
            packages=(),
            imports="",
            command=lambda *_: [sys.executable, "-c", "raise SystemExit(3)"],
        )
        monkeypatch.setitem(CONTESTANTS, "gristmill_1", failing)
        path = tmp_path / "runs.json"
        arguments = "--quick --bytes 20KB --contestants gristmill_1 --json"
        assert convert.main([*arguments.split(), str(path)]) == 1
        entry = json.loads(path.read_text())["contestants"]["gristmill_1"]
        assert entry["error"].startswith("exit code 3")


class TestPlanScale:
    @pytest.mark.slow
    def test_a_small_plan_is_committed_and_told(self) -> None:
        runs = [plan_scale.measure("size", shards) for shards in (7, 70)]
        # Each input file has the records of some four shards.
        expected = 70 * (256 << 20) / 2_216
        assert runs[1]["records"] == pytest.approx(expected, rel=0.1)
        assert runs[1]["gathered_shard_bytes"] * 70 == runs[1]["gathered_bytes"]
        page = plan_scale.document({"size": runs})
        assert "\n## Conversion planned by size\n\nThe listing of" in page
        assert "| 7 shards | 70 shards | grows as n^ |" in page
        assert re.search(r"\n\| element \| (\d+ B) \| \1 \| 0.00 \|\n", page)

    @pytest.mark.slow
    @pytest.mark.one_in(3)
    @pytest.mark.parametrize(
        "path", ["append", "counted", "index", "read", "replace", "verify", "write"]
    )
    def test_other_paths_hold_their_bounds(self, path: str) -> None:
        found = plan_scale.measure(path, 500)
        assert found["element_bytes"] <= 300  # With the path of a temporary file.
        assert found["gathered_shard_bytes"] <= 100
        assert found.get("findings", 10) == 10
        assert "| 500 shards |" in plan_scale.document({path: [found]})
