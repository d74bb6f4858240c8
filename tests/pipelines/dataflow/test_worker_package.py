"""What is sent to workers, from a checkout and from an installed wheel."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import venv

import pytest
from packaging.requirements import Requirement

from gristmill.pipelines.dataflow.worker_package import write_source
from tests.support.distributions import OFFLINE, sdist, setup_arguments, site

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


def needed_by(*names: str) -> set[str]:
    """Returns requirements, and all that they require in turn, as far as it is here."""
    found: set[str] = set()
    waiting = [Requirement(name) for name in names]
    while waiting:
        required = waiting.pop()
        key = str(required)
        if key in found:
            continue
        found.add(key)
        try:
            stated = importlib.metadata.requires(required.name) or []
        except importlib.metadata.PackageNotFoundError:
            continue  # Of another platform.
        for each in map(Requirement, stated):
            for extra in {"", *required.extras}:
                if each.marker is None or each.marker.evaluate({"extra": extra}):
                    each.marker = None
                    waiting.append(each)
    return {Requirement(key).name for key in found}


def environment_with(folder: pathlib.Path, packages: set[str]) -> pathlib.Path:
    """Makes an environment that pip takes for one with these packages only.

    Returns:
        Its Python.
    """
    venv.create(folder, symlinks=True)
    (place,) = folder.glob("lib/python*/site-packages")
    # Not imported: after pip, setuptools cannot be imported in this process.
    links = {
        pathlib.Path(importlib.metadata.distribution(name).locate_file(module))
        for name, module in (
            ("pip", "pip"),
            ("setuptools", "setuptools"),
            ("setuptools", "_distutils_hack"),
        )
    }
    for name in packages | {"pip", "setuptools"}:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            links.add(importlib.metadata.distribution(name)._path)
    for path in links:
        (place / path.name).symlink_to(path)
    return folder / "bin" / "python"


@pytest.mark.slow
@pytest.mark.parametrize("image", ["Beam's", "ours"])
def test_a_worker_without_a_network(tmp_path, image):
    """Beam's image lacks what the package requires; the one of deploy/ does not."""
    held = needed_by("apache-beam[gcp]")
    if image == "ours":
        lock = (ROOT / "deploy" / "requirements.lock").read_text(encoding="utf-8")
        held = set(re.findall(r"^([\w.-]+)==", lock, re.MULTILINE))
    python = environment_with(tmp_path / "worker", held)
    # As Beam's boot program installs what was staged, without building for long.
    options = set(OFFLINE) - {"--no-deps"}
    done = subprocess.run(
        [python, "-m", "pip", "install", "--dry-run", *options, sdist()],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    if image == "ours":
        assert done.returncode == 0, done.stderr
        assert "Would install gristmill-" in done.stdout
    else:
        assert done.returncode != 0
        assert "No matching distribution found for array_record" in done.stderr
