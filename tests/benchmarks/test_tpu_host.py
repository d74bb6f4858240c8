"""benchmarks/tpu_host.py on devices of the CPU: it passes, and sees a wrong batch."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from benchmarks import tpu_host
from gristmill import loader

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> loader.GlobalBatches:
    folder = str(tmp_path_factory.mktemp("data") / "tokens")
    tpu_host.make_data(folder, records=64, length=16)
    return loader.global_batches(loader.open(folder), batch_size=16, seed=1)


@pytest.mark.slow
def test_batches_are_compared_on_every_mesh(batches: loader.GlobalBatches) -> None:
    meshes = tpu_host.meshes()
    assert [*meshes] == ["8 x 1", "4 x 2", "4 x 1"]
    check = tpu_host.Check(batches, length=32, workers=0)
    for name, mesh in meshes.items():
        with check.feed(mesh) as feed:
            check.run(feed, name, 0, 2)
    assert check.differ == []


def test_a_feed_at_another_step_is_seen(batches: loader.GlobalBatches) -> None:
    check = tpu_host.Check(batches, length=32, workers=0)
    (name, mesh), *_ = tpu_host.meshes().items()
    with check.feed(mesh) as feed:
        next(feed)
        check.run(feed, name, 0, 2)
    assert check.differ == ["step 0 on 8 x 1", "step 1 on 8 x 1"]


@pytest.mark.slow
def test_the_command_prints_a_table() -> None:
    command = [sys.executable, "-m", "benchmarks.tpu_host", "--cpu-devices", "4"]
    command += ["--steps", "3", "--batch-size", "32", "--length", "64"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = dict(line.strip("| ").split(" | ") for line in done.stdout.splitlines()[2:])
    assert rows["devices"].startswith("4 cpu")
    assert rows["resumed"] == "on 4 x 1, 2 x 2, 2 x 1"
    assert rows["batches compared"] == "12 on the devices: none differs"
    assert rows["spans in a trace"] == "gristmill.send, gristmill.wait"
