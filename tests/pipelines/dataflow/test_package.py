"""What is sent to workers, from a checkout and from an installed wheel."""

from __future__ import annotations

import importlib.metadata
import pathlib
import subprocess
import sys
import tarfile

import pytest

from gristmill.dataset.errors import InputError
from gristmill.pipelines.dataflow import package as worker_package

ROOT = pathlib.Path(__file__).parents[3]
STATED = [
    "numpy<3,>=1.26",
    'apache-beam[gcp]<3,>=2.77; extra == "beam"',
    "google-cloud-storage<4,>=3.0; extra == 'gcs'",
    'jax<0.11,>=0.5; extra == "loader"',
    'numpy<3,>=1.26; extra == "beam"',
]


def modules(folder: pathlib.Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for name in ("dataset", "loader", "pipelines", "transforms")
        for path in (folder / name).glob("*.py")
    }


def test_from_a_checkout_it_is_the_checkout(tmp_path):
    setup = worker_package.write_source(tmp_path)
    assert setup.read_bytes() == (ROOT / "setup.py").read_bytes()
    assert modules(tmp_path) == modules(ROOT)
    assert not list(tmp_path.rglob("__pycache__"))


@pytest.fixture
def installed(tmp_path, monkeypatch) -> pathlib.Path:
    """Makes the module think that it lies in a directory of installed packages."""
    site = tmp_path / "site" / "gristmill"
    site.mkdir(parents=True)
    for name in ("dataset", "loader", "pipelines", "transforms"):
        (site / name).symlink_to(ROOT / name)
    fake = site / "pipelines" / "worker_package.py"
    copy = tmp_path / "site" / "gristmill" / "pipelines"
    copy.unlink()
    copy.mkdir()
    for path in (ROOT / "pipelines").glob("*.py"):
        (copy / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(worker_package, "__file__", str(fake))
    return site


def test_from_a_wheel_it_is_built_of_what_is_installed(
    installed, tmp_path, monkeypatch
):
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: STATED)
    folder = tmp_path / "source"
    folder.mkdir()
    setup = worker_package.write_source(folder)
    subprocess.run(
        [sys.executable, setup.name, "--quiet", "sdist", "--dist-dir", "made"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    (archive,) = (folder / "made").iterdir()
    with tarfile.open(archive) as found:
        names = {name.partition("/")[2] for name in found.getnames()}
        root = found.getnames()[0]
        info = found.extractfile(f"{root}/gristmill.egg-info/requires.txt").read()
    assert modules(ROOT) <= names
    # The core, Beam and Cloud Storage; nothing of the loader's.
    assert info.decode().split() == [
        "numpy<3,>=1.26",
        "apache-beam[gcp]<3,>=2.77",
        "google-cloud-storage<4,>=3.0",
    ]


def test_without_metadata_it_is_refused(installed, tmp_path, monkeypatch):
    def unknown(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", unknown)
    with pytest.raises(InputError, match="cannot be sent to workers"):
        worker_package.write_source(tmp_path / "source")
