"""Commands that tests run: linters, scripts of the repository, clients of a cloud."""

import os
import shutil
import subprocess
import sys

import pytest

from tests.support.distributions import ROOT


def tool(name):
    """Returns the path of a tool, or skips the test."""
    # Beside this interpreter too: an environment need not be activated.
    beside = os.path.dirname(sys.executable)
    found = shutil.which(name, path=os.pathsep.join([beside, os.environ["PATH"]]))
    if found is None:
        pytest.skip(f"{name} is not installed: it is part of the development extra")
    return found


def run(*command, env=None, cwd=ROOT, stderr=subprocess.STDOUT):
    """Runs a command, by default in the root; its errors are in its output."""
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        timeout=240,
        check=False,
    )


def stand_in(folder, **scripts):
    """Writes programs; returns a PATH with them first, then what is beside Python."""
    place = folder / "bin"
    place.mkdir(exist_ok=True)
    for name, text in scripts.items():
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    return f"{place}:{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
