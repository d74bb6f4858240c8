"""Second requests for stragglers: what they do for the time of a batch, and cost.

    python -m benchmarks.gcs_hedges

A bucket with 20 ms latency, where one answer in 200 takes half a second more. Batches
of 64 records are read one after another, with second requests and without, in turns.
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
import time

import numpy as np

from benchmarks.gcs import make_dataset, serve
from gristmill import loader

_BATCH, _BATCHES, _ROUNDS = 64, 100, 3
_FACTORS = (None, 3.0)


def measure(
    dataset: str, cache_dir: str, hedge_factor: float | None, seed: int
) -> tuple[list[float], float]:
    """Reads batches; returns the seconds of each, and requests for each record."""
    options = loader.ReadOptions(hedge_factor=hedge_factor)
    opened = loader.open(dataset, read_options=options, cache_dir=cache_dir)
    chance = np.random.default_rng(seed)
    for _ in range(20):
        opened.read(chance.integers(0, len(opened), _BATCH))
    before, seconds = opened.request_counts.requests, []
    for _ in range(_BATCHES):
        order = chance.integers(0, len(opened), _BATCH)
        begin = time.perf_counter()
        opened.read(order)
        seconds.append(time.perf_counter() - begin)
    requests = opened.request_counts.requests - before
    return seconds, requests / (_BATCH * _BATCHES)


def main() -> None:
    """Prints the table."""
    found: dict[float | None, list[float]] = {factor: [] for factor in _FACTORS}
    requests: dict[float | None, list[float]] = {factor: [] for factor in _FACTORS}
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        dataset = make_dataset(root, record_bytes=2_000, records=16_384, group_size=1)
        more = ("--slow-every=200", "--slow-ms=500")
        with serve(root / "bucket", 20, 0, *more) as url:
            os.environ["STORAGE_EMULATOR_HOST"] = url
            for number in range(_ROUNDS):
                for factor in _FACTORS:
                    seconds, each = measure(
                        f"gs://bench/{dataset.name}", f"{folder}/cache", factor, number
                    )
                    found[factor] += seconds
                    requests[factor].append(each)
    print("| second requests | median batch, ms | p95 | p99 | requests a record |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for factor in _FACTORS:
        label = "none" if factor is None else f"after {factor:g} times the 95th of 100"
        times = np.percentile(found[factor], [50, 95, 99]) * 1e3
        cells = [label, *(f"{ms:,.0f}" for ms in times)]
        print("|", " | ".join([*cells, f"{np.mean(requests[factor]):.3f}"]), "|")


if __name__ == "__main__":
    sys.exit(main())
