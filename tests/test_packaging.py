"""What is built from the source tree installs, imports and is typed, however installed.

Each installation goes into a fresh virtual environment. The libraries that gristmill
requires are lent to it by this environment, and gristmill itself never is.
"""

import ast
import subprocess
import sys
import sysconfig
import tarfile
import zipfile

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.distributions import (
    CAN_COMPILE,
    FILES,
    FOLDERS,
    OFFLINE,
    ROOT,
    checked,
    copy_source,
    sdist,
    setup_arguments,
    wheel,
)
from tests.support.records import write_array_records


def make_environment(folder):
    """Makes a virtual environment that borrows libraries; returns its Python."""
    checked(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    (site,) = folder.glob("lib/python*/site-packages")
    # Python does not follow the .pth files of a folder that a .pth file names, so an
    # editable gristmill of this environment stays out. This environment may itself
    # borrow its libraries.
    borrowed = [path for path in sys.path if path.endswith("-packages")]
    (site / "borrowed.pth").write_text("\n".join(borrowed) + "\n")
    return python


@pytest.fixture
def source(tmp_path):
    """A copy of the source tree."""
    folder = tmp_path / "source"
    folder.mkdir()
    copy_source(folder)
    return folder


def install(python, what, *options, cwd):
    checked(
        *(python, "-m", "pip", "install", *OFFLINE),
        *("--ignore-installed", *options, what),
        cwd=cwd,
    )


def sources_of(folder):
    """Returns the names of the package files, as `dataset/metadata/manifest.py`."""
    paths = [path for name in FOLDERS for path in (folder / name).rglob("*")]
    page = folder / "pipelines" / "view" / "page"
    return {
        path.relative_to(folder).as_posix()
        for path in paths
        if path.suffix == ".py"
        or path.name == "py.typed"
        or (path.is_file() and page in path.parents)
    }


def test_every_package_is_typed_and_mapped():
    mapped = setup_arguments()["package_dir"].values()
    assert sorted(mapped) == sorted(FOLDERS)
    for name in FOLDERS:
        assert (ROOT / name / "py.typed").read_bytes() == b""


def test_every_folder_of_modules_is_a_package_with_a_sentence():
    sources = [name for name in sources_of(ROOT) if name.endswith(".py")]
    for folder in {(ROOT / name).parent for name in sources}:
        code = (folder / "__init__.py").read_text("utf-8")
        assert ast.get_docstring(ast.parse(code)), folder


def test_requirements_pin_what_setup_requires():
    arguments = setup_arguments()
    extras = arguments["extras_require"]
    wanted = [*arguments["install_requires"], *extras["beam"], *extras["gcs"]]
    wanted += extras["gigatoken"]
    ranges = {canonicalize_name(Requirement(r).name): Requirement(r) for r in wanted}
    lines = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    # The image's own: Beam imports it where a job asks for profiles.
    pins = [pin for pin in pins if pin.name != "google-cloud-profiler"]
    assert sorted(canonicalize_name(pin.name) for pin in pins) == sorted(ranges)
    for pin in pins:
        (specifier,) = pin.specifier
        required = ranges[canonicalize_name(pin.name)]
        assert specifier.operator == "=="
        assert required.specifier.contains(specifier.version), f"{pin}: {required}"
        assert pin.extras == required.extras


def test_every_requirement_is_bounded():
    arguments = setup_arguments()
    groups = [arguments["install_requires"], *arguments["extras_require"].values()]
    for requirement in [r for group in groups for r in group]:
        operators = {s.operator for s in Requirement(requirement).specifier}
        assert operators == {">=", "<"}, requirement


def test_dev_holds_every_extra():
    extras = setup_arguments()["extras_require"]
    for name in extras:
        assert set(extras[name]) <= set(extras["dev"])


@pytest.mark.slow
def test_sdist_holds_what_a_worker_builds_from():
    with tarfile.open(sdist()) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert sources_of(ROOT) | set(FILES) <= names
    assert not [name for name in names if name.startswith(("tests", "benchmarks"))]


@pytest.mark.slow
def test_wheel_holds_the_packages_alone():
    with zipfile.ZipFile(wheel()) as archive:
        names = {n for n in archive.namelist() if ".dist-info/" not in n}
    ours = {name.removeprefix("package/") for name in sources_of(ROOT)}
    ours |= {"dataset/arrayrecord/_compiled.abi3.so"} if CAN_COMPILE else set()
    assert names == {f"gristmill/{name}" for name in ours}
    assert wheel().name.endswith(f"-cp311-abi3-{platform_tag()}.whl")


def platform_tag():
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--config-settings=editable_mode=strict",)])
def test_installation_without_a_compiler(options, source, tmp_path, monkeypatch):
    """It is installed without its compiled part, and reads and compares the same."""
    monkeypatch.setenv("CC", "/bin/false")
    python = make_environment(tmp_path / "environment")
    install(
        python, source, *options, *(["--editable"] if options else []), cwd=tmp_path
    )
    path = tmp_path / "plain.array_record"
    records = [b"record %d" % number for number in range(50)]
    write_array_records(path, records)
    program = f"""
import pathlib
from gristmill import loader
from gristmill.dataset.arrayrecord import compiled
assert compiled.__file__.startswith({str(tmp_path)!r}), compiled.__file__
assert not compiled.is_compiled()
path = pathlib.Path({str(path)!r})
dataset = loader.open(path, cache_dir="")
assert dataset[[7, 3]] == [b"record 7", b"record 3"]
data = bytearray(path.read_bytes())
data[dataset.stored.offset_bytes(7) + 45] ^= 1
path.write_bytes(data)
try:
    loader.open(path, cache_dir="")[[7, 3]]
except ValueError as error:
    print(type(error).__name__, error.where)
"""
    printed = checked(python, "-c", program, cwd=tmp_path)
    assert printed.startswith("CorruptShardError"), printed
    assert "record 7 of" in printed


VERSION = "import gristmill; print(gristmill.__version__)"
IMPORT = """\
import importlib
import sys

for name in sys.argv[1:]:
    print(importlib.import_module(name).__file__)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sdist", "wheel", "folder"])
def test_installation_imports_and_starts(kind, source, tmp_path):
    what = {"sdist": sdist, "wheel": wheel, "folder": lambda: source}[kind]()
    python = make_environment(tmp_path / "environment")
    install(python, what, cwd=tmp_path)
    # Nothing at the root of the repository shadows what is installed.
    for cwd in (tmp_path, ROOT):
        names = setup_arguments()["packages"]
        printed = checked(python, "-c", IMPORT, *names, cwd=cwd)
        # Installed here, not found in the environment that lends its libraries.
        found = [line.startswith(str(tmp_path)) for line in printed.splitlines()]
        assert found == [True] * len(names), printed
        for command in (["-m", "gristmill"], [python.parent / "gristmill"]):
            assert "Usage" in checked(python, *command, "--help", cwd=cwd)
    version = checked(python, "-c", VERSION, cwd=tmp_path)
    assert version.splitlines()[-1] == setup_arguments()["version"]


READ_ALL = """\
from gristmill import loader

dataset = loader.open("data/demo")
batches = loader.global_batches(dataset, batch_size=64)
decode = loader.ExampleDecoder({"id": loader.FixedFeature("int32")})
with batches.feed(decode=decode, host=(0, 1)) as feed:
    print(len(next(feed)["id"]))
"""


@pytest.mark.slow
def test_oldest_versions_that_are_admitted(source, tmp_path):
    """NumPy 1.26 was admitted for long, and packed rows wrongly with it."""
    python = tmp_path / "oldest" / "bin" / "python"
    uv = (sys.executable, "-m", "uv")
    checked(*uv, "venv", "--python", sys.executable, "oldest", cwd=tmp_path)
    checked(
        *(*uv, "pip", "install", "--python", python),
        *("--resolution", "lowest-direct"),
        *(f"gristmill[loader,tokenizers] @ {source.as_uri()}",),
        cwd=tmp_path,
    )
    commands = [
        ["demo", "data"],
        ["verify", "data/demo"],
        [
            *("pack", "data/demo", "data/rows", "--tokenizer", "data/tokenizer.json"),
            *("--eos", "</s>", "--length", "512"),
        ],
        ["verify", "data/rows"],
        ["view", "data/rows", "--html", "view.html"],
    ]
    for command in commands:
        checked(python, "-m", "gristmill", *command, cwd=tmp_path)
    assert checked(python, "-c", READ_ALL, cwd=tmp_path).split()[-1] == "64"


SNIPPET = """\
from gristmill import __version__

wrong: int = __version__
"""


@pytest.mark.slow
def test_editable_installation_follows_edits_and_is_typed(source, tmp_path):
    python = make_environment(tmp_path / "environment")
    options = ("--config-settings", "editable_mode=strict", "--editable")
    install(python, source, *options, cwd=tmp_path)
    (source / "package" / "__init__.py").write_text('__version__ = "9.9.9"\n')
    for cwd in (tmp_path, ROOT):
        assert checked(python, "-c", VERSION, cwd=cwd).strip() == "9.9.9"
        assert "9.9.9" in checked(python, "-m", "gristmill", "--version", cwd=cwd)
    assert "Usage" in checked(python.parent / "gristmill", "--help", cwd=tmp_path)

    (tmp_path / "snippet.py").write_text(SNIPPET)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "snippet.py"),
            *("--python-executable", str(python)),
            *("--cache-dir", str(tmp_path / "cache")),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert 'has type "str", variable has type "int"' in done.stdout, done.stdout
    assert "Found 1 error in 1 file" in done.stdout
