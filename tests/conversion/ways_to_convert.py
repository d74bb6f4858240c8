"""Ways to run one conversion, all of which give the same bytes."""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from typing import Any

from gristmill.pipelines.convert import convert
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.job_options import ConvertOptions
from tests.support.conversion import contents, read_output, shards_of
from tests.support.kills import Killer


def run_convert(
    folder: pathlib.Path,
    output: pathlib.Path,
    *,
    workers: int = 1,
    beam_options: Sequence[str] | None = None,
    **options: Any,
) -> None:
    """Converts a folder as the command does."""
    said = ConvertOptions(
        input=(str(folder),), output=str(output), name="data", **options
    )
    convert(conversion_of(said).jobs, workers=workers, beam_options=beam_options)


def shard_bytes(dataset: pathlib.Path) -> dict[str, bytes]:
    """Returns the bytes of the shards of the split `train`, by their names."""
    return {name: (dataset / name).read_bytes() for name in shards_of(dataset)}


def check_workers(folder: pathlib.Path, place: pathlib.Path, **options: Any) -> None:
    """Converts with one worker and with two."""
    for workers in (1, 2):
        run_convert(folder, place / str(workers), workers=workers, **options)
    assert contents(place / "1") == contents(place / "2")


def check_beam(folder: pathlib.Path, place: pathlib.Path, **options: Any) -> None:
    """Converts here and by Beam."""
    for name, argv in (("here", None), ("beam", ["--runner=DirectRunner"])):
        run_convert(folder, place / name, beam_options=argv, **options)
    assert shard_bytes(place / "here") == shard_bytes(place / "beam")


def check_kills(
    folder: pathlib.Path, place: pathlib.Path, expected: Sequence[bytes]
) -> None:
    """Kills conversions at some of their steps, and runs each again."""
    argv = ["convert", str(folder), "out", "--num-shards", "3", "--workers", "1"]
    with Killer(place) as killer:
        whole = place / "whole"
        whole.mkdir()
        assert killer.run(argv, cwd=whole).status == 0
        for step in range(2, 40, 12):
            killed = place / str(step)
            killed.mkdir()
            if killer.run(argv, kill_at=step, cwd=killed).status == 0:
                break
            assert killer.run(argv, cwd=killed).status == 0
            assert read_output(killed / "out") == expected
            assert shard_bytes(killed / "out") == shard_bytes(whole / "out")
    assert step > 10
