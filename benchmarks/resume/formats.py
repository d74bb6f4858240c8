"""The formats of data and of states that adapters share."""

import io
import json
import pathlib
import subprocess
import sys
import tarfile

import numpy as np

from benchmarks.resume.protocol import tokens_of


def _array_record(path, records):
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def _tfrecord(path, records):
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for record in records:
            writer.write(record)


def _tar(path, records):
    """Writes what `webdataset.TarWriter` does, but for times, and faster."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for place, record in enumerate(records):
            info = tarfile.TarInfo(f"{path.stem}-{place:06}.bin")
            info.size = len(record)
            tar.addfile(info, io.BytesIO(record))


def _parquet(path, records):
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.table({"record": pyarrow.array(records, pyarrow.binary())})
    parquet.write_table(table, path, row_group_size=1000)


def _npz(path, records):
    """The bytes of all records, and where each ends."""
    ends = np.cumsum([len(record) for record in records])
    np.savez(path, ends=ends, tokens=np.frombuffer(b"".join(records), "<u4"))


_WRITERS = {
    "array_record": _array_record,
    "npz": _npz,
    "parquet": _parquet,
    "tar": _tar,
    "tfrecord": _tfrecord,
}


def paths(folder, suffix):
    """Returns the files of a dataset, in order."""
    return sorted(map(str, pathlib.Path(folder).glob(f"*.{suffix}")))


def write_files(folder, shards, suffix):
    """Writes a file for each shard, after those that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, shard in enumerate(shards, len(paths(folder, suffix))):
        _WRITERS[suffix](folder / f"records-{number:05}.{suffix}", shard)


def _samples(shard):
    for record in shard:
        yield {"record": record}


def _tensors(shard):
    import torch

    for record in shard:
        yield torch.from_numpy(tokens_of(record).astype(np.int32))


def write_chunks(folder, shards, row_tokens=0):
    """Writes chunks of LitData, after those that are there.

    Args:
        folder: The dataset.
        shards: The records.
        row_tokens: Write tokens alone, for rows of this length.
    """
    from litdata import TokensLoader, optimize

    inputs = [*shards]
    how = {"chunk_size": len(inputs[0])}
    if row_tokens:
        how = {"chunk_size": 4000 * row_tokens, "item_loader": TokensLoader(row_tokens)}
    if folder.exists():
        how["mode"] = "append"
    optimize(
        _tensors if row_tokens else _samples,
        inputs,
        str(folder),
        num_workers=1,
        keep_data_ordered=True,
        verbose=False,
        **how,
    )


def saved(state):
    """Returns the bytes that `torch.save` writes."""
    import torch

    kept = io.BytesIO()
    torch.save(state, kept)
    return kept.getvalue()


def loaded(kept):
    """Returns the state that was saved."""
    import torch

    return torch.load(io.BytesIO(kept), weights_only=False)


class GrainLoader:
    """What loaders of Grain's kind share; `_data` iterates, for the job `_job`."""

    def restore(self, states):
        """Goes to the state of this host."""
        self._data.set_state(json.loads(self._job.own(states)))

    def next(self):
        """Returns the next batch."""
        return next(self._data)

    def state(self):
        """Returns the state."""
        return json.dumps(self._data.get_state()).encode()


class TorchLoader:
    """What loaders of PyTorch's kind share; `_loader` is one, and `_job` the job."""

    _data = None

    def restore(self, states):
        """Goes to the state of this host."""
        self._loader.load_state_dict(loaded(self._job.own(states)))

    def next(self):
        """Returns the next batch; the first one starts worker processes."""
        if self._data is None:
            self._data = iter(self._loader)
        return next(self._data)

    def state(self):
        """Returns the state."""
        return saved(self._loader.state_dict())


def run_module(name, *arguments):
    """Runs the command of a package, as `python -m` does."""
    command = [sys.executable, "-m", name, *map(str, arguments)]
    subprocess.run(command, check=True)
