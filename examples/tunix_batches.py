"""Rows of conversations for the `PeftTrainer` of Tunix; Tunix stays as it is.

    trainer = PeftTrainer(model, optimizer, TrainingConfig(...))
    trainer.with_gen_model_input_fn(model_input)
    with TunixBatches("data/chat-rows", batch_size=8, seed=42) as batches:
        trainer.with_data_hooks(batches)
        trainer.train([])

Tunix saves no state of the data. A trainer that has restored a checkpoint gets the
batch that follows its step, without reading those before it.
"""

from __future__ import annotations

from typing import Any, Self

import jax.numpy as jnp

from gristmill import loader

# Names of Tunix: `input_mask` is at each token that is trained on, as it shifts itself.
NAMES = {
    "inputs": "input_tokens",
    "inputs_mask": "input_mask",
    "inputs_position": "positions",
    "inputs_segmentation": "segments",
    "targets": None,
    "targets_position": None,
    "targets_segmentation": None,
}


def model_input(batch: Any) -> dict[str, Any]:
    """Returns the arguments of Tunix's loss: for `with_gen_model_input_fn`.

    Args:
        batch: int32 arrays [rows, length] under the names above.

    Returns:
        Tokens, mask and positions as they are, and the attention mask, bool [rows,
        length, length]: a token sees its own conversation, up to itself.
    """
    fields = dict(batch)
    segments = jnp.asarray(fields.pop("segments"))
    length = segments.shape[1]
    same = segments[:, :, None] == segments[:, None, :]
    causal = jnp.tril(jnp.ones((length, length), jnp.bool_))
    # Padding sees itself, so that no row of the softmax is empty.
    return {**fields, "attention_mask": same & causal}


class TunixBatches:
    """The `DataHooks` of a trainer: batches of packed rows, from its step on.

    Args:
        path: The directory of a dataset of packed rows.
        batch_size: Rows of a batch, over all processes.
        seed: Seed of the order.
        epochs: How often each row is seen; None for no end.
        host: As for `feed`: which rows this process gets.
    """

    def __init__(
        self,
        path: str,
        *,
        batch_size: int,
        seed: int = 0,
        epochs: int | None = None,
        host: Any = "jax",
    ) -> None:
        dataset = loader.open(path)
        self.batches = loader.global_batches(
            dataset, batch_size=batch_size, seed=seed, epochs=epochs
        )
        self._decode = loader.PackedRows.of(dataset, names=NAMES)
        self._host = host
        self._feed: loader.Feed | None = None

    def load_next_train_batch(self, train_ctx: Any) -> Any:
        """Returns the next batch, None at the end; the first is that of the step."""
        if self._feed is None:
            self._feed = self.batches.feed(decode=self._decode, host=self._host)
            if train_ctx.iter_steps:
                state = self._feed.get_state()
                self._feed.set_state({**state, "step": train_ctx.iter_steps})
        return next(self._feed, None)

    def load_next_eval_batch(self, train_ctx: Any) -> Any:
        """Returns None: an evaluation has a `TunixBatches` of its own."""
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._feed is not None:
            self._feed.close()
