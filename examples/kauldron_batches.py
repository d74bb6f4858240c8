"""Global batches as a `kd.data.Pipeline` of Kauldron, which trains Gemma, too.

    cfg.train_ds = KauldronBatches(
        path="data/rows", batch_size=64, decode=with_columns, num_epochs=1
    )

Kauldron saves the state of the feed in its checkpoints, and resumes at the next batch.
The seed is that of the config. In a config of konfig, import this module, not the
class, within `konfig.imports()`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from kauldron import kd

from gristmill import loader


@dataclasses.dataclass(frozen=True, kw_only=True, eq=True)
class KauldronBatches(kd.data.Pipeline):
    """Batches of the rows of this process.

    Attributes:
        path: The directory of a dataset.
        decode: Turns the records of a batch into a dict of arrays; None decodes packed
            rows, under `names`.
        names: Other names of the arrays of packed rows, as of `PackedRows`.
        num_epochs: How often each record is seen; None for no end.
        shuffle: As of `global_batches`.
    """

    path: str
    decode: Callable[[list[bytes]], dict[str, np.ndarray]] | None = None
    names: dict[str, str | None] = dataclasses.field(default_factory=dict, hash=False)
    num_epochs: int | None = None
    shuffle: str = "global"

    @functools.cached_property
    def batches(self) -> loader.GlobalBatches:
        """The global batches."""
        self._assert_root_cfg_resolved()
        return loader.global_batches(
            loader.open(self.path),
            batch_size=self.batch_size,
            seed=int(np.asarray(self.seed)),
            epochs=self.num_epochs,
            shuffle=self.shuffle,
        )

    def feed(self) -> loader.Feed:
        """Returns a feed of the rows of this process."""
        rows = self.batches.datasets[0]
        decode = self.decode or loader.PackedRows.of(rows, names=self.names)
        return self.batches.feed(
            decode=decode,
            host="jax",
        )

    @functools.cached_property
    def element_spec(self) -> Any:
        """Shapes and types of the arrays of a batch."""
        with self.feed() as feed:
            first = next(feed)
        return jax.tree.map(
            lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), first
        )

    def __iter__(self) -> Any:
        return kd.data.iters.PyGrainIterator(source=self, iter=self.feed())

    def __len__(self) -> int:
        if self.num_epochs is None:
            raise TypeError("data without a last epoch have no length")
        return self.batches.steps
