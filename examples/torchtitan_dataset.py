"""A dataset for torchtitan's loader, in gristmill's order; torchtitan stays as it is.

It can replace a `SingleDatasetConfig` of torchtitan, alone, packed or mixed:

    dataset = GristmillDataset(
        paths={"web": "/data/web", "code": "/data/code"},
        weights={"web": 0.7, "code": 0.3},
        processor=TextProcessor.Config(),
    )
    config.dataloader = GrainDataLoader.Config(
        dataset=ConcatThenSplitPackingConfig(dataset=dataset), seed=42
    )

`seed`, `shuffle` and `repeat` of the loader are those of the order. Its state resumes
exactly on the same number of ranks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import grain

from gristmill import loader

# How many records of a rank are read at once. The order does not depend on it.
READ_RECORDS = 256


@dataclasses.dataclass(frozen=True)
class TextOf:
    """Turns a record into the sample that torchtitan's `TextProcessor` takes.

    Attributes:
        column: The feature with the text, of records that are `tf.train.Example`.
    """

    column: str = "text"

    def __call__(self, record: bytes) -> dict[str, str]:
        """Returns the sample of a record."""
        decode = loader.ExampleDecoder({self.column: loader.FixedFeature(bytes)})
        return {"text": decode([record])[self.column][0].decode()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class GristmillDataset:
    """A `DatasetConfig` of torchtitan: one dataset, or a mixture of several.

    Attributes:
        paths: The directory of a dataset, or those of several by name.
        processor: The configuration of a `SampleProcessor`, such as `TextProcessor`.
        weights: Shares of a mixture's datasets in the records, by name. By default in
            proportion to their lengths.
        split: Split of the datasets.
        sample_of: Turns a record into the input of the processor.
    """

    paths: str | Mapping[str, str]
    processor: Any
    weights: Mapping[str, float] | None = None
    split: str = "train"
    sample_of: Any = TextOf()

    def build(self, *, context: Any, dataset_iteration_policy: Any) -> Any:
        """Returns the processed samples of a rank, as torchtitan calls it."""
        policy = dataset_iteration_policy
        if isinstance(self.paths, str):
            datasets: Any = loader.open(self.paths, split=self.split)
        else:
            datasets = {
                name: loader.open(path, split=self.split)
                for name, path in self.paths.items()
            }
        batches = loader.global_batches(
            datasets,
            batch_size=READ_RECORDS * policy.dp_world_size,
            seed=policy.seed,
            shuffle="global" if policy.shuffle else "none",
            epochs=None if policy.repeat else 1,
            drop_remainder=False,
            weights=self.weights,
        )
        records: grain.IterDataset = batches.records(
            host=(policy.dp_rank, policy.dp_world_size)
        )
        processor = self.processor.build(context=context)
        return (
            records.map(self.sample_of)
            .random_map(processor, seed=policy.seed + policy.dp_rank)
            .filter(lambda sample: sample is not None)
        )
