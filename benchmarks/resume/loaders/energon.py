"""Megatron-Energon: "Save and Restore", "Reproducible Scaling", "Packing"."""

import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
from megatron import energon
from megatron.energon.edataclass import edataclass

from benchmarks.resume.formats import TorchLoader, loaded, saved, write_files
from benchmarks.resume.protocol import PACKED_TOKENS, number_of, tokens_of

TITLE = "Megatron-Energon"
PACKAGES = ("megatron-energon", "torch")
# "The product `world_size * num_workers` must stay the same across runs".
READERS_STAY = True
_MIXTURE = """{"__module__": "megatron.energon", "__class__": "MetadatasetV2",
"splits": {"train": {"blend_epochized": %s}}}"""


def _command(*arguments):
    command = [str(pathlib.Path(sys.executable).with_name("energon")), *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def write(folder, shards):
    """Writes tars, after those that are there, and prepares the dataset."""
    write_files(folder, shards, "tar")
    how = ["--non-interactive", "--split-ratio=1,0,0", "--num-workers=2"]
    how += ["--sample-type=CrudeWebdataset", "--force-overwrite"]
    _command("prepare", str(folder), *how)


def _redistributed(states, hosts):
    """Returns states for another number of hosts."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for rank, state in enumerate(states):
            (folder / f"rank{rank}.pt").write_bytes(state)
        files = sorted(map(str, folder.iterdir()))
        (folder / "new").mkdir()
        world = f"--new-world-size={hosts}"
        _command("checkpoint", "redist", world, *files, str(folder / "new"))
        return [(folder / "new" / f"rank{n}.pt").read_bytes() for n in range(hosts)]


@edataclass
class _Record(energon.Sample):
    record: bytes


@energon.stateless
def _cook(sample):
    return _Record(**energon.basic_sample_keys(sample), record=sample["bin"])


class _Encoder(energon.DefaultTaskEncoder):
    """Takes the bytes of records, packs them in order, and leaves batches as lists."""

    cookers = (energon.Cooker(_cook),)
    decoder = None

    def select_samples_to_pack(self, samples):
        """Fills rows one after the other."""
        rows, left = [], 0
        for sample in samples:
            if len(sample.record) // 4 > left:
                rows, left = [*rows, []], PACKED_TOKENS
            rows[-1].append(sample)
            left -= len(sample.record) // 4
        return rows

    @energon.stateless
    def pack_selected_samples(self, samples):
        """Joins the records of a row."""
        joined = b"".join(sample.record for sample in samples)
        return _Record.derive_from(samples[0], record=joined)

    def batch(self, samples):
        """Returns the rows of a batch."""
        return [sample.record for sample in samples]


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
            task_encoder=_Encoder(),
            repeat=False,
        )
        self._loader = energon.get_savable_loader(data)

    def restore(self, states):
        if len(states) != self._job.hosts:
            states = _redistributed(states, self._job.hosts)
        self._loader.restore_state_rank(loaded(states[self._job.host]))

    def next(self):
        take = super().next
        batches = [take() for _ in range(self._parts)]
        decode = tokens_of if self._job.packing else number_of
        return np.hstack([decode(each) for batch in batches for each in batch])

    def state(self):
        return saved(self._loader.save_state_rank())
