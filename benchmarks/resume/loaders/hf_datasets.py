"""Hugging Face datasets, streaming: its pages "Stream" and "Use with PyTorch"."""

import numpy as np
from datasets import interleave_datasets, load_dataset
from datasets.distributed import split_dataset_by_node
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.resume.formats import TorchLoader, paths
from benchmarks.resume.protocol import PACKED_TOKENS, SEED, number_of

TITLE = "Hugging Face datasets, streaming"
PACKAGES = ("datasets", "torchdata")
FORMAT = "parquet"


def _rows(batch):  # As `group_texts` in the documentation.
    tokens = np.frombuffer(b"".join(batch["record"]), "<u4")
    whole = len(tokens) // PACKED_TOKENS * PACKED_TOKENS
    return {"row": tokens[:whole].reshape(-1, PACKED_TOKENS)}


def _numbers(samples):
    if "row" in samples[0]:
        return np.concatenate([sample["row"] for sample in samples])
    return np.array([number_of(sample["record"]) for sample in samples])


class Loader(TorchLoader):
    def __init__(self, job):
        parts = [self._part(folder, job) for folder in job.folders]
        data = parts[0]
        if len(parts) > 1:
            how = {"stopping_strategy": "all_exhausted_without_replacement"}
            data = interleave_datasets(parts, [*job.weights], SEED, **how)
        data = split_dataset_by_node(data, job.host, job.hosts)
        if job.packing:
            data = data.map(_rows, batched=True, remove_columns=["record"])
        how = {"batch_size": job.rows, "num_workers": job.workers, "drop_last": True}
        self._loader = StatefulDataLoader(data, collate_fn=_numbers, **how)
        self._job = job

    def _part(self, folder, job):
        how = {"data_files": paths(folder, "parquet"), "split": "train"}
        data = load_dataset("parquet", streaming=True, **how)
        return data.shuffle(SEED, buffer_size=1000)
