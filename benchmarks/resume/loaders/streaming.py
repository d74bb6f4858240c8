"""MosaicML Streaming: its pages "Fast Resumption" and "Elastic Determinism"."""

import json

import torch
from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset
from streaming.base.util import merge_index

from benchmarks.resume.formats import TorchLoader
from benchmarks.resume.protocol import SEED, number_of

TITLE = "MosaicML Streaming"
PACKAGES = ("mosaicml-streaming", "torch")
NOT_OFFERED = {"packing": "Streaming has no packing"}
_COLUMNS = {"record": "bytes"}


def write(folder, shards, first=0):
    for number, shard in enumerate(shards, first):
        part = str(folder / f"{number:05}")
        with MDSWriter(out=part, columns=_COLUMNS) as writer:
            for record in shard:
                writer.write({"record": record})
    (folder / "index.json").unlink(missing_ok=True)
    merge_index(str(folder))


def append(folder, shards):
    write(folder, shards, len([*folder.glob("*/index.json")]))


def _collate(samples):
    numbers = [number_of(sample["record"]) for sample in samples]
    return {"number": torch.tensor(numbers)}


class Loader(TorchLoader):
    def __init__(self, job):
        streams = [Stream(local=folder) for folder in job.folders]
        how = {"shuffle": True, "shuffle_seed": SEED, "batch_size": job.rows}
        data = StreamingDataset(streams=streams, **how)
        self._loader = StreamingDataLoader(
            data, batch_size=job.rows, num_workers=job.workers, collate_fn=_collate
        )

    def restore(self, states):
        self._loader.load_state_dict(json.loads(states[0]))

    def next(self):
        return super().next()["number"]

    def state(self):
        return json.dumps(self._loader.state_dict()).encode()
