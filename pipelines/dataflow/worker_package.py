"""The source of this package for Dataflow workers whose image does not hold it.

Beam builds a source distribution from it and stages that.
"""

from __future__ import annotations

import importlib.metadata
import pathlib
import re
import shutil
from collections.abc import Sequence

import gristmill
from gristmill.dataset.base.errors import InputError

_FOLDERS = ("dataset", "loader", "package", "pipelines", "transforms")
_BESIDE = (
    *("CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md"),
    *("pyproject.toml", "requirements.txt", "setup.py"),
)
_EXTRAS = ("beam", "gcs")


def write_source(
    directory: pathlib.Path, *, extras: Sequence[str] = ()
) -> pathlib.Path:
    """Copies the installed package to an empty directory, where it can be built.

    Args:
        directory: The directory.
        extras: What a job needs on the workers besides what all jobs do.

    Returns:
        Path of its `setup.py`.
    """
    ignored = shutil.ignore_patterns("__pycache__")
    top = pathlib.Path(gristmill.__file__)
    # In an editable installation every file is a link to the checkout.
    checkout = top.resolve().parent.parent
    setup = directory / "setup.py"
    if (checkout / "setup.py").exists():
        for folder in _FOLDERS:
            shutil.copytree(checkout / folder, directory / folder, ignore=ignored)
        for name in _BESIDE:
            shutil.copy(checkout / name, directory / name)
        if extras:
            code = setup.read_text(encoding="utf-8")
            needed = f"install_requires={_requirements(extras)!r},"
            setup.write_text(
                code.replace("install_requires=CORE,", needed), encoding="utf-8"
            )
    else:
        shutil.copytree(top.parent, directory / "gristmill", ignore=ignored)
        setup.write_text(
            "from setuptools import find_packages, setup\n\n"
            f'setup(name="gristmill", version={gristmill.__version__!r}, '
            f"packages=find_packages(), install_requires={_requirements(extras)!r})\n",
            encoding="utf-8",
        )
    return setup


def _requirements(extras: Sequence[str]) -> list[str]:
    """Returns the requirements of the installed package on a worker."""
    try:
        stated = importlib.metadata.requires("gristmill") or []
    except importlib.metadata.PackageNotFoundError as e:
        raise InputError(
            "this copy of gristmill cannot be sent to workers",
            got="no installed metadata of the package",
            cure="install it with pip, or give --sdk_container_image or --setup_file",
        ) from e
    found = []
    for requirement in stated:
        needed, _, marker = requirement.partition(";")
        extra = re.search(r"extra == ['\"](\w+)['\"]", marker)
        if extra is None or extra[1] in _EXTRAS:
            found.append(needed.strip())
        elif extra[1] in extras:
            # The same version: the job is planned with it.
            name = re.split(r"[^\w.-]", needed, maxsplit=1)[0]
            found.append(f"{name}=={importlib.metadata.version(name)}")
    return list(dict.fromkeys(found))
