"""Grain's `ElasticIterator`, as its docstring says."""

import json

import grain

from benchmarks.resume.loaders import grain_map
from benchmarks.resume.loaders.grain_map import append, write
from benchmarks.resume.protocol import NotOfferedError, number_of

TITLE = "Grain `ElasticIterator`"
PACKAGES = ("grain", "array_record")
__all__ = ["Loader", "append", "write"]


class Loader:
    def __init__(self, job):
        if job.packing:
            raise NotOfferedError("disallows transformations without a fixed ratio")
        host = grain.sharding.ShardOptions(job.host, job.hosts)
        workers = None
        if job.workers:
            workers = grain.MultiprocessingOptions(job.workers)
        self._data = iter(
            grain.experimental.ElasticIterator(
                grain_map.shuffled(job).map(number_of),
                job.batch,
                host,
                multiprocessing_options=workers,
            )
        )

    def restore(self, states):
        self._data.set_state(json.loads(states[0]))

    def next(self):
        return next(self._data)

    def state(self):
        return json.dumps(self._data.get_state()).encode()
