"""The code of the workers: this package and the user's, in an image or sent along."""

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

from apache_beam.options.pipeline_options import (
    DebugOptions,
    PipelineOptions,
    SetupOptions,
    WorkerOptions,
)

import gristmill
from gristmill.dataset.base.errors import InputError, JobError
from gristmill.pipelines.options.job_options import (
    ConvertOptions,
    LaunchOptions,
    Options,
    PackingOptions,
)
from gristmill.transforms.tokens.tokenizers import is_function

_FOLDERS = ("dataset", "loader", "package", "pipelines", "transforms")
_BESIDE = (
    *("CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md"),
    *("pyproject.toml", "requirements.txt", "setup.py"),
)
_EXTRAS = ("beam", "gcs")
_BEAMS_IMAGE = re.compile(r"(?:.*/)?beam_python\d+\.\d+_sdk\w*(?:[:@].*)?")
# Without it, pip fetches setuptools to build what was sent.
_NO_ISOLATION = "pip_no_build_isolation"


def has_image(beam_options: PipelineOptions) -> bool:
    """Returns whether workers start from an image that is not Beam's own."""
    image = beam_options.view_as(WorkerOptions).sdk_container_image
    return bool(image) and not _BEAMS_IMAGE.fullmatch(image)


def check_worker_code(
    options: Options, launch: LaunchOptions, beam_options: PipelineOptions
) -> None:
    """Checks that workers can get this package, and the modules that a job names.

    Raises:
        InputError: They cannot.
    """
    setup = beam_options.view_as(SetupOptions)
    public = beam_options.view_as(WorkerOptions).use_public_ips
    built = has_image(beam_options) or setup.prebuild_sdk_container_engine
    if not (built or public or launch.install_on_workers):
        # Beam's image does not hold what the package requires, such as array_record.
        raise InputError(
            "the workers could not install gristmill",
            expected="an image that holds it, or a package index that the workers can "
            "reach",
            got="Beam's own image, and workers without public addresses",
            cure="give --sdk_container_image=IMAGE, which deploy/build.sh builds; or "
            "--use_public_ips; or --install-on-workers, if the network of the workers "
            "reaches a package index, such as through Cloud NAT",
        )
    for path in (setup.setup_file, setup.requirements_file):
        if path is not None and not pathlib.Path(path).exists():
            raise InputError("no such file", where=path, cure="check the path")
    needed = None
    if isinstance(options, ConvertOptions) and options.map is not None:
        needed = "--map"
    elif isinstance(options, PackingOptions) and is_function(options.tokenizer or ""):
        needed = "--tokenizer"
    if needed and not (has_image(beam_options) or _sends(setup)):
        raise InputError(
            f"the workers do not have the module of {needed}",
            expected="a package or an image that contains it",
            cure="give --sdk_container_image of an image on top of gristmill's, or "
            "--setup_file or --extra_package of a package that contains it",
        )


def _sends(setup: SetupOptions) -> bool:
    return bool(setup.setup_file or setup.extra_packages or setup.requirements_file)


@contextlib.contextmanager
def sent_code(options: Options, beam_options: PipelineOptions) -> Iterator[None]:
    """Sends this package to workers whose image does not hold it.

    What the user sends goes along, installed after it.
    """
    setup = beam_options.view_as(SetupOptions)
    with tempfile.TemporaryDirectory(prefix="gristmill-") as directory:
        if not has_image(beam_options):
            extras = []
            if isinstance(options, PackingOptions) and options.tokenizer is not None:
                extras.append("gigatoken" if options.fast else "tokenizers")
            package = build_package(pathlib.Path(directory), extras=extras)
            setup.extra_packages = [str(package), *(setup.extra_packages or [])]
        debug = beam_options.view_as(DebugOptions)
        if _sends(setup) and _NO_ISOLATION not in (debug.experiments or []):
            debug.add_experiment(_NO_ISOLATION)
        yield


def build_package(
    directory: pathlib.Path, *, extras: Sequence[str] = ()
) -> pathlib.Path:
    """Makes a source distribution of the installed package.

    Args:
        directory: An empty directory.
        extras: What a job needs on the workers besides what all jobs do.

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
