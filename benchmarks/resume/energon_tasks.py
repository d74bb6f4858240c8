"""Megatron-Energon's commands, and the task encoder that its users write."""

import pathlib
import subprocess
import sys
import tempfile

from megatron import energon
from megatron.energon.edataclass import edataclass

from benchmarks.resume.formats import write_files
from benchmarks.resume.protocol import PACKED_TOKENS


def _command(*arguments):
    command = [str(pathlib.Path(sys.executable).with_name("energon")), *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def write(folder, shards):
    """Writes tars, after those that are there, and prepares the dataset."""
    write_files(folder, shards, "tar")
    how = ["--non-interactive", "--split-ratio=1,0,0", "--num-workers=2"]
    how += ["--sample-type=CrudeWebdataset", "--force-overwrite"]
    _command("prepare", str(folder), *how)


def redistributed(states, hosts):
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


class Encoder(energon.DefaultTaskEncoder):
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
