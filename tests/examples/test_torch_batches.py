"""PyTorch's DataLoader gives the same global batches with any workers and ranks."""

from __future__ import annotations

import json

import pytest

from gristmill import loader
from tests.support.datasets import convert
from tests.support.records import text_records

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from examples.torch_batches import TorchBatches, data_loader  # noqa: E402


def decode(records: list[bytes]) -> torch.Tensor:
    """Returns the first bytes of records, as a tensor [records, 8]."""
    return torch.tensor([list(record[:8]) for record in records], dtype=torch.uint8)


@pytest.fixture(scope="module")
def batches(tmp_path_factory: pytest.TempPathFactory) -> loader.GlobalBatches:
    records = text_records(115, seed=1)
    dataset = loader.open(convert(tmp_path_factory.mktemp("torch"), [records]))
    return loader.global_batches(
        dataset, batch_size=12, seed=3, epochs=2, drop_remainder=False
    ).then(batch_size=6, step=7)


def rows_of(batches, *, rank: int, ranks: int, first: int = 0) -> list[list[list[int]]]:
    found = []
    for records in map(batches.read, range(first, batches.steps)):
        begin, end = (part * len(records) // ranks for part in (rank, rank + 1))
        found.append([list(record[:8]) for record in records[begin:end]])
    return [rows for rows in found if rows]  # Of the last two rows a rank has none.


def given(dataset: TorchBatches, workers: int = 0) -> list[list[list[int]]]:
    return [batch.tolist() for batch in data_loader(dataset, workers=workers)]


@pytest.mark.parametrize("step", [0, 1, 6, 9, 31])
def test_ranks_and_steps(batches, step: int) -> None:
    start = TorchBatches(batches, decode=decode, rank=0, ranks=1)
    state = json.loads(json.dumps(start.state(step)))
    for rank in range(3):
        dataset = TorchBatches(batches, decode=decode, rank=rank, ranks=3, state=state)
        assert given(dataset) == rows_of(batches, rank=rank, ranks=3, first=step)
        assert dataset.state(step) == state


@pytest.mark.slow
def test_workers_give_the_steps_in_turn(batches) -> None:
    start = TorchBatches(batches, decode=decode, rank=0, ranks=2)
    dataset = TorchBatches(
        batches, decode=decode, rank=1, ranks=2, state=start.state(5)
    )
    assert given(dataset, workers=2) == rows_of(batches, rank=1, ranks=2, first=5)
