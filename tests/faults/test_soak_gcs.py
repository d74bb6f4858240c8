"""Random records from a bucket that fails again and again, each record compared."""

from __future__ import annotations

import collections
import multiprocessing
import pathlib
import random
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any
from unittest import mock

import numpy as np
import pytest

from gristmill.dataset.storage.lookup import storage_for
from tests.servers.gcs_process import GcsProcess
from tests.support.conversion import contents
from tests.support.datasets import convert
from tests.support.records import text_records

_BATCH = 500
_BUCKET_PATH = "gs://bucket/c4"
# What goes wrong, and with how many requests.
_FAULTS = {
    "503": 20,
    "429": 40,
    "500": 5,
    "reset": 5,
    "cut": 5,
    "short": 3,
    "stall": 1,
    "slow": 5,
    "flip": 1,
}
# How long a fault waits for requests.
_FAULT_SECONDS = 0.05


def read_batches(local: str, cache_dir: str, seed: int, batches: int) -> dict[str, int]:
    """Reads batches and compares them; returns the counts."""
    from gristmill import loader

    options = loader.ReadOptions(timeout_seconds=2)
    remote = loader.open(_BUCKET_PATH, read_options=options, cache_dir=cache_dir)
    expected = loader.open(local)
    chance = np.random.default_rng(seed)
    found: collections.Counter[str] = collections.Counter()
    for _ in range(batches):
        order = chance.integers(0, len(expected), _BATCH)
        pairs = zip(remote.read(order), expected.read(order), strict=True)
        found["different"] += sum(a != b for a, b in pairs)
        found["records"] += len(order)
    counts = remote.facts.requests
    for name in ("requests", "retries", "hedges", "throttled"):
        found[name] = getattr(counts, name)
    return dict(found)


def soak(
    *, records: int, workers: int, faults_per_second: float, seed: int
) -> dict[str, Any]:
    """Reads so many records with faults, and returns the counts."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, GcsProcess("bucket") as server:
        local = convert(
            pathlib.Path(folder), [text_records(5_000, seed=i) for i in range(4)]
        )
        with mock.patch.dict("os.environ", STORAGE_EMULATOR_HOST=server.url):
            for name, data in contents(local).items():
                storage_for(_BUCKET_PATH).write(f"{_BUCKET_PATH}/{name}", data)
            server.control(clear=True)
            share = -(-records // (workers * _BATCH))
            begin = time.monotonic()
            # Not by fork: its threads would not be in the worker.
            context = multiprocessing.get_context("spawn")
            made: collections.Counter[str] = collections.Counter()
            with ProcessPoolExecutor(workers, mp_context=context) as pool:
                cache_dir = f"{folder}/cache"
                running = [
                    pool.submit(read_batches, local, cache_dir, seed + number, share)
                    for number in range(workers)
                ]
                try:
                    _disturb(server, running, chance, faults_per_second, made)
                except BaseException:
                    # The pool would wait for them, and perhaps forever.
                    for process in multiprocessing.active_children():
                        process.kill()
                    raise
                found: collections.Counter[str] = collections.Counter()
                for worker in running:
                    found.update(worker.result())
    return {
        **found,
        "seconds": round(time.monotonic() - begin, 1),
        "faults": dict(made),
    }


def _disturb(
    server: GcsProcess,
    running: Sequence[Future[dict[str, int]]],
    chance: random.Random,
    faults_per_second: float,
    made: collections.Counter[str],
) -> None:
    """Makes the server fail until the workers are done; counts the faults."""
    while not all(worker.done() for worker in running):
        kind = chance.choice(list(_FAULTS))
        # Of shards: the few requests for all else would meet all of them.
        fault = {"kind": kind, "operation": "media", "name": "c4/d-train"}
        server.control(fail=[{**fault, "times": _FAULTS[kind]}])
        time.sleep(_FAULT_SECONDS)
        # Where a worker starts, or waits for its last request, that would meet all.
        left = server.control(clear=True)["faults_left"]
        if left < _FAULTS[kind]:
            made[kind] += _FAULTS[kind] - left
        time.sleep(chance.expovariate(faults_per_second))


@pytest.mark.slow
def test_every_record_is_right_whatever_goes_wrong() -> None:
    found = soak(records=12_000, workers=2, faults_per_second=10, seed=1)
    assert found["different"] == 0
    assert found["records"] >= 12_000
    assert found["retries"] > 0
    assert len(found["faults"]) > 2
