"""The environment with MaxText and gristmill, as it is documented."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys

VERSION = "0.2.5"
ROOT = pathlib.Path(__file__).parents[2]


def install(venv: pathlib.Path, python: str, version: str = VERSION) -> pathlib.Path:
    """Makes or renews the environment, and returns its Python.

    Args:
        venv: Its folder; what is there already is kept, and gristmill installed anew.
        python: Version or path of the Python to use.
        version: Of MaxText.
    """
    uv = [shutil.which("uv")] if shutil.which("uv") else [sys.executable, "-m", "uv"]
    inside = venv.absolute() / "bin" / "python"
    if not inside.exists():
        subprocess.run([*uv, "venv", "-q", "--python", python, str(venv)], check=True)
    command = [*uv, "pip", "install", "-q", "--python", str(inside)]
    command += ["--reinstall-package", "gristmill"]
    command += [f"maxtext[tpu]=={version}", ".[gcs,loader,tokenizers]"]
    subprocess.run(command, cwd=ROOT, check=True)
    return inside


def in_namespace(command: list[str]) -> list[str]:
    """Returns a command in a process namespace of its own, which ends with it.

    MaxText 0.2.5 ends orphaned multiprocessing processes that it sees, of any program.
    """
    alone = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if os.geteuid():
        alone.append("--map-root-user")
    return [*alone, *command]
