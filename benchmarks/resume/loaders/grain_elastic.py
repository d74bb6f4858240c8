"""Grain's `ElasticIterator`, as its docstring says."""

import grain

from benchmarks.resume.formats import GrainLoader
from benchmarks.resume.loaders import grain_map
from benchmarks.resume.protocol import number_of

TITLE = "Grain `ElasticIterator`"
PACKAGES = ("grain", "array_record")
FORMAT = "array_record"
NOT_OFFERED = {"packing": "disallows transformations without a fixed ratio"}


class Loader(GrainLoader):
    def __init__(self, job):
        host = grain.sharding.ShardOptions(job.host, job.hosts)
        workers = None
        if job.workers:
            workers = grain.MultiprocessingOptions(job.workers)
        self._job = job
        self._data = iter(
            grain.experimental.ElasticIterator(
                grain_map.shuffled(job).map(number_of),
                job.batch,
                host,
                multiprocessing_options=workers,
            )
        )
