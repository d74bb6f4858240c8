"""Batches for PyTorch's DataLoader: the same with any number of workers and ranks.

    batches = loader.global_batches(loader.open("/data/web"), batch_size=512, seed=1)
    dataset = TorchBatches(batches, decode=decode, rank=rank, ranks=ranks)
    for step, batch in enumerate(data_loader(dataset, workers=4)):
        ...

Step s has the same global batch with any number of workers, and on any number of ranks
that divides it. A checkpoint keeps `dataset.state(step)`, JSON values that are the same
on all ranks. To resume, pass it to `TorchBatches` as `state`, if need be with other
workers or ranks.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from gristmill import loader


class TorchBatches(IterableDataset):
    """One rank's rows of the global batches, decoded.

    Args:
        batches: The global batches.
        decode: Turns the records of a step into a batch of tensors.
        rank: Which rank this is, from 0.
        ranks: How many there are.
        state: Where to begin: the result of `state`.
    """

    def __init__(
        self,
        batches: loader.GlobalBatches,
        *,
        decode: Callable[[Sequence[bytes]], Any],
        rank: int,
        ranks: int,
        state: Mapping[str, Any] | None = None,
    ):
        self._batches, self._decode = batches, decode
        self._rank, self._ranks = rank, ranks
        with batches.feed(host=(rank, ranks)) as feed:
            if state is not None:
                feed.set_state(state)  # It is checked here, before workers start.
            self._state = feed.get_state()

    def state(self, step: int) -> dict[str, Any]:
        """Returns the state of a run that has `step` as its next step."""
        return {**self._state, "step": step}

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        rank, ranks = self._rank, self._ranks
        records = self._batches.records(host=(rank, ranks))
        # The DataLoader takes a batch of each worker in turn: the first worker has the
        # first step, wherever that is.
        first = self._state["step"] + worker
        records.set_slice(slice(first % workers, None, workers))
        iterator = iter(records)
        iterator.set_state(self._state)
        for step in itertools.count(first, workers):
            rows = self._batches.schedule.batch_size(step) // ranks
            batch = list(itertools.islice(iterator, rows))
            if not batch:
                return
            yield self._decode(batch)


def data_loader(dataset: TorchBatches, *, workers: int) -> DataLoader:
    """Returns the DataLoader of whole batches."""
    return DataLoader(
        dataset,
        batch_size=None,
        num_workers=workers,
        # Forked workers would inherit the locks of threads that they do not have.
        multiprocessing_context="spawn" if workers else None,
    )
