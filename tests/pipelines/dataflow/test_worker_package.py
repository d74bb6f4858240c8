"""What is sent to workers, from a checkout and from an installed wheel."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

import pytest
from packaging.requirements import Requirement

from gristmill.pipelines.dataflow.worker_package import write_source
from tests.support.distributions import setup_arguments, site

ROOT = pathlib.Path(__file__).parents[3]
SETUP = setup_arguments()
FOLDERS = SETUP["package_dir"].values()
WRITE = """
import pathlib, sys
from gristmill.pipelines.dataflow.worker_package import write_source
print(write_source(pathlib.Path(sys.argv[1])))
"""


def checkout_modules() -> set[str]:
    return {
        str(pathlib.Path(package.replace(".", "/")) / path.relative_to(ROOT / folder))
        for package, folder in SETUP["package_dir"].items()
        for path in (ROOT / folder).rglob("*.py")
    }


def test_from_a_checkout_it_is_the_checkout(tmp_path):
    setup = write_source(tmp_path)
    assert setup.read_bytes() == (ROOT / "setup.py").read_bytes()
    for folder in FOLDERS:
        sent = {p.relative_to(tmp_path) for p in (tmp_path / folder).rglob("*.py")}
        assert sent == {p.relative_to(ROOT) for p in (ROOT / folder).rglob("*.py")}
    assert not list(tmp_path.rglob("__pycache__"))


@pytest.mark.parametrize("extra", ["gigatoken", "tokenizers"])
def test_what_a_job_needs_besides(tmp_path, extra):
    setup = write_source(tmp_path, extras=[extra])
    stated = setup.read_text()
    extras = SETUP["extras_require"]
    needed = [*SETUP["install_requires"], *extras["beam"], *extras["gcs"]]
    found = re.search(r"install_requires=(\[.*\]),", stated)
    assert found is not None
    versions = [
        f"{name}=={importlib.metadata.version(name)}"
        for name in (Requirement(line).name for line in extras[extra])
    ]
    assert {str(Requirement(line)) for line in ast.literal_eval(found[1])} == {
        str(Requirement(line)) for line in (*needed, *versions)
    }


def write_from(
    installed: pathlib.Path, folder: pathlib.Path
) -> subprocess.CompletedProcess[str]:
    """Calls `write_source` of an installed copy, in a process that sees no other."""
    folder.mkdir()
    return subprocess.run(
        [sys.executable, "-S", "-c", WRITE, folder],
        env=os.environ | {"PYTHONPATH": str(installed)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_from_a_wheel_it_is_built_of_what_is_installed(tmp_path):
    folder = tmp_path / "source"
    done = write_from(site(), folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(folder / "setup.py")
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", "made"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    (archive,) = (folder / "made").iterdir()
    with tarfile.open(archive) as found:
        root = found.getnames()[0]
        names = {name.removeprefix(f"{root}/") for name in found.getnames()}
        requires = found.extractfile(f"{root}/gristmill.egg-info/requires.txt").read()
    sent = {name for name in names if name.endswith(".py")} - {"setup.py"}
    assert sent == checkout_modules()
    # The core, Beam and Cloud Storage; nothing of the loader's.
    extras = SETUP["extras_require"]
    needed = [*SETUP["install_requires"], *extras["beam"], *extras["gcs"]]
    assert {str(Requirement(line)) for line in requires.decode().split()} == {
        str(Requirement(line)) for line in needed
    }


@pytest.mark.slow
def test_without_metadata_it_is_refused(tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(site() / "gristmill", bare / "gristmill")
    done = write_from(bare, tmp_path / "source")
    assert done.returncode != 0
    assert "this copy of gristmill cannot be sent to workers" in done.stderr
