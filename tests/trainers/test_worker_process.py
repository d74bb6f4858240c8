"""Workers of Grain end with a trainer that is killed, and nothing else does."""

import pathlib
import signal
import subprocess
import sys

import psutil

from tests.support.waiting import until

SCRIPT = """
import multiprocessing, os, signal, sys, time
from gristmill.loader.grain.worker_process import end_with_trainer

def work(begun):
    end_with_trainer()
    end_with_trainer()
    begun.set()
    time.sleep(600)

context = multiprocessing.get_context("fork")
begun = context.Event()
worker = context.Process(target=work, args=(begun,), name=sys.argv[1], daemon=True)
worker.start()
begun.wait()
with open(sys.argv[2], "w") as file:
    file.write(str(worker.pid))
os.kill(os.getpid(), signal.SIGKILL)
"""


def worker_left_by(name: str, path: pathlib.Path) -> int:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=False,
        timeout=100,
    )
    assert done.returncode == -signal.SIGKILL
    return int(path.read_text())


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_worker_of_grain_ends_with_its_trainer(tmp_path) -> None:
    pid = worker_left_by("grain-process-prefetch-x", tmp_path / "pid")
    until(lambda: not is_running(pid))
