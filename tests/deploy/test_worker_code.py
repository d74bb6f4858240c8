"""The code of workers: what is sent, that it installs there, and that a job runs."""

import contextlib
import importlib.metadata
import pathlib
import re
import shutil
import sys
import tarfile
import venv

import pytest
from apache_beam.internal import pickler
from packaging.requirements import Requirement

from gristmill.pipelines.dataflow.worker_code import build_package
from gristmill.transforms.beam import same_code
from tests.deploy import roles
from tests.deploy.cloud import job_of, run_staged, running
from tests.deploy.tools import run
from tests.support.distributions import ROOT, checked, setup_arguments, site

SETUP = setup_arguments()
FOLDERS = SETUP["package_dir"].values()
BUILD = """
import pathlib, sys
from gristmill.pipelines.dataflow.worker_code import build_package
print(build_package(pathlib.Path(sys.argv[1])))
"""


def checkout_modules():
    return {
        str(pathlib.Path(package.replace(".", "/")) / path.relative_to(ROOT / folder))
        for package, folder in SETUP["package_dir"].items()
        for path in (ROOT / folder).rglob("*.py")
    }


def content(package):
    """Returns the names in a source distribution, and what it requires."""
    with tarfile.open(package) as found:
        root = found.getnames()[0]
        names = {name.removeprefix(f"{root}/") for name in found.getnames()}
        file = found.extractfile(f"{root}/gristmill.egg-info/requires.txt")
        lines = file.read().decode().partition("\n[")[0].split()
    return names, {str(Requirement(line)) for line in lines}


def required(*extras):
    found = list(SETUP["install_requires"])
    for extra in ("beam", "gcs"):
        found += SETUP["extras_require"][extra]
    for extra in extras:
        for line in SETUP["extras_require"][extra]:
            name = Requirement(line).name
            found.append(f"{name}=={importlib.metadata.version(name)}")
    return {str(Requirement(line)) for line in found}


@pytest.mark.slow
def test_from_a_checkout_it_is_the_checkout(tmp_path):
    extras = ["gigatoken", "tokenizers"]
    names, needed = content(build_package(tmp_path, extras=extras))
    for folder in FOLDERS:
        sent = {n for n in names if n.startswith(f"{folder}/") and n.endswith(".py")}
        assert sent == {str(p.relative_to(ROOT)) for p in (ROOT / folder).rglob("*.py")}
    assert "dataset/arrayrecord/_compiled.c" in names
    assert needed == required(*extras)


def build_from(installed, folder):
    """Calls `build_package` of an installed copy, in a process that sees no other."""
    folder.mkdir()
    others = folder.with_name("others")
    others.mkdir()
    for path in pathlib.Path(pytest.__file__).parents[1].iterdir():
        if "gristmill" not in path.name:
            (others / path.name).symlink_to(path)
    env = {"PYTHONPATH": f"{installed}:{others}"}
    return run(sys.executable, "-S", "-c", BUILD, folder, env=env, cwd=folder)


@pytest.mark.slow
def test_from_a_wheel_it_is_built_of_what_is_installed(tmp_path):
    done = build_from(site(), tmp_path / "source")
    assert done.returncode == 0, done.stdout
    names, needed = content(done.stdout.split()[-1])
    assert {n for n in names if n.endswith(".py")} - {"setup.py"} == checkout_modules()
    assert needed == required()


