"""The cost of MaxText's input: its own Grain pipeline beside gristmill's.

    python -m benchmarks.maxtext --venv VENV --json benchmarks/results/maxtext.json \
        --markdown docs/performance/maxtext.md
    python -m benchmarks.maxtext --venv VENV --quick

VENV is an environment with the real MaxText, made if it is not there (see
`tests.with_maxtext`). The same documents are read as they are by MaxText's own pipeline
and by `gristmill.loader.maxtext`, and as rows that `gristmill pack` made of them with
the same tokenizer. Every contestant is a process of its own, in rounds that alternate:
it makes MaxText's data iterator, takes batches until it is warm, and then for some
seconds. CPU time is that of the process and its workers; a token counts where it is not
a padding.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from benchmarks import c4_like, figures, pack_text
from benchmarks.contest import (
    describe_environment,
    describe_machine,
    parse_contest,
    say,
    write_reports,
)
from benchmarks.rounds import (
    run_process,
    take_turns,
    token_tables,
    tokens_per_cpu_second,
)
from tests.with_maxtext import environment

_LENGTH = 2048
_SHARDS = 8
_COUNTED_BATCHES = 8
PACKAGES = ("maxtext", "jax", "grain", "numpy", "tokenizers", "sentencepiece")
_LIMIT_SECONDS = 180


@dataclasses.dataclass(frozen=True)
class Contestant:
    """One way to MaxText's batches.

    Attributes:
        label: In the report.
        way: "own", "records", "packed", or "plain": packed, and not compressed.
        tokenizer: Folder or file of MaxText's, and its kind.
        workers: `grain_worker_count`.
        warm_batches: Batches to take before it counts.
    """

    label: str
    way: str
    tokenizer: tuple[str, str] = ("qwen3-tokenizer", "huggingface")
    workers: int = 0
    warm_batches: int = 8


_LLAMA = ("tokenizer.llama2", "sentencepiece")
CONTESTANTS = {
    "own": Contestant("MaxText's own pipeline", "own"),
    "records": Contestant("records by gristmill", "records"),
    "packed": Contestant("packed rows by gristmill", "packed", warm_batches=400),
    "plain": Contestant("packed, not compressed", "plain", warm_batches=400),
    "own_worker": Contestant("MaxText's own pipeline, 1 worker", "own", workers=1),
    "records_worker": Contestant("records, 1 worker", "records", workers=1),
    "packed_worker": Contestant(
        "packed rows, 1 worker", "packed", workers=1, warm_batches=400
    ),
    "plain_worker": Contestant(
        "packed, not compressed, 1 worker", "plain", workers=1, warm_batches=400
    ),
    "own_llama": Contestant("MaxText's own pipeline, Llama 2's tokens", "own", _LLAMA),
    "records_llama": Contestant("records, Llama 2's tokens", "records", _LLAMA),
}
_LABELS = {key: contestant.label for key, contestant in CONTESTANTS.items()}
_RATIOS = (
    ("records", "own", "records over MaxText's own"),
    ("records_worker", "own_worker", "the same with 1 worker, MaxText's default"),
    ("records_llama", "own_llama", "the same with Llama 2's tokens"),
    ("packed", "own", "packed rows over MaxText's own"),
    ("packed_worker", "own_worker", "the same with 1 worker, MaxText's default"),
    ("plain", "own", "packed rows that are not compressed over MaxText's own"),
    ("plain_worker", "own_worker", "the same with 1 worker, MaxText's default"),
)


def make_inputs(
    work: pathlib.Path, size_bytes: int, tokenizer: str, real: pathlib.Path | None
) -> dict[str, int]:
    """Writes documents, and packed rows of them; returns how many there are."""
    from gristmill import loader

    say(f"writing and packing {size_bytes / 1e6:,.0f} MB of text")
    pack_text.write_inputs(
        work / "inputs", size_bytes, files=_SHARDS, forms=("tfrecord",), real=real
    )
    inputs = str(work / "inputs" / "tfrecord" / "*")
    shards = f"--num-shards={_SHARDS}"
    _gristmill("convert", inputs, str(work / "texts"), shards)
    rows = ["pack", inputs, str(work / "rows"), f"--tokenizer={tokenizer}"]
    _gristmill(*rows, f"--length={_LENGTH}", shards)
    rows[2] = str(work / "plain")
    _gristmill(*rows, f"--length={_LENGTH}", shards, "--compression=uncompressed")
    texts = loader.open(work / "texts")
    return {"documents": len(texts), "rows": len(loader.open(work / "rows"))}


def _gristmill(*arguments: str) -> None:
    command = [sys.executable, "-m", "gristmill", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def run_contestant(
    key: str, work: pathlib.Path, seconds: float, rows: int
) -> dict[str, Any]:
    """Measures one contestant, in this process of MaxText's environment."""
    import maxtext
    import numpy as np
    from absl import flags
    from maxtext.configs import pyconfig
    from maxtext.input_pipeline import input_pipeline_interface
    from maxtext.utils import maxtext_utils

    contestant = CONTESTANTS[key]
    package = pathlib.Path(maxtext.__file__).parent
    if contestant.way != "own":
        from gristmill.loader import maxtext as ours

        ours.install()
    files = {
        "own": work / "texts" / "texts-train.array_record*",
        "records": work / "texts",
        "packed": work / "rows",
        "plain": work / "plain",
    }
    name, kind = contestant.tokenizer
    flags.FLAGS(["benchmark"])  # Grain reads some, in pipelines with workers.
    config = pyconfig.initialize(
        [
            *("benchmark", str(package / "configs" / "base.yml"), "run_name=benchmark"),
            *("hardware=cpu", "skip_jax_distributed_system=true", "dataset_type=grain"),
            *(f"base_output_directory={work}", f"jax_cache_dir={work / 'compiled'}"),
            *("grain_file_type=arrayrecord", "train_data_columns=['text']"),
            f"grain_train_files={files[contestant.way]}",
            f"grain_worker_count={contestant.workers}",
            f"max_target_length={_LENGTH}",
            f"per_device_batch_size={rows}",
            f"tokenizer_path={package / 'assets' / 'tokenizers' / name}",
            f"tokenizer_type={kind}",
            *("vocab_size=200000", "num_epoch=100000"),
        ]
    )
    mesh = maxtext_utils.get_mesh_from_config(config)
    batches, _ = input_pipeline_interface.create_data_iterator(config, mesh)
    batches = iter(batches)
    for _ in range(contestant.warm_batches):
        next(batches)
    taken = counted = tokens = 0
    cpu, started = tree_cpu_seconds(), time.perf_counter()
    while time.perf_counter() - started < seconds:
        batch = next(batches)
        # Not all: it would be a good part of the time that packed rows take.
        if taken % _COUNTED_BATCHES == 0:
            tokens += int(np.count_nonzero(batch["inputs_segmentation"]))
            counted += 1
        taken += 1
    cpu, wall = tree_cpu_seconds() - cpu, time.perf_counter() - started
    return {
        "batches": taken,
        "tokens": tokens / counted * taken,
        "cpu_seconds": cpu,
        "wall_seconds": wall,
        **describe_environment(PACKAGES),
    }


