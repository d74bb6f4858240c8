"""What is measured is right, and is compared within a round."""

from __future__ import annotations

import pathlib
import sys
import time

import pytest

from benchmarks import c4_like, convert, load, peers, process_cost, rounds
from benchmarks.contestants import CONTESTANTS, Contestant, Input
from benchmarks.load_contestants import CONTESTANTS as READERS
from benchmarks.load_data import read_shards, write_shards
from tests.support.records import read_array_records


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Input:
    directory = tmp_path_factory.mktemp("c4_like")
    written = c4_like.write_dataset(directory, size_bytes=300_000, files=2)
    return Input(kind="main", directory=directory, files=tuple(written))


@pytest.fixture(scope="module")
def work_dir(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    path = tmp_path_factory.mktemp("load")
    write_shards(path, text_bytes=300_000, binary_bytes=1_000_000)
    return path


def test_every_round_begins_with_another_contestant() -> None:
    assert [*rounds.take_turns(["a", "b", "c"], 4)] == [
        *((0, key) for key in "abc"),
        *((1, key) for key in "bca"),
        *((2, key) for key in "cab"),
        *((3, key) for key in "abc"),
    ]


def test_ratios_are_of_the_rounds_that_both_have() -> None:
    runs = [
        {"contestant": key, "round": number, "seconds": seconds}
        for key, number, seconds in (
            *(("a", 3, 8.0), ("a", 1, 6.0)),
            *(("b", 1, 2.0), ("b", 2, 1.0), ("b", 3, 4.0)),
        )
    ]
    a, b = (rounds.by_round(runs, key, lambda run: run["seconds"]) for key in "ab")
    assert rounds.ratios(a, b) == [3.0, 2.0]
    assert rounds.Spread.of([3, 1, 2]).show(1) == "2.0 (1.0..3.0)"


@pytest.mark.alone
def test_cpu_time_of_a_process_left_behind_counts() -> None:
    spin = (
        "import time; end = time.process_time() + 0.5\n"
        "while time.process_time() < end: pass"
    )
    leave = (
        f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {spin!r}])"
    )
    cost = process_cost.measure_command([sys.executable, "-c", leave])
    assert cost.exit_code == 0
    assert cost.cpu_seconds >= 0.5


@pytest.mark.slow
@pytest.mark.alone
def test_memory_is_that_of_the_whole_tree() -> None:
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


def test_the_tree_is_killed_after_the_timeout() -> None:
    begin = time.monotonic()
    cost = process_cost.measure_command(
        ["sh", "-c", "sleep 300 & sleep 300"], timeout_seconds=0.3
    )
    assert cost.timed_out
    assert time.monotonic() - begin < 100


@pytest.mark.parametrize("workers", [1, 2])
def test_the_bare_loop_keeps_every_record(
    source: Input, tmp_path: pathlib.Path, workers: int
) -> None:
    peers.run_bare(source.paths, str(tmp_path), reader="plain", workers=workers)
    expected = [r for path in source.paths for r in peers.read_frames_unchecked(path)]
    assert len(expected) == source.records
    files = sorted(tmp_path.iterdir())
    assert [r for file in files for r in read_array_records(file)] == expected


def convert_by(
    program: str, source: Input, folder: pathlib.Path
) -> tuple[dict[str, object], str | None]:
    contestant = Contestant(
        label="test",
        packages=(),
        imports="",
        command=lambda _, output: [sys.executable, "-c", program, str(output)],
    )
    return convert.run_once(contestant, source, folder / "work" / "out", 30)


def test_a_conversion_that_loses_records_is_no_success(
    source: Input, tmp_path: pathlib.Path
) -> None:
    program = (
        "import sys; from benchmarks import peers; "
        f"peers.run_bare([{source.paths[0]!r}], sys.argv[1])"
    )
    measured, error = convert_by(program, source, tmp_path)
    assert error is not None
    assert f"wrote {source.files[0].records:,} of {source.records:,}" in error
    assert measured["output_records"] == source.files[0].records


def test_a_crash_is_quoted(source: Input, tmp_path: pathlib.Path) -> None:
    _, error = convert_by("raise TypeError('not an int')", source, tmp_path)
    assert error is not None
    assert error.startswith("exit code 1")
    assert error.endswith("TypeError: not an int")


@pytest.mark.slow
@pytest.mark.parametrize(
    "key", [pytest.param("array_record_beam", marks=pytest.mark.soak), "tfds"]
)
def test_published_converters_keep_every_record(
    source: Input, tmp_path: pathlib.Path, key: str
) -> None:
    contestant = CONTESTANTS[key]
    for package in contestant.packages:
        pytest.importorskip(package)
    measured, error = convert.run_once(contestant, source, tmp_path / "out", 300)
    assert error is None
    assert measured["output_records"] == source.records


@pytest.mark.slow
@pytest.mark.parametrize(
    "key", ["gristmill_read", "official_read", "guide_grain_0", "feed_0"]
)
def test_readers_read_what_they_should(work_dir: pathlib.Path, key: str) -> None:
    shards = read_shards(work_dir)[1]
    records = [r for path in shards.paths for r in read_array_records(path)]
    reader = READERS[key].open(shards)
    try:
        assert reader.step() == shards.batch_size == len(records)
        if reader.pick is not None:
            numbers = [5, 0, len(records) - 1, 5]
            assert list(reader.pick(numbers)) == [records[i] for i in numbers]
    finally:
        reader.close()


@pytest.mark.slow
def test_a_reader_that_hangs_is_a_failure_with_a_reason(
    work_dir: pathlib.Path,
) -> None:
    measured = load.run_once("feed_2", work_dir, seconds=60, timeout_seconds=1)
    assert measured == ([], "killed after 1 s")
