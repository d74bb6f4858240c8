"""Memory of one batch serves the next one."""

import os
import pathlib
import platform
import subprocess
import sys

import numpy as np
import pytest

from tests.support.datasets import convert

CODE = """
import resource, sys
import numpy as np
from gristmill import loader
dataset = loader.open(sys.argv[1])
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
counts = []
for step in range(15):
    before = faults()
    dataset.read(np.arange(len(dataset)))
    counts.append((faults() - before) / len(dataset))
# Threads that decode take blocks in another order now and then, and so new ones.
print(np.median(counts[4:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="this is about glibc")
def test_large_records_get_no_new_pages(tmp_path: pathlib.Path) -> None:
    rng = np.random.default_rng(1)
    directory = convert(tmp_path, [[rng.bytes(100_000) for _ in range(40)]])

    def faults_a_record(**environment: str) -> float:
        done = subprocess.run(
            [sys.executable, "-c", CODE, directory],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, **environment},
        )
        return float(done.stdout)

    assert faults_a_record() < 1
    # The user's limit stays: blocks of more than 64 KiB are returned at once.
    assert faults_a_record(MALLOC_MMAP_THRESHOLD_="65536") > 20
