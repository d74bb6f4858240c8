"""Starts MaxText for a run, and gives back what it trained on.

Everything happens in processes with a time limit; a failure has the end of their logs.
"""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import namedtuple

import numpy as np

from tests.with_maxtext import toy

HERE = pathlib.Path(__file__).parent
GRISTMILL = "gristmill.loader.maxtext"
OWN = "maxtext.trainers.pre_train.train"
NATIVE_SFT = "maxtext.trainers.post_train.sft.train_sft_native"
ROWS = 4
_LIMIT_SECONDS = 400.0
TINY = """\
hardware=cpu
skip_jax_distributed_system=True
dataset_type=grain
grain_file_type=arrayrecord
grain_worker_count=0
train_data_columns=['text']
eval_data_columns=['text']
tokenizer_type=huggingface
base_emb_dim=32
base_mlp_dim=64
base_num_decoder_layers=1
base_num_query_heads=2
base_num_kv_heads=2
head_dim=16
attention=dot_product
dtype=float32
learning_rate=0.01
warmup_steps_fraction=0.0
learning_rate_schedule_steps=100
steps=6
checkpoint_period=3
async_checkpointing=False
enable_checkpointing=False
enable_tensorboard=False
log_period=1
dump_jaxpr=False"""


# What a training run left: global batches of training, in the order in which they were
# given, those of evaluation, and losses by step.
Trained = namedtuple("Trained", "batches evaluated losses")


@dataclasses.dataclass(frozen=True)
class Lab:
    """A folder with the toy data, in which runs leave what they write."""

    work: pathlib.Path

    def path(self, name):
        """Returns the path of something of the toy data."""
        return str(self.work / "toy" / name)

    def damaged(self, name):
        """Returns a copy of a dataset whose first shard of training is damaged."""
        copy = self.work / "damaged" / name
        if not copy.exists():
            shutil.copytree(self.path(name), copy)
            shard = min(copy.glob("*-train.array_record-*"))
            data = bytearray(shard.read_bytes())
            # In a record of the first steps; the file has padding behind them.
            data[4_000:4_016] = bytes(255 - byte for byte in data[4_000:4_016])
            shard.write_bytes(data)
        return copy

    def given(self, name):
        """Returns the files of the batches that a run was given."""
        return sorted(file.name for file in self._folder(name).glob("*.npz"))

    def settings(self, name, changed):
        """Returns the arguments of a tiny model, with these settings changed.

        Args:
            name: Of the run.
            changed: Settings with other values; None leaves one out.
        """
        import maxtext

        package = pathlib.Path(maxtext.__file__).parent
        values = dict(pair.split("=", 1) for pair in TINY.splitlines()) | {
            "run_name": name,
            "base_output_directory": self.work / "runs",
            "jax_cache_dir": self.work / "compiled",
            "grain_train_files": self.path("one"),
            "tokenizer_path": self.path("tokenizer"),
            "vocab_size": toy.VOCABULARY,
            "max_target_length": toy.LENGTH,
            "per_device_batch_size": ROWS,
        }
        values.update(changed)
        pairs = [f"{key}={value}" for key, value in values.items() if value is not None]
        return [str(package / "configs" / "base.yml"), *pairs]

    def train(self, name, *, processes=1, **given):
        """Trains, and returns what it trained on.

        Args:
            name: Of the run; one of the same name goes on from its checkpoint.
            processes: How many, each with one device.
            **given: Settings, and what `start` takes.
        """
        done = self.start(name, processes=processes, **given)
        failed = "\n".join(log for code, log in done if code)
        assert not any(code for code, _ in done), tail(failed)
        folder = self._folder(name)
        lines = (folder / "metrics.jsonl").read_text().splitlines()
        losses = {
            int(each["step"]): each["learning/loss"]
            for each in map(json.loads, lines)
            if "learning/loss" in each
        }
        given = (_read_batches(folder, iterator, processes) for iterator in range(2))
        return Trained(*given, losses)

    def start(self, name, *, module=GRISTMILL, trainer=None, processes=1, **changed):
        """Runs a module to its end; returns exit code and output of each process.

        Args:
            name: Of the run.
            module: What is started.
            trainer: Module of MaxText that gristmill's starts; None for its default.
            processes: How many.
            **changed: Settings.
        """
        folder = self._folder(name)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        changed = {"metrics_file": folder / "metrics.jsonl", **changed}
        if processes > 1:
            changed["skip_jax_distributed_system"] = False
        arguments = self.settings(name, changed)
        if trainer is not None:
            arguments = ["-m", trainer, *arguments]
        command = [sys.executable, "-P", str(HERE / "spied.py"), str(folder), module]
        variables = [
            {
                "JAX_COORDINATOR_ADDRESS": "localhost",
                "JAX_PROCESS_COUNT": str(processes),
                "JOB_INDEX": "0",
                "JOB_COMPLETION_INDEX": str(number),
                "PROCESSES_IN_JOB": str(processes),
            }
            for number in range(processes)
        ]
        return run_all([[*command, *arguments]] * processes, variables)

    def iterate(self, name, jobs, *, batches):
        """Returns the batches of iterators by their names, or the error of one.

        Args:
            name: Of the run.
            jobs: Changed settings by name.
            batches: How many to take at most.
        """
        folder = self._folder(name)
        folder.mkdir(parents=True)
        listed = [
            {"name": job, "arguments": self.settings(job, given), "batches": batches}
            for job, given in jobs.items()
        ]
        plan = folder / "jobs.json"
        plan.write_text(json.dumps(listed))
        command = [sys.executable, "-P", str(HERE / "iterate.py"), str(plan)]
        ((code, log),) = run_all([command], [{}])
        assert not code, f"iterating ended with an error:\n{tail(log)}"
        found = {job: _read(folder, f"{job}-{{:05}}") for job in jobs}
        errors = {file.stem: file.read_text() for file in folder.glob("*.error")}
        return found | errors

    def _folder(self, name):
        return self.work / "spied" / name


def run_all(commands, variables):
    """Runs commands side by side; returns exit code and output of each."""
    with contextlib.ExitStack() as stack:
        logs = [stack.enter_context(tempfile.TemporaryFile("w+")) for _ in commands]
        started = [
            subprocess.Popen(
                command,
                env={**os.environ, **each},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            for command, each, log in zip(commands, variables, logs, strict=True)
        ]
        stop = time.monotonic() + _LIMIT_SECONDS
        with contextlib.suppress(subprocess.TimeoutExpired):
            for each in started:
                each.wait(max(0, stop - time.monotonic()))
        late = any(each.poll() is None for each in started)
        for each in started:
            # Workers too, which may outlive the process that started them.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(each.pid, signal.SIGKILL)
            each.wait()
        outputs = [log.seek(0) or log.read() for log in logs]
    ends = "\n".join(map(tail, outputs))
    assert not late, f"not done after {_LIMIT_SECONDS:g} s:\n{ends}"
    return [
        (each.returncode, output) for each, output in zip(started, outputs, strict=True)
    ]


def tail(log, lines=25):
    """Returns the last lines of a log."""
    return "\n".join(log.strip().splitlines()[-lines:])


def _read_batches(folder, iterator, processes):
    """Returns the global batches that an iterator gave to all processes."""
    hosts = [
        _read(folder, f"{iterator}-{{:05}}-{process}") for process in range(processes)
    ]
    return [
        {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        for parts in zip(*hosts, strict=True)
    ]


def _read(folder, pattern):
    batches = []
    while (path := folder / f"{pattern.format(len(batches))}.npz").exists():
        with np.load(path) as file:
            batches.append(dict(file))
    return batches