@pytest.mark.slow
def test_without_metadata_it_is_refused(tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(site() / "gristmill", bare / "gristmill")
    # As an installation that pip does not know.
    done = build_from(bare, tmp_path / "source")
    assert done.returncode != 0
    assert "this copy of gristmill cannot be sent to workers" in done.stdout


def image(folder, *, ours):
    """Makes an environment like our image, or without gristmill; returns its Python.

    It links to the packages of this one: what pip installs there goes beside them.
    """
    lock = (ROOT / "deploy" / "requirements.lock").read_text("utf-8")
    held = folder / "held"
    held.mkdir(parents=True)
    for name in {*re.findall(r"^([\w.-]+)==", lock, re.MULTILINE), "pip", "setuptools"}:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found = importlib.metadata.distribution(name)
            tops = {file.parts[0] for file in found.files or ()}
            for top in tops - {"..", "__pycache__"}:
                path = pathlib.Path(found.locate_file(top))
                if path.exists() and not (held / top).exists():
                    (held / top).symlink_to(path)
    venv.create(folder / "venv", symlinks=True)
    (place,) = (folder / "venv").glob("lib/python*/site-packages")
    paths = [str(held), *([str(site())] if ours else [])]
    (place / "image.pth").write_text("\n".join(paths))
    return folder / "venv" / "bin" / "python"


def boot(python, staged, job, *, index):
    """Installs what was staged as Beam's boot program does, in its order."""
    folder = python.parents[2] / "staged"
    folder.mkdir()
    for name, data in staged.items():
        (folder / name).write_bytes(data)
    options = ["--quiet", "--no-compile", *([] if index else ["--no-index"])]
    if "pip_no_build_isolation" in job["environment"]["experiments"]:
        options.append("--no-build-isolation")
    pip = (python, "-m", "pip", "install", *options)
    if "requirements.txt" in staged:
        list_of = ("-r", "requirements.txt", "--find-links", ".")
        checked(*pip, "--no-index", "--no-deps", *list_of, cwd=folder)
        checked(*pip, *list_of, cwd=folder)
    for line in staged.get("extra_packages.txt", b"").decode().split():
        checked(*pip, "--upgrade", "--force-reinstall", "--no-deps", line, cwd=folder)
        checked(*pip, line, cwd=folder)
    if "workflow.tar.gz" in staged:
        checked(*pip, "workflow.tar.gz", cwd=folder)


OURS = "--sdk_container_image=us-docker.pkg.dev/my-project/gristmill/gristmill:1"
BEAMS = "--sdk_container_image=apache/beam_python3.11_sdk:2.77.0"
MAP = ("--map", "mymap:shout")
PUBLIC = "--use_public_ips"
CONVERT = ("convert", "gs://raw/texts/*", "gs://data/texts", "--num-shards=2")


GRISTMILL = "gristmill-0.1.0.tar.gz"
MYMAP = "mymap-1.tar.gz"
# Options of submissions whose workers have their code, of which {setup}, {sdist} and
# {requirements} are a module's; and what is staged for pip.
ROWS = {
    "image": ((OURS,), set()),
    "image, setup file": ((OURS, *MAP, "--setup_file={setup}"), {"workflow.tar.gz"}),
    "image, requirements file": (
        (OURS, *MAP, "--requirements_file={requirements}", "--requirements_cache=skip"),
        {"requirements.txt", MYMAP},
    ),
    "public, extra package": (
        (PUBLIC, BEAMS, *MAP, "--extra_package={sdist}"),
        {GRISTMILL, MYMAP},
    ),
    "reaching an index": (("--install-on-workers", BEAMS), {GRISTMILL}),
}


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of one's own: its setup.py, distribution and requirements file."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "mymap.py").write_text("def shout(record):\n    return record.upper()\n")
    (folder / "setup.py").write_text(
        "from setuptools import setup\n"
        'setup(name="mymap", version="1", py_modules=["mymap"],\n'
        '      install_requires=["gristmill"])\n'
    )
    command = (sys.executable, "setup.py", "-q", "sdist", "--dist-dir", "made")
    checked(*command, cwd=folder)
    package = folder / "made" / MYMAP
    (folder / "requirements.txt").write_text(f"{package}\n")
    monkeypatch.syspath_prepend(folder)
    return {
        "setup": str(folder / "setup.py"),
        "sdist": str(package),
        "requirements": str(folder / "requirements.txt"),
    }


@pytest.fixture
def cloud():
    with running() as services:
        yield services


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("arguments", "sent"), ROWS.values(), ids=ROWS)
def test_workers_install_what_is_staged_and_commit(
    cloud, module, tmp_path, arguments, sent
):
    given = [argument.format(**module) for argument in arguments]
    done = cloud.submit(*CONVERT, *given)
    assert done.code == 0, done.stderr
    job = job_of(cloud)
    staged = cloud.staged(job)
    # What pip is told, and none of Beam's own.
    other = {"pipeline.pb", "submission_environment_dependencies.txt"}
    assert set(staged) - other - {"extra_packages.txt"} == sent
    private = OURS in arguments
    python = image(tmp_path / "image", ours=private)
    boot(python, staged, job, index=not private)
    # With no more than the roles of deploy/iam.md.
    cloud.storage.objects.granted = roles.bucket_permissions("workers' service account")
    assert run_staged(staged["pipeline.pb"], python) == "DONE"
    cloud.storage.objects.granted = None
    here = (*CONVERT[:2], "gs://data/here/texts", *CONVERT[3:])
    upper = MAP if "--map" in arguments else ()
    assert cloud.gristmill(*here, *upper).code == 0
    assert cloud.files("gs://data/texts") == cloud.files("gs://data/here/texts")
    assert "NOT committed" not in cloud.gristmill("inspect", "gs://data/texts").stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_image_of_other_sources_says_so(cloud, tmp_path):
    """Functions that it does not have are not asked for before."""
    assert cloud.submit(*CONVERT, OURS).code == 0
    python = image(tmp_path / "image", ours=True)
    (place,) = python.parents[1].glob("lib/python*/site-packages")
    shutil.copytree(site() / "gristmill", place / "gristmill")
    old = place / "gristmill" / "transforms" / "beam" / "run_job.py"
    old.write_text(old.read_text().replace("begun_tasks", "list_tasks"))
    pipeline = cloud.staged(job_of(cloud))["pipeline.pb"]
    with pytest.raises(RuntimeError) as raised:
        run_staged(pipeline, python)
    said = str(raised.value)
    assert "the workers have another gristmill than made the pipeline" in said
    assert f"expected: {same_code.code_here()}" in said
    assert re.search(r"got: +gristmill 0\.1\.0, sources [0-9a-f]{12}", said)
    assert "deploy/build.sh" in said


def double(number, times):
    return 2 * number * times


@pytest.mark.parametrize("library", ["cloudpickle", "default"])
def test_a_function_is_called_where_the_sources_are_the_same(monkeypatch, library):
    pickler.set_library(library)
    sent = pickler.dumps(same_code.sent(double, 5))
    assert pickler.loads(sent)(2) == 20
    monkeypatch.setattr(same_code, "sources_digest", lambda: "other")
    with pytest.raises(RuntimeError, match=r"got: +gristmill \S+, sources other"):
        pickler.loads(sent)(2)
