"""What is built from the source tree, once for all processes of a run of tests."""

import os
import pathlib
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tempfile

import pytest

from tests.support import shared

ROOT = pathlib.Path(__file__).parents[2]


def setup_arguments():
    """Returns what setup.py hands to setuptools."""
    captured = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setuptools.setup", lambda **kwargs: captured.update(kwargs))
        runpy.run_path(str(ROOT / "setup.py"))
    return captured


FOLDERS = ("dataset", "loader", "package", "pipelines", "transforms")
FILES = (
    "CHANGELOG.md",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "pyproject.toml",
    "requirements.txt",
    "setup.py",
)
# Whether what is built here has its compiled part.
CAN_COMPILE = (
    shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]) is not None
    and pathlib.Path(sysconfig.get_paths()["include"], "Python.h").exists()
)
# Of pip, for what is built and installed here: no registry is asked.
OFFLINE = ("--no-deps", "--no-index", "--no-build-isolation")


def checked(*command, cwd):
    """Runs a command without this process's import path; returns what it printed."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


def copy_source(folder):
    """Copies what the distributions are built from into a folder that exists."""
    ignored = shutil.ignore_patterns("__pycache__", "*.so")
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)


def sdist():
    """Returns the source distribution, built as Beam's launcher does it."""

    def make(folder):
        with tempfile.TemporaryDirectory() as source:
            copy_source(pathlib.Path(source))
            command = (sys.executable, "setup.py", "sdist", "--dist-dir", folder)
            checked(*command, cwd=pathlib.Path(source))

    (path,) = shared.made_once("sdist", make).iterdir()
    return path


def wheel():
    """Returns the wheel, built from the source distribution alone."""

    def make(folder):
        options = (*OFFLINE, "--wheel-dir", folder)
        checked(sys.executable, "-m", "pip", "wheel", *options, sdist(), cwd=folder)

    (path,) = shared.made_once("wheel", make).iterdir()
    return path


def site():
    """Returns a folder that the wheel was installed into, and nothing else."""

    def make(folder):
        options = (*OFFLINE, "--quiet", "--no-compile", "--target", folder)
        checked(sys.executable, "-m", "pip", "install", *options, wheel(), cwd=folder)

    return shared.made_once("site", make)
