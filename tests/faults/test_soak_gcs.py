"""Random records from a bucket that fails again and again, each record compared."""

import collections
import multiprocessing
import random
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.storage.lookup import storage_for
from tests.servers.gcs_process import GcsProcess
from tests.support.conversion import contents
from tests.support.datasets import convert
from tests.support.records import text_records

BUCKET = "gs://bucket/c4"
BATCHES, BATCH = 12, 500
# What goes wrong, and with how many requests.
FAULTS = {
    **{"503": 20, "429": 40, "500": 5, "reset": 5, "cut": 5},
    **{"short": 3, "stall": 1, "slow": 5, "flip": 1},
}


def read_batches(local, cache_dir, seed):
    """Reads batches and compares them; returns how often a request was repeated."""
    options = loader.ReadOptions(timeout_seconds=2)
    remote = loader.open(BUCKET, read_options=options, cache_dir=cache_dir)
    expected, chance = loader.open(local), np.random.default_rng(seed)
    for _ in range(BATCHES):
        order = chance.integers(0, len(expected), BATCH)
        assert remote.read(order) == expected.read(order)
    return remote.facts.requests.retries


@pytest.mark.slow
def test_every_record_is_right_whatever_goes_wrong(tmp_path, monkeypatch):
    chance, made = random.Random(1), collections.Counter()
    local = convert(tmp_path, [text_records(5_000, seed=i) for i in range(4)])
    # Not by fork: its threads would not be in the worker.
    spawn = multiprocessing.get_context("spawn")
    with GcsProcess("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        for name, data in contents(local).items():
            storage_for(BUCKET).write(f"{BUCKET}/{name}", data)
        with ProcessPoolExecutor(2, mp_context=spawn) as pool:
            cache = str(tmp_path / "cache")
            readers = [pool.submit(read_batches, local, cache, n) for n in range(2)]
            while not all(reader.done() for reader in readers):
                kind, times = chance.choice([*FAULTS.items()])
                # Of shards: the few requests for all else would meet all of them.
                fault = {"kind": kind, "operation": "media", "name": "c4/d-train"}
                server.control(fail=[{**fault, "times": times}])
                time.sleep(0.05)
                # Where a worker starts, or waits for its last request, that meets all.
                left = server.control(clear=True)["faults_left"]
                made[kind] += times - left
                time.sleep(chance.expovariate(10))
            assert sum(reader.result() for reader in readers) > 0
    assert sum(made[kind] > 0 for kind in made) > 2
