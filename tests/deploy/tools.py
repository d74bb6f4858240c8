"""Commands that tests run: linters, scripts of the repository, clients of a cloud."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def tool(name):
    """Returns the path of a tool, or skips the test."""
    # Beside this interpreter too: an environment need not be activated.
    beside = os.path.dirname(sys.executable)
    found = shutil.which(name, path=os.pathsep.join([beside, os.environ["PATH"]]))
    if found is None:
        pytest.skip(f"{name} is not installed: it is part of the development extra")
    return found


def run(*command, env=None, **options):
    """Runs a command in the root of the repository; its errors are in its output."""
    return subprocess.run(
        [str(part) for part in command],
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
        **options,
    )
