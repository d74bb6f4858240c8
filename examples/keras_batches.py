"""Global batches as a `PyDataset` of Keras 3, on any of its backends.

    batches = loader.global_batches(loader.open("data/c4"), batch_size=64, seed=42)
    data = KerasBatches(
        batches, steps_per_epoch=1000, decode=decode, host=(0, 1)
    )
    kept = keras.callbacks.BackupAndRestore("backup")
    model.fit(data, epochs=10, shuffle=False, callbacks=[kept, data.follow()])

An epoch of Keras is `steps_per_epoch` steps here: the records of a step do not depend
on where epochs end. A `fit` that is resumed, by `BackupAndRestore` or `initial_epoch`,
goes to the steps of its epoch at once.
"""

from __future__ import annotations

from typing import Any

import keras

from gristmill import loader


class KerasBatches(keras.utils.PyDataset):
    """Batches of a process, read ahead by a feed.

    Keras's own threads are not used: they read batches of the next epoch before the
    data know of it.

    Args:
        batches: The global batches.
        steps_per_epoch: Steps of an epoch of Keras.
        options: Arguments of `batches.feed`: `decode` turns the records of a step into
            the input of `fit`, a dict of arrays, or a tuple of inputs, targets and
            weights; `host`, `workers`.
    """

    def __init__(
        self, batches: loader.GlobalBatches, *, steps_per_epoch: int, **options: Any
    ):
        super().__init__()
        self._feed = batches.feed(**options)
        self._steps, self._epoch = steps_per_epoch, 0

    @property
    def num_batches(self) -> int:
        """Steps of an epoch of Keras."""
        return self._steps

    def __getitem__(self, index: int) -> Any:
        step, state = self._epoch * self._steps + index, self._feed.get_state()
        if state["step"] != step:
            self._feed.set_state({**state, "step": step})
        batch = next(self._feed, None)
        if batch is None:
            raise IndexError(f"the data end before step {step}")
        return batch

    def close(self) -> None:
        """Ends the threads or workers of the feed."""
        self._feed.close()

    def follow(self) -> keras.callbacks.Callback:
        """Returns the callback that tells the data which epoch Keras is in."""

        def begin(epoch: int, logs: Any = None) -> None:
            self._epoch = epoch

        return keras.callbacks.LambdaCallback(on_epoch_begin=begin)
