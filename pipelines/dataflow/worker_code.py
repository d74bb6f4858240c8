"""The code of the workers: this package and the user's, in an image or sent to them."""

from __future__ import annotations

import contextlib
import importlib.metadata
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from apache_beam.options.pipeline_options import (
    DebugOptions,
    PipelineOptions,
    SetupOptions,
    WorkerOptions,
)

import gristmill
from gristmill.dataset.base.errors import InputError, JobError
from gristmill.pipelines.options.job_options import Options, PackingOptions

_FOLDERS = ("dataset", "loader", "package", "pipelines", "transforms")
_BESIDE = (
    *("CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md"),
    *("pyproject.toml", "requirements.txt", "setup.py"),
)
_EXTRAS = ("beam", "gcs")
_BEAMS_IMAGE = re.compile(r"(?:.*/)?beam_python\d+\.\d+_sdk\w*(?:[:@].*)?")
# Without it, pip fetches setuptools to build what was sent.
_NO_ISOLATION = "pip_no_build_isolation"


def has_image(beam: Any) -> bool:
    """Returns whether options start workers from an image that is not Beam's own."""
    image = beam.sdk_container_image
    return bool(image) and not _BEAMS_IMAGE.fullmatch(image)


def sends_code(beam: Any) -> bool:
    """Returns whether options send code to workers."""
    return bool(beam.setup_file or beam.extra_packages or beam.requirements_file)


@contextlib.contextmanager
def sent_code(options: Options, beam_options: PipelineOptions) -> Iterator[None]:
    """Sends this package to workers whose image does not contain it.

    Packages that the user sends are installed after it.
    """
    setup = beam_options.view_as(SetupOptions)
    with tempfile.TemporaryDirectory(prefix="gristmill-") as directory:
        if not has_image(beam_options.view_as(WorkerOptions)):
            extras = []
            if isinstance(options, PackingOptions) and options.tokenizer is not None:
                extras.append("gigatoken" if options.fast else "tokenizers")
            package = build_package(pathlib.Path(directory), extras=extras)
            setup.extra_packages = [str(package), *(setup.extra_packages or [])]
        debug = beam_options.view_as(DebugOptions)
        if sends_code(setup) and _NO_ISOLATION not in (debug.experiments or []):
            debug.add_experiment(_NO_ISOLATION)
        yield


def build_package(
    directory: pathlib.Path, *, extras: Sequence[str] = ()
) -> pathlib.Path:
    """Makes a source distribution of the installed package.

    Args:
        directory: An empty directory.
        extras: Requirements of this job on the workers besides those of all jobs.

    Returns:
        Its path.
    """
    ignored = shutil.ignore_patterns("__pycache__")
    top = pathlib.Path(gristmill.__file__)
    # In an editable installation every file is a link to the checkout.
    checkout = top.resolve().parent.parent
    setup, needed = directory / "setup.py", _requirements(extras)
    if (checkout / "setup.py").exists():
        for folder in _FOLDERS:
            shutil.copytree(checkout / folder, directory / folder, ignore=ignored)
        for name in _BESIDE:
            shutil.copy(checkout / name, directory / name)
        code = setup.read_text(encoding="utf-8").replace(
            "install_requires=CORE,", f"install_requires={needed!r},"
        )
    else:
        shutil.copytree(top.parent, directory / "gristmill", ignore=ignored)
        code = (
            "from setuptools import find_packages, setup\n\n"
            f'setup(name="gristmill", version={gristmill.__version__!r}, '
            f"packages=find_packages(), install_requires={needed!r})\n"
        )
    setup.write_text(code, encoding="utf-8")
    command = (sys.executable, "setup.py", "-q", "sdist", "--dist-dir", "made")
    done = subprocess.run(
        command, cwd=directory, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise JobError(
            "the package for the workers could not be built",
            got=done.stderr.strip().splitlines()[-1],
            cure="install setuptools here, or give --sdk_container_image",
        )
    (package,) = (directory / "made").iterdir()
    return package


def _requirements(extras: Sequence[str]) -> list[str]:
    """Returns the requirements of the installed package on a worker."""
    try:
        stated = importlib.metadata.requires("gristmill") or []
    except importlib.metadata.PackageNotFoundError as e:
        raise InputError(
            "this copy of gristmill cannot be sent to workers",
            got="no installed metadata of the package",
            cure="install it with pip, or give --sdk_container_image",
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
