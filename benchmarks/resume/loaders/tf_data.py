"""tf.data: TensorFlow's guide "tf.data", and its section "Iterator Checkpointing"."""

import pathlib
import pickle
import tempfile

import tensorflow as tf

from benchmarks.resume.formats import paths
from benchmarks.resume.protocol import SEED, numbers_of

TITLE = "tf.data"
PACKAGES = ("tensorflow",)
FORMAT = "tfrecord"
NOT_OFFERED = {"packing": "tf.data has no packing"}
_BUFFER_RECORDS = 10_000


class Loader:
    def __init__(self, job):
        parts = [self._part(folder, job) for folder in job.folders]
        data = parts[0]
        if len(parts) > 1:
            data = tf.data.Dataset.sample_from_datasets(parts, job.weights, SEED)
        data = data.batch(job.rows, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
        self._job, self._data = job, iter(data)

    def _part(self, folder, job):
        files = paths(folder, "tfrecord")
        data = tf.data.Dataset.from_tensor_slices(files).shard(job.hosts, job.host)
        threads = {"num_parallel_calls": job.workers or None, "deterministic": True}
        data = data.shuffle(len(files), SEED).interleave(
            tf.data.TFRecordDataset, cycle_length=4, **threads
        )
        return data.shuffle(_BUFFER_RECORDS, SEED)

    def restore(self, states):
        with tempfile.TemporaryDirectory() as folder:
            for name, content in pickle.loads(self._job.own(states)).items():
                pathlib.Path(folder, name).write_bytes(content)
            read = tf.train.Checkpoint(iterator=self._data).read(f"{folder}/state")
            read.assert_consumed()

    def next(self):
        return numbers_of(next(self._data).numpy())

    def state(self):
        with tempfile.TemporaryDirectory() as folder:
            tf.train.Checkpoint(iterator=self._data).write(f"{folder}/state")
            files = pathlib.Path(folder).iterdir()
            return pickle.dumps({file.name: file.read_bytes() for file in files})
