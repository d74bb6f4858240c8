"""Megatron-Energon: "Save and Restore", "Reproducible Scaling", "Packing"."""

import json
import pathlib

import numpy as np
from megatron import energon

from benchmarks.resume.energon_tasks import Encoder, redistributed, write
from benchmarks.resume.formats import TorchLoader, loaded, saved
from benchmarks.resume.protocol import number_of, tokens_of

TITLE = "Megatron-Energon"
PACKAGES = ("megatron-energon", "torch")
# "The product `world_size * num_workers` must stay the same across runs".
READERS_STAY = True
_MIXTURE = """{"__module__": "megatron.energon", "__class__": "MetadatasetV2",
"splits": {"train": {"blend_epochized": %s}}}"""
append = write


class Loader(TorchLoader):
    def __init__(self, job):
        self._job, self._parts = job, max(job.workers, 1)
        host = {"rank": job.host, "world_size": job.hosts}
        config = energon.WorkerConfig(num_workers=job.workers, **host)
        path = pathlib.Path(job.folders[0])
        if len(job.folders) > 1:
            path = path.with_name("mixture.yaml")
            parts = [{"repetitions": 1, "path": folder} for folder in job.folders]
            path.write_text(_MIXTURE % json.dumps(parts))
        data = energon.get_train_dataset(
            path,
            batch_size=job.rows // self._parts,
            batch_drop_last=True,
            packing_buffer_size=100 if job.packing else None,
            shuffle_buffer_size=100,
            max_samples_per_sequence=100,
            worker_config=config,
            task_encoder=Encoder(),
            repeat=False,
        )
        self._loader = energon.get_savable_loader(data)

    def restore(self, states):
        if len(states) != self._job.hosts:
            states = redistributed(states, self._job.hosts)
        self._loader.restore_state_rank(loaded(states[self._job.host]))

    def next(self):
        take = super().next
        batches = [take() for _ in range(self._parts)]
        decode = tokens_of if self._job.packing else number_of
        return np.hstack([decode(each) for batch in batches for each in batch])

    def state(self):
        return saved(self._loader.save_state_rank())
