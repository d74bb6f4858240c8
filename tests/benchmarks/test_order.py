"""The benchmark of phases takes the steps that it says."""

import itertools

import pytest

from benchmarks import order
from gristmill.loader.order import DatasetOrder, Schedule


def test_steps_are_of_epochs_that_were_extended_or_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(order, "RECORDS", 6_000)
    plain = Schedule(
        orders=(DatasetOrder(num_records=order.RECORDS, seed=1),), batch_size=16
    )
    found = {name: (made, steps) for name, made, steps in order.cases(plain)}
    epochs = {
        name: {made.grown[0].epoch_at(made.sizes.start(step)) for step in steps}
        for name, (made, steps) in found.items()
    }
    assert len(found) == 5
    for name, (made, steps) in found.items():
        assert len(made.extensions) == (0 if name == "no phases" else 10)
        assert order.milliseconds(made, itertools.cycle(steps)) > 0
        # All that was added by then is seen in these steps, mixed with the rest.
        seen = max(int(made.indices(step).max()) for step in steps)
        assert (seen >= order.RECORDS) == (name != "no phases")
    assert epochs["ten of 1 %, the epoch extended ten times"] == {0}
    assert min(epochs["ten of 1 %, a later epoch"]) >= 3
