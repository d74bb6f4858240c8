"""The core and the loader without what only Linux has.

`tests/support/other_system` takes it away from Python; that other systems behave so is
not tested.
"""

import os
import subprocess
import sys

import pytest

from tests.support.distributions import ROOT

ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": f"{ROOT / 'tests' / 'support' / 'other_system'}",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def run(*command, cwd=ROOT):
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def test_it_is_taken_away(tmp_path):
    program = (
        "import os; print(hasattr(os, 'sched_getaffinity'), os.path.exists('/proc'))"
    )
    assert run("-c", program, cwd=tmp_path).split() == ["False", "False"]


@pytest.mark.slow
def test_storage_writers_and_open_datasets():
    names = {
        # Others look into /proc or at locks themselves, or are of requests alone.
        "storage": "gcs_store stores",
        "conversion": "column_writer writer",
        "feed": "open reading",
    }
    tests = [
        f"tests/{folder}/test_{name}.py"
        for folder, some in names.items()
        for name in some.split()
    ]
    options = ["-q", "-p", "no:cacheprovider", "-m", "not slow"]
    options += ["-k", "not files_are_closed"]  # It looks into /proc, too.
    assert " passed" in run("-m", "pytest", *options, *tests)


FEED = """
from gristmill import loader

if __name__ == "__main__":
    dataset = loader.open("made/demo")
    batches = loader.global_batches(dataset, batch_size=64, seed=42)
    decode = loader.ExampleDecoder({"id": loader.FixedFeature("int32")})
    found = []
    for workers in (0, 2):
        with batches.feed(
            decode=decode, host=(0, 1), workers=workers
        ) as feed:
            found.append([next(feed)["id"].tolist() for _ in range(3)])
            state = feed.get_state()
            after = next(feed)["id"].tolist()
        with batches.feed(
            decode=decode, host=(0, 1), workers=workers
        ) as feed:
            feed.set_state(state)
            assert next(feed)["id"].tolist() == after
    assert found[0] == found[1]
    print(len(found[1]))
"""


@pytest.mark.slow
def test_commands_and_a_feed_with_workers(tmp_path):
    run("-m", "gristmill", "demo", "made", cwd=tmp_path)
    again = ["convert", "made/tfrecords/*", "made/again", "--workers", "2"]
    run("-m", "gristmill", *again, cwd=tmp_path)
    assert "4,000 records" in run(
        "-m", "gristmill", "verify", "made/again", cwd=tmp_path
    )
    script = tmp_path / "feed.py"
    script.write_text(FEED)
    assert run(f"{script}", cwd=tmp_path).split() == ["3"]
