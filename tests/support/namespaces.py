"""Code that runs as root in namespaces of its own: mounts and processes end with it."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[2]
_UNSHARE = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork"]
_UNSHARE += ["--kill-child", "--mount-proc"]


def run_mounting(code: str, *arguments: str, fuse: bool = False, **env: str) -> Any:
    """Runs Python code that may mount, and returns the JSON of its last line.

    Skips the test where that is not allowed.

    Args:
        code: Of the program.
        *arguments: Its arguments.
        fuse: Whether it needs FUSE.
        **env: Variables of its environment.
    """
    if os.geteuid() or shutil.which("unshare") is None:
        pytest.skip("mounts need root, and unshare of util-linux")
    if subprocess.run([*_UNSHARE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this container may make no mount namespaces")
    if fuse:
        try:
            os.close(os.open("/dev/fuse", os.O_RDWR))
        except OSError as e:
            pytest.skip(f"this machine has no FUSE, or not for this container: {e}")
    command = [*_UNSHARE, sys.executable, "-c", code, *arguments]
    return run_json(command, **env)


def run_json(command: list[str], *, cwd: pathlib.Path = ROOT, **env: str) -> Any:
    """Runs a program, and returns the JSON of the last line that it prints."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout + done.stderr
    assert done.stdout, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
