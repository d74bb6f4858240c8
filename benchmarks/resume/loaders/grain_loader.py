"""Grain's `DataLoader`: Grain's guide "DataLoader"."""

import grain

from benchmarks.resume.loaders import grain_map
from benchmarks.resume.protocol import SEED, numbers_of

TITLE = "Grain `DataLoader`"
PACKAGES = ("grain", "array_record")
FORMAT = "array_record"
NOT_OFFERED = {
    "mixture": "one data source; mixing is in the Dataset API",
    "packing": "deprecated in favour of FirstFitPackIterDataset",
}


class Loader:
    def __init__(self, job):
        source = grain_map.source(job.folders[0])
        sampler = grain.samplers.IndexSampler(
            num_records=len(source),
            shard_options=grain.sharding.ShardOptions(job.host, job.hosts),
            shuffle=True,
            num_epochs=1,
            seed=SEED,
        )
        batch = grain.transforms.Batch(job.rows, True, batch_fn=numbers_of)
        self._job = job
        self._data = iter(
            grain.DataLoader(
                data_source=source,
                sampler=sampler,
                operations=[batch],
                worker_count=job.workers,
            )
        )

    def restore(self, states):
        self._data.set_state(self._job.own(states))

    def next(self):
        return next(self._data)

    def state(self):
        return self._data.get_state()
