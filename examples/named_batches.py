"""A loop in the style of Levanter: batches of named axes, prefetched, on a mesh.

    python examples/named_batches.py --data /data/web --steps 100

Documents are encoded and packed by Grain while the devices compute. Each batch is a
dict of global arrays with names for their axes, as `haliax.named(array, axes)` takes
them.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Self

import grain
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from gristmill import loader

AXES = ("batch", "position")


@functools.partial(
    jax.tree_util.register_dataclass, data_fields=["array"], meta_fields=["axes"]
)
@dataclasses.dataclass(frozen=True)
class Named:
    """An array whose axes have names."""

    array: jax.Array
    axes: tuple[str, ...] = AXES

    def size(self, axis: str) -> int:
        """Returns the length of an axis."""
        return self.array.shape[self.axes.index(axis)]


def tokens_of(record: bytes) -> dict[str, np.ndarray]:
    """Returns the bytes of a document's text as its tokens."""
    text = loader.ExampleDecoder({"text": loader.FixedFeature(bytes)})
    return {"tokens": np.frombuffer(text([record])["text"][0], np.uint8)}


class NamedBatches(Iterator[dict[str, Named]]):
    """Packed batches of this host's documents, as global arrays.

    Args:
        batches: The order of the documents. Its batch size says how many are read at
            once, and has no other effect: a packed row has as many as fit.
        mesh: The devices; the rows are divided among all of them.
        rows: Rows of a global batch.
        length: Tokens of a row.
        ahead: Batches that a thread prepares while the devices compute.
    """

    def __init__(
        self,
        batches: loader.GlobalBatches,
        *,
        mesh: Mesh,
        rows: int,
        length: int,
        ahead: int = 2,
    ):
        records = batches.records(
            process_index=jax.process_index(), process_count=jax.process_count()
        )
        packed = (
            records.map(tokens_of)
            .map(lambda document: {"tokens": document["tokens"][:length]})
            .pipe(
                grain.experimental.FirstFitPackIterDataset,
                length_struct={"tokens": length},
                num_packing_bins=8,
            )
            .batch(rows // jax.process_count(), drop_remainder=True)
            .pipe(
                grain.experimental.ThreadPrefetchIterDataset,
                prefetch_buffer_size=ahead,
            )
        )
        self._iterator = iter(packed)
        self._sharding = NamedSharding(mesh, PartitionSpec(mesh.axis_names, None))

    def __next__(self) -> dict[str, Named]:
        return {
            name: Named(jax.make_array_from_process_local_data(self._sharding, rows))
            for name, rows in next(self._iterator).items()
            if name in ("tokens", "tokens_segment_ids")
        }

    def get_state(self) -> dict[str, Any]:
        """Returns the state of this host, for a checkpoint."""
        return self._iterator.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Goes on after the batch after which this host wrote a state."""
        self._iterator.set_state(state)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._iterator.close()


@jax.jit
def step_of(counts: jax.Array, batch: dict[str, Named]) -> jax.Array:
    """Counts tokens by their values: it stands for a step of training."""
    tokens, segments = batch["tokens"].array, batch["tokens_segment_ids"].array
    return counts.at[tokens].add(jnp.where(segments > 0, 1, 0))


def main() -> None:
    """Runs some steps over a dataset."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--steps", type=int, default=10)
    options = parser.parse_args()
    batches = loader.global_batches(loader.open(options.data), batch_size=256, seed=1)
    mesh = Mesh(jax.devices(), ("data",))
    counts = jnp.zeros(256, jnp.int32)
    with NamedBatches(batches, mesh=mesh, rows=8, length=1024) as named:
        for _ in range(options.steps):
            counts = step_of(counts, next(named))
    print(f"{int(counts.sum()):,} tokens, {int((counts > 0).sum())} different ones")


if __name__ == "__main__":
    main()
