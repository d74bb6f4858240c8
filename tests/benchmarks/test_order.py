"""The benchmark of phases takes the steps that it says."""

import itertools

import pytest

from benchmarks import order
from gristmill.loader.order import DatasetOrder, Schedule


@pytest.mark.slow
def test_steps_are_of_epochs_that_were_extended_or_not() -> None:
    records = 6_000
    plain = Schedule(orders=(DatasetOrder(num_records=records, seed=1),), batch_size=16)
    found = {
        name: (made, steps)
        for name, made, steps in order.cases(plain, removed_records=20)
    }
    epochs = {
        name: {made.grown[0].epoch_at(made.sizes.start(step)) for step in steps}
        for name, (made, steps) in found.items()
    }
    assert len(found) == 9
    for name, (made, steps) in found.items():
        count = 10 if name.startswith("ten") else int("removed" in name)
        assert len(made.extensions) == count
        assert order.milliseconds(made, itertools.cycle(steps)) > 0
        # All that was added by then is seen in these steps, mixed with the rest.
        seen = max(int(made.indices(step).max()) for step in steps)
        # What is removed with nothing added is of fewer numbers.
        longer = max((one.num_records for one in made.extensions), default=0)
        assert (seen >= records) == (longer > records)
    assert epochs["ten of 1 %, the epoch extended ten times"] == {0}
    assert min(epochs["ten of 1 %, a later epoch"]) >= 3
