"""The cost of cutting a large gzip: CPU of many shards, beside that of one.

    python -m benchmarks.compressed --bytes 1GB

Converts one file of C4-like text into one shard, and into shards of 64 MB of records,
in turns. Then once more into shards, killed in the middle and run again.
"""

from __future__ import annotations

import argparse
import gzip
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from benchmarks.c4_like import parse_size, write_dataset
from benchmarks.process_cost import measure_command
from gristmill.dataset import open_manifest

_SHARD_BYTES = 64_000_000  # Of records.
_BLOCK_BYTES = 1 << 20


def write_gzip(folder: pathlib.Path, size_bytes: int) -> pathlib.Path:
    """Writes one compressed file."""
    (written,) = write_dataset(folder / "plain", size_bytes=size_bytes, files=1)
    path = folder / "in.tfrecord.gz"
    with (
        open(written.path, "rb") as plain,
        gzip.open(path, "wb", compresslevel=6) as packed,
    ):
        shutil.copyfileobj(plain, packed, _BLOCK_BYTES)
    return path


def cpu_seconds(command: Sequence[str], output: pathlib.Path) -> float:
    """Runs a conversion; returns the CPU time of it and all its processes."""
    shutil.rmtree(output, ignore_errors=True)
    cost = measure_command(command)
    if cost.exit_code:
        raise RuntimeError(f"exit code {cost.exit_code}: {cost.output}")
    return cost.cpu_seconds


def cpu_after_kill(command: Sequence[str], output: pathlib.Path) -> tuple[int, float]:
    """Kills a conversion half way; returns its shards then, and the CPU of the rest."""
    shutil.rmtree(output, ignore_errors=True)
    wanted = int(command[command.index("--num-shards") + 1]) // 2
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        while len(found := list(output.glob("index/*.index"))) < wanted:
            if process.poll() is not None:
                raise RuntimeError("the conversion ended before it was killed")
            time.sleep(0.01)
        process.kill()
    cost = measure_command(command)
    if cost.exit_code:
        raise RuntimeError(f"exit code {cost.exit_code}: {cost.output}")
    return len(found), cost.cpu_seconds


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, and prints the ratios."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compressed", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--bytes", type=parse_size, default="1GB", help="of frames")
    parser.add_argument("--rounds", type=int, default=5, help="how often each runs (5)")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="gristmill-") as directory:
        folder = pathlib.Path(directory)
        path = write_gzip(folder, args.bytes)
        shards = max(2, round(args.bytes / _SHARD_BYTES))
        plans = {
            "one shard": ["--num-shards", "1"],
            f"{shards} shards": ["--num-shards", str(shards)],
        }
        output = folder / "out"
        start = [sys.executable, "-m", "gristmill", "convert", str(path), str(output)]
        found: dict[str, list[float]] = {name: [] for name in plans}
        made = {}
        for _ in range(args.rounds):
            for name, plan in plans.items():
                found[name].append(cpu_seconds([*start, "--workers=1", *plan], output))
                split = open_manifest(str(output)).splits["train"]
                made[name] = (split.shards, split.records_digest)
        if len({digest for _, digest in made.values()}) != 1:
            raise RuntimeError(f"not the same records: {made}")
        print(f"{args.bytes:,} bytes, {path.stat().st_size:,} compressed")
        print("| shards | CPU s | of one shard, round by round |\n| --- | ---: | --- |")
        for name, each in found.items():
            one = found[name.replace(f"{shards} shards", "one shard")]
            ratios = [a / b for a, b in zip(each, one, strict=True)]
            print(
                f"| {name} ({made[name][0]}) | {statistics.median(each):.2f} | "
                f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to "
                f"{max(ratios):.2f}) |"
            )
        command = [*start, "--workers=1", *plans[f"{shards} shards"]]
        there, seconds = cpu_after_kill(command, output)
        print(f"killed with {there} of {shards} shards, the rest: {seconds:.2f} s")


if __name__ == "__main__":
    main()
