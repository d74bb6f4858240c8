"""torchdata's `StatefulDataLoader`: its tutorial, map-style data."""

import numpy as np
import torch
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

from benchmarks.resume.formats import TorchLoader, paths
from benchmarks.resume.protocol import SEED

TITLE = "torchdata `StatefulDataLoader`"
PACKAGES = ("torchdata", "torch")
FORMAT = "npz"
NOT_OFFERED = dict.fromkeys(("mixture", "packing"), "it has no mixtures and no packing")


class Records(torch.utils.data.Dataset):
    def __init__(self, folder):
        shards = [np.load(path) for path in paths(folder, "npz")]
        first = [shard["tokens"][[0, *shard["ends"][:-1] // 4]] for shard in shards]
        self._numbers = np.concatenate(first)

    def __len__(self):
        return len(self._numbers)

    def __getitem__(self, index):
        return int(self._numbers[index])


class Loader(TorchLoader):
    def __init__(self, job):
        data = Records(job.folders[0])
        host = {"num_replicas": job.hosts, "rank": job.host}
        sampler = StatefulDistributedSampler(data, shuffle=True, seed=SEED, **host)
        how = {"batch_size": job.rows, "num_workers": job.workers}
        self._loader = StatefulDataLoader(data, sampler=sampler, **how)
        self._job = job
