"""`gristmill pack` beside bare tokenizers and the preprocessing of other projects.

    python -m benchmarks.pack huggingface --json benchmarks/results/pack.json
    python -m benchmarks.pack fast --datatrove PYTHON --megatron CHECKOUT PYTHON \
        --json benchmarks/results/pack.json
    python -m benchmarks.pack memory packing --json benchmarks/results/pack.json
    python -m benchmarks.reports

C4-like text in which no document occurs twice (`benchmarks.pack_text`) lies in eight
TFRecord files. Every contestant is a whole process with two workers, in rounds that
alternate. All of them have to make the same number of tokens.

`huggingface` compares with a pool of loops over Hugging Face's tokenizers that writes
nothing. `fast` uses gigatoken, beside datatrove, in the environment whose PYTHON is
given, and Megatron-LM's tools/preprocess_data.py, from a checkout. Both use Hugging
Face's tokenizers on fewer documents, write a stream of tokens, and pack nothing.
`memory` makes one shard of more and more text with one worker, beside a process that
imports and tokenises the same and keeps nothing. `packing` keeps what
`benchmarks.packing` prints. `benchmarks.reports` writes the document.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from benchmarks import pack_report, pack_text, process_cost
from benchmarks.c4_like import parse_size
from benchmarks.contest import commit_of, describe_environment, say, version_in
from benchmarks.rounds import take_turns

_PACKAGES = ("gigatoken", "numpy", "tokenizers", "zstandard")
_ROW = 2048
_FILES = 8
_PARTS = ("huggingface", "fast", "memory", "packing")


@dataclasses.dataclass
class _Input:
    """Documents, in one form or several.

    Attributes:
        directory: Has a folder for each form.
        documents: How many.
        text_bytes: Their size.
        tokens: What a contestant made of them, once one has run.
    """

    directory: pathlib.Path
    documents: int
    text_bytes: int
    tokens: int | None = None

    def paths(self, form: str) -> list[str]:
        """Returns the files of a form."""
        return sorted(map(str, (self.directory / form).iterdir()))


class Contest:
    """Runs contestants on the same documents.

    Args:
        work: Where inputs and outputs are for the time being.
        args: Args of the command line.
    """

    def __init__(self, work: pathlib.Path, args: argparse.Namespace):
        self._work = work
        self._args = args
        self._tokenizer = work / "tokenizer" / "tokenizer.json"
        say("training a tokenizer")
        pack_text.train_tokenizer(
            self._tokenizer,
            real=args.c4,
            vocabulary=args.vocabulary,
            size_bytes=args.training_bytes,
        )

    def prepare(self, size_bytes: int, *forms: str, files: int = _FILES) -> _Input:
        """Writes documents."""
        say(f"writing {size_bytes / 1e6:,.0f} MB of text")
        directory = pathlib.Path(tempfile.mkdtemp(dir=self._work))
        documents, text_bytes = pack_text.write_inputs(
            directory, size_bytes, files=files, forms=forms, real=self._args.c4
        )
        source = _Input(directory, documents, text_bytes)
        if "jsonl" in forms:
            # Megatron-LM reads one file, or copies several into one a partition.
            with open(directory / "all.jsonl", "wb") as joined:
                for path in source.paths("jsonl"):
                    joined.write(pathlib.Path(path).read_bytes())
        return source

    def _command(self, key: str, source: _Input, output: pathlib.Path) -> list[str]:
        tokenizer = str(self._tokenizer)
        program = [sys.executable, "-m", "benchmarks.pack_peers"]
        if key in ("bare", "bare_fast", "holding"):
            return [*program, key, tokenizer, *source.paths("text")]
        if key == "datatrove":
            lines = str(source.directory / "jsonl")
            command = [self._args.datatrove, *program[1:], key, tokenizer, lines]
            return [*command, str(output)]
        if key == "megatron":
            checkout, python = self._args.megatron
            return [
                *(python, f"{checkout}/tools/preprocess_data.py", "--workers=2"),
                *("--input", str(source.directory / "all.jsonl")),
                *("--output-prefix", str(output / "c4")),
                *("--tokenizer-type", "HuggingFaceTokenizer"),
                *("--tokenizer-model", str(self._tokenizer.parent)),
            ]
        one = key == "pack_one"
        return [
            *(sys.executable, "-m", "gristmill", "pack"),
            *(str(source.directory / "tfrecord"), str(output)),
            *("--tokenizer", tokenizer, "--column=text", f"--length={_ROW}"),
            *(f"--workers={1 if one else 2}", f"--num-shards={1 if one else _FILES}"),
            *(() if key == "pack" else ("--fast",)),
        ]

    def measure(self, key: str, source: _Input, round_number: int) -> dict[str, Any]:
        """Runs one contestant once.

        Raises:
            RuntimeError: It failed, or made another number of tokens.
        """
        output = self._work / "out"
        shutil.rmtree(output, ignore_errors=True)
        output.mkdir()
        os.sync()
        # Modules are compiled, as in packages that pip has installed.
        environment = {
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(self._work / "bytecode"),
        }
        if key == "megatron":
            environment["PYTHONPATH"] = self._args.megatron[0]
        cost = process_cost.measure_command(
            self._command(key, source, output), environment=environment
        )
        found = _tokens_of(key, output, cost.output) if cost.exit_code == 0 else None
        counts = {} if not key.startswith("pack") else _counts(output)
        shutil.rmtree(output)
        expected = found if source.tokens is None else source.tokens
        if found is None or found != expected:
            raise RuntimeError(
                f"{key}: exit code {cost.exit_code}, {found} tokens where others made "
                f"{expected}\n{cost.output}"
            )
        source.tokens = found
        speed = source.text_bytes / 1e6 / cost.cpu_seconds
        say(
            f"{round_number} {key:10} {cost.cpu_seconds:7.2f} CPU s, "
            f"{speed:6.2f} MB per CPU s, {cost.wall_seconds:6.1f} s"
        )
        return {
            "contestant": key,
            "round": round_number,
            "documents": source.documents,
            "text_bytes": source.text_bytes,
            "tokens": found,
            "cpu_seconds": cost.cpu_seconds,
            "wall_seconds": cost.wall_seconds,
            "peak_tree_bytes": cost.peak_tree_bytes,
            "peak_process_bytes": cost.peak_process_bytes,
            **counts,
        }


def _tokens_of(key: str, output: pathlib.Path, printed: str) -> int | None:
    """Returns the tokens that a contestant made."""
    if key.startswith("pack"):
        return int(_counts(output)["packed"]["tokens"])
    if key == "megatron":
        # Two bytes each: the vocabulary is small.
        return (output / "c4_text_document.bin").stat().st_size // 2
    said = re.search(r"^tokens: (\d+)$", printed, re.MULTILINE)
    return int(said[1]) if said else None


def _counts(output: pathlib.Path) -> dict[str, Any]:
    """Returns the dataset's own counts, and the sizes of its files."""
    from gristmill.dataset import open_manifest

    (split,) = open_manifest(str(output)).splits.values()
    files = [path for path in output.rglob("*") if path.is_file()]
    return {
        "packed": dict(split.packed or {}),
        "output_bytes": sum(path.stat().st_size for path in files),
    }