def tree_cpu_seconds(process: int | None = None) -> float:
    """Returns the CPU time so far of a process and of all below it."""
    folder = pathlib.Path("/proc") / str(process or os.getpid())
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    # User and system time of its own, and of children that have ended.
    ticks = sum(map(int, fields[11:15]))
    seconds = ticks / os.sysconf("SC_CLK_TCK")
    for task in (folder / "task").iterdir():
        for child in (task / "children").read_text().split():
            seconds += tree_cpu_seconds(int(child))
    return seconds


def _measure(
    key: str, python: pathlib.Path, work: pathlib.Path, seconds: float, rows: int
) -> dict[str, Any]:
    """Runs a contestant in a process of its own."""
    command = [str(python), "-m", "benchmarks.maxtext", "--contestant", key]
    command += ["--work-dir", str(work), "--seconds", str(seconds), "--rows", str(rows)]
    variables = {
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
        # Threads of Hugging Face's tokenizers would only cost more CPU time.
        "TOKENIZERS_PARALLELISM": "false",
    }
    return run_process(
        key,
        environment.in_namespace(command),
        variables=variables,
        directory=environment.ROOT,
        limit_seconds=_LIMIT_SECONDS,
    )


def render(results: dict[str, Any]) -> str:
    """Returns the report as Markdown."""
    made, runs, settings = results["inputs"], results["runs"], results["settings"]
    lines = [
        "# MaxText's input",
        "",
        "By `python -m benchmarks.maxtext`; benchmarks/README.md tells how it "
        f"measures. {describe_machine(results['environment'])}",
        "",
        f"{made['documents']:,} documents, {made['rows']:,} packed rows of {_LENGTH:,} "
        f"tokens; batches of {settings['rows']} rows. Up to the arrays that MaxText "
        "trains on, with Qwen 3's tokens where no other are named. Medians of "
        f"{settings['rounds']} rounds (lowest..highest).",
        "",
        *(f"{image}\n" for image in figures.images("maxtext", results)),
        *token_tables(runs, _LABELS, _RATIOS),
    ]
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark, or one contestant of it."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.maxtext", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--venv", type=pathlib.Path, help="environment with MaxText")
    parser.add_argument("--python", default="3.12", help="to make it with")
    parser.add_argument("--bytes", type=c4_like.parse_size, help="of text (30MB)")
    parser.add_argument("--real", type=pathlib.Path, help="TFRecords to take texts of")
    parser.add_argument("--seconds", type=float, help="of each run (4)")
    parser.add_argument("--rows", type=int, default=48, help="of a batch (%(default)s)")
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    every = [*CONTESTANTS]
    args = parse_contest(
        parser,
        argv,
        CONTESTANTS,
        quick={"bytes": 3_000_000, "rounds": 1, "seconds": 0.5, "contestants": every},
        full={"bytes": 30_000_000, "rounds": 5, "seconds": 4, "contestants": every},
    )
    if args.contestant:
        run = run_contestant(args.contestant, args.work_dir, args.seconds, args.rows)
        print(json.dumps(run), flush=True)
        return 0
    if args.venv is None:
        parser.error("--venv is missing: the folder of an environment with MaxText")
    python = environment.install(args.venv, args.python)
    found = "import maxtext, os; print(os.path.dirname(maxtext.__file__))"
    package = subprocess.check_output([str(python), "-c", found], text=True).split()[-1]
    tokenizer = f"{package}/assets/tokenizers/qwen3-tokenizer/tokenizer.json"
    runs = []
    with tempfile.TemporaryDirectory(dir=args.work_dir, prefix="maxtext-") as directory:
        work = pathlib.Path(directory)
        made = make_inputs(work, args.bytes, tokenizer, args.real)
        for number, key in take_turns(args.contestants, args.rounds):
            run = _measure(key, python, work, args.seconds, args.rows)
            machine = {name: run.pop(name) for name in describe_environment(())}
            runs.append({"round": number + 1, **run})
            speed = tokens_per_cpu_second(run)
            say(f"{number + 1} {key:15} {speed:7.2f} M tokens per CPU second")
    settings = {"rounds": args.rounds, "seconds": args.seconds, "rows": args.rows}
    results = {
        "environment": machine,
        "settings": settings,
        "inputs": made,
        "runs": runs,
    }
    write_reports(args, "maxtext", results, render(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
