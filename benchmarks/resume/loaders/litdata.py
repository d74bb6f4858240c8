"""LitData: its README, "Pause, resume data streaming"."""

import functools

import torch
from litdata import (
    CombinedStreamingDataset,
    StreamingDataLoader,
    StreamingDataset,
    TokensLoader,
)

from benchmarks.resume.formats import TorchLoader, loaded, write_chunks
from benchmarks.resume.protocol import PACKED_TOKENS, SEED, number_of

TITLE = "LitData"
PACKAGES = ("litdata", "torch")
write = write_chunks
write_packed = functools.partial(write_chunks, row_tokens=PACKED_TOKENS)


def _numbers(samples):
    return torch.tensor([number_of(sample["record"]) for sample in samples])


class Loader(TorchLoader):
    def __init__(self, job):
        how = {"shuffle": True, "seed": SEED}
        if job.packing:
            how["item_loader"] = TokensLoader(PACKED_TOKENS)
        parts = [StreamingDataset(folder, **how) for folder in job.folders]
        data = parts[0]
        if len(parts) > 1:
            data = CombinedStreamingDataset(parts, seed=SEED, iterate_over_all=True)
        collate = None if job.packing else _numbers
        how = {"batch_size": job.rows, "num_workers": job.workers}
        self._loader = StreamingDataLoader(data, collate_fn=collate, **how)

    def restore(self, states):
        self._loader.load_state_dict(loaded(states[0]))
