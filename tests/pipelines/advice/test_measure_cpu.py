"""What a conversion takes of the processors, of two sizes of parts."""

from __future__ import annotations

import pathlib
from collections.abc import Callable

import pytest

from gristmill.pipelines.advice.measure_cpu import (
    ConversionCpu,
    MeasuredParts,
    cpu_of,
    measure_cpu,
)
from gristmill.transforms.conversion.job_inputs import list_inputs
from gristmill.transforms.jobs.conversion_job import ConversionJob
from tests.support.records import frames_of, text_records


def measured(**more: float) -> MeasuredParts:
    fields = {
        "warm_seconds": 0.25,
        "small_seconds": 0.5,
        "small_bytes": 10_000_000,
        "large_seconds": 2.25,
        "large_bytes": 80_000_000,
        "shards": 2,
        "all_seconds": 4.0,
    }
    return MeasuredParts(**{**fields, **more})


def test_the_difference_of_two_sizes_leaves_out_what_a_shard_takes() -> None:
    # 0.125 s a shard and 25 s a GB; a process takes 1 s around it and 0.25 s at first.
    found = cpu_of([measured(), measured()], 10.0)
    assert found.gb_seconds == pytest.approx(25)
    assert found.shard_seconds == pytest.approx(0.125)
    assert found.start_seconds == pytest.approx(1.25)
    assert (found.processes, found.measured_bytes) == (2, 160_000_000)


def test_an_input_that_is_too_small_for_two_sizes() -> None:
    small = measured(small_bytes=1000, large_seconds=0.5, large_bytes=1000)
    found = cpu_of([small], 5.0)
    assert found.gb_seconds == pytest.approx(0.5 / 1000 * 1e9)
    assert found.shard_seconds == 0


def test_total() -> None:
    cpu = ConversionCpu(
        start_seconds=0.5,
        shard_seconds=0.01,
        gb_seconds=10,
        processes=2,
        measured_bytes=1,
    )
    assert cpu.total(10**9, shards=100, workers=2) == pytest.approx(12.5)
    assert cpu.total(10**9, shards=100, workers=1) == pytest.approx(11.5)


@pytest.mark.slow
def test_it_converts_and_leaves_nothing(
    tmp_path: pathlib.Path, temporary_in: Callable[[object], None]
) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    temporary_in(scratch)
    source = tmp_path / "in"
    source.mkdir()
    (source / "a.tfrecord").write_bytes(frames_of(text_records(4000)))
    job = ConversionJob(inputs=str(source), output=str(tmp_path / "out"), name="d")
    files = list_inputs(job)
    found = measure_cpu(job, files, [300_000, 0], workers=1)
    assert found.processes == 1
    assert found.measured_bytes <= int(files.sizes.sum())
    assert found.start_seconds > 0
    assert found.gb_seconds > 0
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "out").exists()
