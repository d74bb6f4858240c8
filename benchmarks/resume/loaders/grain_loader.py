"""Grain's `DataLoader`: Grain's guide "DataLoader"."""

import sys

import grain
from absl import flags

from benchmarks.resume.formats import paths
from benchmarks.resume.protocol import SEED, NotOfferedError, numbers_of

TITLE = "Grain `DataLoader`"
PACKAGES = ("grain", "array_record")
FORMAT = "array_record"


class Loader:
    def __init__(self, job):
        if len(job.folders) > 1:
            raise NotOfferedError("one data source; mixing is in the Dataset API")
        if job.packing:
            raise NotOfferedError("deprecated in favour of FirstFitPackIterDataset")
        if not flags.FLAGS.is_parsed():
            flags.FLAGS(sys.argv[:1])
        files = paths(job.folders[0], "array_record")
        source = grain.sources.ArrayRecordDataSource(files)
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
