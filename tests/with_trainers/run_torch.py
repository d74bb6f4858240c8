"""PyTorch's tensors and its DataLoader have the rows of every step, from any step."""

import itertools

import torch

from examples.torch_batches import TorchBatches, data_loader
from gristmill import loader

FIRST, STOP = 4, 10
dataset = loader.open("data/rows")
rows = loader.PackedRows.of(dataset)
batches = loader.global_batches(dataset, batch_size=8, seed=42)


def tensors(arrays):
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def decode(records):
    return tensors(rows(records))


def check(got, expected):
    assert got.keys() == expected.keys()
    assert all(torch.equal(got[name], expected[name]) for name in expected)


def of_loader(rank, workers, state=None):
    data = TorchBatches(batches, decode=decode, rank=rank, ranks=2, state=state)
    return data, iter(data_loader(data, workers=workers))


def main():
    expected = [decode(batches.read(step)) for step in range(STOP)]
    halves = [
        {name: array[4 * rank : 4 * rank + 4] for name, array in expected[step].items()}
        for step, rank in itertools.product(range(STOP), range(2))
    ]
    for rank in range(2):
        data, first = of_loader(rank, workers=2)
        for half in halves[rank : 2 * FIRST : 2]:
            check(next(first), half)
        _, later = of_loader(rank, workers=0, state=data.state(FIRST))
        for half in halves[2 * FIRST + rank :: 2]:
            check(next(later), half)
    options = {"decode": rows, "host": (0, 1)}
    with batches.feed(**options, workers=2) as feed:
        for step in range(FIRST):
            check(tensors(next(feed)), expected[step])
        state = feed.get_state()
    with batches.feed(**options) as feed:
        feed.set_state(state)
        for step in range(FIRST, STOP):
            check(tensors(next(feed)), expected[step])


if __name__ == "__main__":  # Workers import this file.
    main()
