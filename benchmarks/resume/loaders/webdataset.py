"""WebDataset. It has no state: its author advises `resampled=True` instead.

https://github.com/webdataset/webdataset/issues/234, also 177 and 271.
"""

import webdataset as wds

from benchmarks.resume.formats import paths
from benchmarks.resume.protocol import numbers_of

TITLE = "WebDataset"
PACKAGES = ("webdataset",)
FORMAT = "tar"
NOT_OFFERED = {"packing": "WebDataset has no packing"}


class Loader:
    def __init__(self, job):
        how = {"resampled": True, "nodesplitter": wds.split_by_node}
        parts = [wds.WebDataset(paths(each, "tar"), **how) for each in job.folders]
        data = parts[0] if len(parts) == 1 else wds.RandomMix(parts, job.weights)
        pipeline = wds.DataPipeline(
            data,
            wds.shuffle(1000),
            wds.to_tuple("bin"),
            wds.map(lambda sample: sample[0]),
            wds.batched(job.rows, collation_fn=numbers_of, partial=False),
        )
        if job.workers:
            how = {"batch_size": None, "num_workers": job.workers}
            pipeline = wds.WebLoader(pipeline, **how)
        self._data = iter(pipeline.with_epoch(job.epoch_steps))

    def restore(self, states):
        pass

    def next(self):
        return next(self._data)

    def state(self):
        return b""
