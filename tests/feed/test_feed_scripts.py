"""Feeds in scripts as users write them: how they start, end, and are ended."""

import os
import pathlib
import signal
import subprocess
import sys

import psutil
import pytest

from tests.support.waiting import until

pytestmark = pytest.mark.slow
# Workers run this as well.
HEAD = """\
import os, sys, time
DATASET = sys.argv[1]
from gristmill import loader
from tests.feed import decoders

def make_feed(**options):
    batches = loader.global_batches(loader.open(DATASET), batch_size=12)
    return batches.feed(host=(0, 1), **options)
"""


def _runs(process):
    """Returns whether a process lives; its new parent may never ask how it ended."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Script:
    """A running script."""

    def __init__(self, folder, dataset, body):
        path = folder / "script.py"
        path.write_text(HEAD + body)
        root = pathlib.Path(__file__).parents[2]
        self.process = subprocess.Popen(
            [sys.executable, str(path), dataset],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(root)},
            start_new_session=True,  # Ctrl-C goes to all processes of the script
        )

    def wait_for(self, word):
        line = self.process.stdout.readline()
        assert line == word + "\n", self.process.stderr.read()

    def children(self):
        return psutil.Process(self.process.pid).children(recursive=True)

    def end(self):
        """Waits for the end, and returns exit code and stderr."""
        _, stderr = self.process.communicate(timeout=60)
        return self.process.returncode, stderr

    def leaves_nothing(self, children=()):
        """Waits until neither processes nor shared memory are left of the script."""
        mark = f"gristmill-{self.process.pid}-"
        until(lambda: not any(map(_runs, children)))
        until(lambda: not any(name.startswith(mark) for name in os.listdir("/dev/shm")))


@pytest.fixture
def run(path, tmp_path):
    scripts = []

    def start(body):
        scripts.append(Script(tmp_path, path, body))
        return scripts[-1]

    yield start
    for script in scripts:
        if script.process.poll() is None:
            os.killpg(script.process.pid, signal.SIGKILL)
            script.process.communicate()


MAIN = 'if __name__ == "__main__":\n'
READS = (
    MAIN
    + """\
    feed = make_feed(workers=2, decode=decoders.large)
    kept = [next(feed) for _ in range(3)]
    view = kept[0][2:4]
    mark = f"gristmill-{os.getpid()}-"
    while not any(mark in name for name in os.listdir("/dev/shm")):
        time.sleep(0.01)
    print("reading", flush=True)
    sys.stdin.readline()
"""
)
TRAINS = (
    MAIN
    + """\
    with make_feed(workers=2, decode=decoders.large) as feed:
        for number, batch in enumerate(feed):
            if number == 3:
                print("reading", flush=True)
"""
)
BY_JAX = """
import jax
from jax.sharding import SingleDeviceSharding
if __name__ == "__main__":
    feed = make_feed(decode=decoders.large, workers=1)
    feed = loader.to_jax(feed, SingleDeviceSharding(jax.devices()[0]), ahead=3)
    for batch in feed:
        if feed.stats.batches == 20:
            print("reading", flush=True)
"""
STARTS = (
    MAIN
    + """\
    feed = make_feed(workers=2)
    feed.start_prefetch()
    print("reading", flush=True)
    next(feed)
    time.sleep(60)
"""
)
BY_GRAIN = """
import grain
if __name__ == "__main__":
    batches = make_feed().batches
    workers = grain.MultiprocessingOptions(num_workers=1)
    rows = batches.map_dataset().to_iter_dataset()
    pipelines = batches.records(host=(0, 1)), rows
    kept = [iter(each.mp_prefetch(workers)) for each in pipelines]
    for each in kept:
        next(each)
    print("reading", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize(
    ("body", "end"),
    [
        pytest.param(READS + "    feed.close()", None, id="closed"),
        pytest.param(READS, None, id="in use"),
        pytest.param(BY_JAX + "            break", None, id="arrays in use"),
        pytest.param(TRAINS, signal.SIGINT, id="interrupted"),
        pytest.param(BY_JAX, signal.SIGINT, id="arrays interrupted"),
        pytest.param(STARTS, signal.SIGINT, id="interrupted while workers start"),
        pytest.param(READS, signal.SIGKILL, id="killed"),
        pytest.param(BY_GRAIN, signal.SIGKILL, id="grain killed"),
    ],
)
def test_a_script_ends_in_silence_and_leaves_nothing(run, body, end):
    script = run(body)
    script.wait_for("reading")
    children = script.children()
    assert children
    if end == signal.SIGINT:
        os.killpg(script.process.pid, end)
    elif end:
        script.process.kill()
    code, stderr = script.end()
    assert code == -(end or 0)
    if end is None:
        assert stderr == ""
    elif end == signal.SIGINT:  # The trainer's own.
        assert stderr.count("Traceback") == 1
        assert stderr.endswith("KeyboardInterrupt\n")
    script.leaves_nothing(children)


def test_no_worker_runs_the_script_with_an_accelerator_in_sight(run):
    # At its top level, where workers run it as well, a script may start JAX, and change
    # what a decode would start it with.
    script = run("""
import jax
NAMES = "JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES"
print(__name__, *map(os.environ.get, NAMES), jax.devices()[0].platform, flush=True)
os.environ.update(JAX_PLATFORMS="tpu", CUDA_VISIBLE_DEVICES="0,1")

def decode(records):
    print(*map(os.environ.get, NAMES), flush=True)

if __name__ == "__main__":
    with make_feed(workers=1, decode=decode) as feed:
        next(feed)
    print(*map(os.environ.get, NAMES))
""")
    stdout, stderr = script.process.communicate(timeout=60)
    _, started, *decoded, ended = stdout.splitlines()
    assert (started, ended) == ("__mp_main__ cpu  cpu", "tpu 0,1")
    assert {*decoded} == {"cpu "}
    assert stderr == ""


def test_a_script_without_a_guard_is_an_error(run):
    script = run("""
feed = make_feed(workers=1)
next(feed)
""")
    code, stderr = script.end()
    assert code == 1
    assert "WorkerDiedError: a worker of the feed died" in stderr
    assert "under if __name__ == '__main__'" in stderr
    script.leaves_nothing()