def describe(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the conditions of the numbers, with the versions of the peers."""
    environment = describe_environment(_PACKAGES)
    if args.datatrove:
        packages = {"datatrove": version_in(args.datatrove, "datatrove")}
        environment["packages"] |= packages
    if args.megatron:
        environment["packages"]["Megatron-LM"] = commit_of(args.megatron[0])
    return environment


def run_part(part: str, contest: Contest, args: argparse.Namespace) -> list[Any]:
    """Runs all rounds of a part; returns its runs."""
    runs = []
    if part == "packing":
        command = [sys.executable, "-m", "benchmarks.packing"]
        return [
            subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True
            ).stdout
        ]
    if part == "memory":
        for size_bytes in args.memory_bytes:
            source = contest.prepare(size_bytes, "tfrecord", "text")
            runs += [contest.measure(key, source, 1) for key in ("holding", "pack_one")]
            shutil.rmtree(source.directory)
        return runs
    if part == "huggingface":
        source = contest.prepare(args.bytes, "tfrecord", "text")
        contestants = [("pack", source), ("bare", source)]
        rounds = args.rounds
    else:
        source = contest.prepare(args.fast_bytes, "tfrecord", "text")
        contestants = [("pack_fast", source), ("bare_fast", source)]
        rounds = args.fast_rounds
        fewer = contest.prepare(args.bytes, "jsonl")
        for key in ("datatrove", "megatron"):
            if getattr(args, key):
                contestants.append((key, fewer))
            else:
                say(f"{key} is left out: --{key} is not given")
    small = contest.prepare(20_000, "tfrecord", "text", "jsonl", files=2)
    for key, _ in contestants:
        contest.measure(key, small, 0)  # Compiles modules.
    for number, (key, given) in take_turns(contestants, rounds):
        if given is source or number < args.rounds:
            runs.append(contest.measure(key, given, number + 1))
    return runs


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the parts that are named, and writes what was found."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.pack",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    size = parse_size
    parser.add_argument("parts", nargs="*", metavar="PART", help="|".join(_PARTS))
    parser.add_argument("--bytes", type=size, default="50MB", help="(50MB)")
    parser.add_argument("--rounds", type=int, default=3, help="with them (3)")
    parser.add_argument("--fast-bytes", type=size, default="500MB", help="of fast")
    parser.add_argument("--fast-rounds", type=int, default=5, help="of fast (5)")
    parser.add_argument(
        *("--memory-bytes", "--memory"), type=size, nargs="+", metavar="BYTES",
        default=[64_000_000, 500_000_000, 2_000_000_000], help="of memory",
    )  # fmt: skip
    parser.add_argument("--c4", type=pathlib.Path, help="folder of TFRecords of C4")
    parser.add_argument("--datatrove", metavar="PYTHON", help="that has datatrove")
    parser.add_argument("--megatron", nargs=2, metavar=("CHECKOUT", "PYTHON"))
    parser.add_argument("--vocabulary", type=int, default=32_768, help="(32768)")
    parser.add_argument("--training-bytes", type=size, default="20MB")
    parser.add_argument("--work-dir", type=pathlib.Path, help="for what is written")
    parser.add_argument("--json", type=pathlib.Path, help="keeps the runs of each part")
    args = parser.parse_args(argv)
    parts = args.parts or list(_PARTS)
    if unknown := set(parts) - set(_PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    results: dict[str, Any] = {"parts": {}}
    if args.json and args.json.exists():
        results = json.loads(args.json.read_text())
    with tempfile.TemporaryDirectory(dir=args.work_dir, prefix="pack-") as work:
        contest = Contest(pathlib.Path(work), args)
        for part in parts:
            results["parts"][part] = {
                "environment": describe(args),
                "real_text": args.c4 is not None,
                "runs": run_part(part, contest, args),
            }
            if args.json:
                args.json.write_text(json.dumps(results, indent=1) + "\n")
    print(pack_report.render(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
