"""Packed rows as an `AsyncDataset` of Levanter, in the order of global batches.

    batches = loader.global_batches(loader.open("data/rows"), batch_size=64, seed=42)
    rows = LevanterRows(batches)
    train = trainer.data_loader(rows).iter_from_step(state.step)

Row p of the dataset is row p % 64 of step p // 64. Levanter reads the rows of its own
devices, and resumes at a step without reading those before it. Its batch has 64 rows,
or another number of them. `shuffle` of Levanter stays unused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import haliax
import numpy as np
from levanter.data.dataset import AsyncDataset
from levanter.models.lm_model import LmExample

from gristmill import loader


class LevanterRows(AsyncDataset[LmExample]):
    """One row of tokens per example: its tokens, what the loss counts, its documents.

    Args:
        batches: Global batches of one dataset of packed rows, or of a mixture of them.
        axis: Name of the axis of the tokens.
    """

    def __init__(self, batches: loader.GlobalBatches, *, axis: str = "position"):
        super().__init__()
        self._batches = batches
        self._decode = loader.PackedRows.of(batches.datasets[0])
        self.Pos = haliax.Axis(axis, self._decode.length)

    def is_finite(self) -> bool:
        """Returns whether the batches end."""
        return self._batches.steps is not None

    async def async_len(self) -> int:
        """Returns the number of rows of all steps."""
        if self._batches.steps is None:
            raise ValueError("batches with epochs=None have no end")
        return self._batches.steps * self._batches.batch_size

    async def get_batch(self, indices: Sequence[int]) -> list[LmExample]:
        """Returns the examples of some rows."""
        steps, rows = np.divmod(np.asarray(indices), self._batches.batch_size)
        records = [b""] * len(steps)
        for step in np.unique(steps).tolist():
            (places,) = np.nonzero(steps == step)
            found = await asyncio.to_thread(self._batches.read, step, rows[places])
            for place, record in zip(places.tolist(), found, strict=True):
                records[place] = record
        arrays = self._decode(records)
        return [self._example(arrays, row) for row in range(len(records))]

    def _example(self, arrays: dict[str, np.ndarray], row: int) -> LmExample:
        return LmExample.causal(
            haliax.named(arrays["inputs"][row], self.Pos),
            loss_weight=haliax.named(
                (arrays["targets_segmentation"][row] > 0).astype(np.float32), self.Pos
            ),
            segment_ids=haliax.named(arrays["inputs_segmentation"][row], self.Pos),
        )
