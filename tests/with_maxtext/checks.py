"""What runs of the table share: their list, and how batches are compared."""

import numpy as np

RUNS = {}
STEPS = 6
CUT = 3
CHAT = {"use_sft": True, "train_data_columns": "['prompt','completion']"}


def run(title):
    """Puts a function into the table."""

    def add(function):
        RUNS[title] = function
        return function

    return add


def check_same(got, expected, what):
    """Checks that batches are equal, array by array."""
    assert len(got) == len(expected), f"{what}: {len(got)} batches, not {len(expected)}"
    for number, (mine, theirs) in enumerate(zip(got, expected, strict=True)):
        assert mine.keys() == theirs.keys(), f"{what}: arrays of batch {number}"
        for name in theirs:
            same = np.array_equal(mine[name], theirs[name])
            assert same, f"{what}: {name} of batch {number} differs"


def check_falls(losses):
    """Checks that the loss falls, clearly."""
    first, last = losses[0], losses[max(losses)]
    assert last < first - 1, f"the loss does not fall: {losses}"


def batches_of(found, name):
    """Returns the batches of an iterator that has to give some."""
    got = found[name]
    assert not isinstance(got, str), f"{name}: {got}"
    assert got, f"{name}: no batch"
    return got


def pieces(batches):
    """Yields the tokens of each segment of rows, and its targets: -1 if not trained."""
    for batch in batches:
        trained = batch["targets_segmentation"] != 0
        targets = np.where(trained, batch["targets"], -1)
        for row, segments in enumerate(batch["inputs_segmentation"]):
            for segment in range(1, int(segments.max(initial=0)) + 1):
                own = segments == segment
                arrays = batch["inputs"][row][own], targets[row][own]
                yield tuple(tuple(array.tolist()) for array in arrays)
