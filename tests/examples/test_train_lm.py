"""The example is killed and goes on: the same batches, the same losses to the bit.

On two processes the held-out records have the loss that they have on one.
"""

import argparse
import os
import re
import shutil
import signal
import time

import jax
import numpy as np
import pytest

from examples import train_lm
from tests.feed.jax_processes import run, started

STEPS, DEVICES = 24, 2
LINE = re.compile(r"^step (\d+) loss (\S+) batch ([0-9a-f]{8})$", re.MULTILINE)
HELD_OUT = re.compile(r"^held out: loss (\S+) of (\d+) records$", re.MULTILINE)


@pytest.fixture(autouse=True)
def compiled_once(tmp_path, monkeypatch):
    """Several runs of one program: only the first of them compiles it."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "compiled"))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")


def command(data, output, more=""):
    small = "--layers 1 --width 32 --batch-size 8 --length 32"
    steps = f"--steps {STEPS} --save-every 5 --eval-every 10"
    given = f"--make-data --data {data} --output {output} {steps} {small} {more}"
    return ["examples/train_lm.py", *given.split()]


def steps_in(said):
    """Returns loss and digest of the batch of each step."""
    return {int(step): (loss, batch) for step, loss, batch in LINE.findall(said)}


def killed_at(step, arguments, folder):
    """Runs until a step is reported, and kills the process there."""
    with started(arguments, folder, devices=DEVICES) as [(process, said)]:
        while step not in (seen := steps_in(said.read_text())):
            assert process.poll() is None, said.read_text()
            time.sleep(0.002)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL
    return seen


@pytest.mark.slow
def test_the_model_sees_no_later_token(tmp_path):
    sizes = {"layers": 2, "width": 8, "heads": 2, "length": 12, "seed": 0}
    args = argparse.Namespace(**sizes, data=str(tmp_path), batch_size=64)
    parameters = train_lm.new_state(args)["parameters"]
    tokens = np.arange(12) + 100 * (np.arange(12) == 4) * np.array([[0], [1]])
    logits = jax.jit(train_lm.logits_of)(parameters, tokens)
    assert logits.shape == (2, 12, 256)
    changed = np.abs(logits[1] - logits[0]).max(axis=-1)
    assert changed[:4].max() < 1e-6
    assert changed[4:].min() > 1e-3


@pytest.mark.slow
def test_a_killed_run_goes_on_as_if_nothing_had_happened(tmp_path):
    data = tmp_path / "data"
    [said] = run(command(data, tmp_path / "whole"), tmp_path, devices=DEVICES)
    whole = steps_in(said)
    assert sorted(whole) == list(range(STEPS))
    assert float(whole[STEPS - 1][0]) < float(whole[0][0]) - 1  # it learns
    assert len({batch for _, batch in whole.values()}) == STEPS
    evaluated = HELD_OUT.findall(said)  # after 10, 20 and all steps
    assert [records for _, records in evaluated] == ["211"] * 3

    broken = tmp_path / "broken"
    before = killed_at(13, command(data, broken), tmp_path)
    assert before.items() <= whole.items()
    assert max(before) < STEPS - 1
    saved = max(int(path.name) for path in broken.iterdir() if path.name.isdigit())
    assert 5 <= saved <= max(before) + 1
    copy = shutil.copytree(broken, tmp_path / "copy")

    # With another number of workers: the losses are the same to the last bit.
    [said] = run(command(data, broken, "--workers 1"), tmp_path, devices=DEVICES)
    assert steps_in(said) == {step: whole[step] for step in range(saved, STEPS)}
    evaluated = evaluated[saved >= 10 :]
    assert HELD_OUT.findall(said) == evaluated

    # On two processes sums may be rounded in another order; the batches are the same.
    said, silent = run(
        command(data, copy, "--distributed {job}"),
        tmp_path,
        processes=2,
        devices=DEVICES,
    )
    resumed = steps_in(said)
    assert sorted(resumed) == list(range(saved, STEPS))
    assert steps_in(silent) == {}
    for step, (loss, batch) in resumed.items():
        assert batch == whole[step][1]
        assert float(loss) == pytest.approx(float(whole[step][0]), rel=1e-4)
    for here, there in zip(HELD_OUT.findall(said), evaluated, strict=True):
        assert float(here[0]) == pytest.approx(float(there[0]), rel=1e-5)
        assert here[1] == there[1]
    feeds = [
        next((run / str(STEPS) / "feed").glob("meta*")).read_text()
        for run in (tmp_path / "whole", copy)
    ]
    assert feeds[0] == feeds[1]
