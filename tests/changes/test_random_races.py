"""Random commands on one dataset at the same time, killed anywhere, read meanwhile."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import pytest

from tests.changes.races import Race
from tests.servers.gcs_process import GcsProcess

SOAK_COMMANDS = int(os.environ.get("GRISTMILL_TEST_COMMANDS", "300"))
SEEDS = os.environ.get("GRISTMILL_TEST_SEEDS", "2 3")
ROUNDS = [
    pytest.param(80, 1, True, marks=pytest.mark.slow),
    *(
        pytest.param(SOAK_COMMANDS, seed, unfinished, marks=pytest.mark.soak)
        for seed in map(int, SEEDS.split())
        for unfinished in (False, True)
    ),
]


@pytest.fixture(params=["disk", "bucket"])
def output(
    request: pytest.FixtureRequest,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[str]:
    if request.param == "disk":
        yield str(tmp_path / "out")
        return
    with GcsProcess("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield "gs://bucket/out"


@pytest.mark.parametrize(("commands", "seed", "unfinished"), ROUNDS)
def test_nothing_is_lost_and_every_reader_sees_one_state(
    output: str, tmp_path: pathlib.Path, commands: int, seed: int, unfinished: bool
) -> None:
    race = Race(tmp_path, output, seed, unfinished=unfinished)
    race.run(commands, processes=2 if commands < SOAK_COMMANDS else 3)
    race.check()
    assert race.read
    assert 0 in {ran.status for ran in race.ran}
