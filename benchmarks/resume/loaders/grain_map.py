"""Grain's `MapDataset`: Grain's guide "Data sources and transformations"."""

import sys

import grain
import numpy as np
from absl import flags

from benchmarks.resume.formats import GrainLoader, paths
from benchmarks.resume.protocol import PACKED_TOKENS, SEED, numbers_of, tokens_of

TITLE = "Grain `MapDataset`"
PACKAGES = ("grain", "array_record")
FORMAT = "array_record"


def source(folder):
    if not flags.FLAGS.is_parsed():
        flags.FLAGS(sys.argv[:1])  # Worker processes of this source need it.
    return grain.sources.ArrayRecordDataSource(paths(folder, FORMAT))


def shuffled(job):
    records = [grain.MapDataset.source(source(folder)) for folder in job.folders]
    parts = [each.shuffle(SEED) for each in records]
    return parts[0] if len(parts) == 1 else grain.MapDataset.mix(parts, job.weights)


class Loader(GrainLoader):
    def __init__(self, job):
        data = shuffled(job)[job.host :: job.hosts]
        if job.packing:
            pack, key = grain.experimental.FirstFitPackIterDataset, "tokens"
            data = data.map(lambda record: {key: tokens_of(record)}).to_iter_dataset()
            length = {key: PACKED_TOKENS}
            data = pack(data, length_struct=length, num_packing_bins=64)
            data = data.map(lambda row: row[key][row[f"{key}_segment_ids"] > 0])
            data = data.batch(job.rows, drop_remainder=True, batch_fn=np.concatenate)
        else:
            data = data.batch(job.rows, drop_remainder=True, batch_fn=numbers_of)
            data = data.to_iter_dataset()
        if job.workers:
            data = data.mp_prefetch(grain.MultiprocessingOptions(job.workers))
        self._job, self._data = job, iter(data)
