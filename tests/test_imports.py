"""What may import what: one way between the packages, and nothing heavy by surprise."""

import ast
import collections
import functools
import graphlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import pickle
import re
import subprocess
import sys

import grimp
import packaging.requirements
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.dataset.base.errors import MissingPackageError
from gristmill.transforms.conversion.commit_shards import MakeShards
from tests.support.distributions import ROOT, setup_arguments

MOST_MODULES = 20  # In a folder.

# Package -> setup.py's extras that it may use.
EXTRAS = {
    "dataset": {"gcs", "parquet"},
    "transforms": {"beam", "gcs", "gigatoken", "parquet", "tf", "tokenizers"},
    "loader": {"gcs", "loader"},
    "pipelines": {"beam", "gcs", "loader", "parquet", "tf"},
}
# Inside a package, and users of its face as any other; its layers import none.
USERS = {"gristmill.loader.maxtext"}


def modules_of(package):
    names = [".".join(path.parts) for path in relative_stems(package)]
    assert names, f"{package}/ holds no module"
    return [f"gristmill.{package}", *(f"gristmill.{package}.{name}" for name in names)]


def relative_stems(package):
    for path in sorted((ROOT / package).rglob("*.py")):
        if path.name != "__init__.py":
            yield path.relative_to(ROOT / package).with_suffix("")


def imports_of(source, package):
    """Yields (line, absolute module) of every import, in functions too."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            name = "." * node.level + (node.module or "")
            module = importlib.util.resolve_name(name, package)
            # `from gristmill import loader` names the package only here.
            for alias in node.names:
                yield node.lineno, f"{module}.{alias.name}"


def package_imports(package):
    """Yields (place, absolute module) of every import in a package of ours."""
    for path in sorted((ROOT / package).rglob("*.py")):
        inside = [package, *path.relative_to(ROOT / package).parts[:-1]]
        source = path.read_text("utf-8")
        for line, module in imports_of(source, ".".join(["gristmill", *inside])):
            yield f"{path.relative_to(ROOT)}:{line}", module


def normalized(requirement):
    name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


def python(*arguments, **options):
    """Runs Python in a process of its own; returns the output."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


packages_distributions = functools.cache(importlib.metadata.packages_distributions)


@functools.cache
def import_graph():
    """Returns which module imports which, type checkers and functions included."""
    return grimp.build_graph("gristmill", cache_dir=None)


@pytest.mark.slow
def test_imports_keep_the_layers():
    # pyproject.toml has the layers, under [tool.importlinter]. In a process of its own,
    # for the linter sets up logging for itself.
    code = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    python("-c", code, "--no-cache", cwd=ROOT)


@pytest.mark.parametrize("package", EXTRAS)
def test_modules_do_not_import_the_face_of_their_package(package):
    # It imports them.
    face = f"gristmill.{package}"
    graph = import_graph()
    importers = graph.find_modules_that_directly_import(face)
    users = tuple(f"{user}." for user in USERS)
    inside = [name for name in sorted(importers) if name.startswith(f"{face}.")]
    assert [name for name in inside if not name.startswith(users)] == []


@pytest.mark.parametrize("user", sorted(USERS))
def test_users_inside_a_package_use_its_face_alone(user):
    graph = import_graph()
    own = graph.find_descendants(user)
    assert own
    imported = {
        name
        for module in own
        for name in graph.find_modules_directly_imported_by(module)
    }
    package = user.rpartition(".")[0]
    within = {name for name in imported if name.startswith(f"{package}.")}
    assert within - own - {user} == set()


@pytest.mark.parametrize("package", EXTRAS)
def test_folders_hold_few_modules(package):
    counts = collections.Counter(str(s.parent) for s in relative_stems(package))
    assert {folder: n for folder, n in counts.items() if n > MOST_MODULES} == {}


def test_folders_form_no_circle():
    # The linter compares neither modules that lie loose in a folder with the folders
    # beside them, nor folders of different depth.
    graph = import_graph()
    folders = {
        name: str(stem.parent)
        for package in EXTRAS
        for stem in relative_stems(package)
        for name in [f"gristmill.{package}." + ".".join(stem.parts)]
        for stem in [pathlib.Path(package) / stem]
    }
    used = collections.defaultdict(set)
    for name, folder in folders.items():
        for imported in graph.find_modules_directly_imported_by(name):
            used[folder].add(folders.get(imported, folder))
    for folder, others in used.items():
        others.discard(folder)
    graphlib.TopologicalSorter(used).prepare()  # Raises CycleError, which names them.


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("package", EXTRAS)
def test_third_party_imports_are_declared(package):
    arguments = setup_arguments()
    declared = [*arguments["install_requires"]]
    for extra in EXTRAS[package]:
        declared += arguments["extras_require"][extra]
    declared_names = {normalized(requirement) for requirement in declared}
    distributions = packages_distributions()
    wrong = []
    for place, module in package_imports(package):
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names or top in {"__future__", "gristmill"}:
            continue
        if place.startswith("loader/maxtext/") and top == "maxtext":
            continue  # Imported in functions, where it is installed already.
        # A namespace such as google belongs to many distributions.
        owners = {normalized(name) for name in distributions.get(top, [])}
        if not owners & declared_names:
            wrong.append(f"{place} imports {module}, which setup.py does not require")
    assert wrong == []


def core_distributions():
    """Returns what `pip install gristmill` installs, without an extra."""
    wanted = [*setup_arguments()["install_requires"]]
    found = set()
    while wanted:
        required = packaging.requirements.Requirement(wanted.pop())
        name, extras = normalized(required.name), required.extras or {""}
        if name in found:
            continue
        found.add(name)
        for each in importlib.metadata.requires(name) or ():
            marker = packaging.requirements.Requirement(each).marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in extras):
                wanted.append(each)
    return found


@pytest.mark.slow
def test_conversion_and_verification_run_without_optional_packages(tmp_path):
    core = core_distributions()
    missing = [
        name
        for name, owners in packages_distributions().items()
        if not {normalized(owner) for owner in owners} & {*core, "gristmill"}
    ]
    assert {"apache_beam", "jax", "jinja2", "pyarrow"} <= {*missing}
    (tmp_path / "sitecustomize.py").write_text(
        f"import sys\nfor name in {missing!r}:\n    sys.modules[name] = None\n"
    )
    for arguments in (["demo", "made"], ["verify", "made/demo"], ["doctor"]):
        env = {**os.environ, "PYTHONPATH": str(tmp_path)}
        python("-m", "gristmill", *arguments, cwd=tmp_path, env=env)


@pytest.mark.slow
def test_packages_of_extras_say_how_to_install_them():
    arguments = setup_arguments()
    optional = {
        normalized(requirement)
        for package in EXTRAS
        for extra in EXTRAS[package]
        for requirement in arguments["extras_require"][extra]
    } - core_distributions()
    imported = {
        module.partition(".")[0]
        for package in EXTRAS
        for _, module in package_imports(package)
    }
    unnamed = [
        top
        for top in imported
        if {normalized(n) for n in packages_distributions().get(top, [])} & optional
        and MissingPackageError.of(ModuleNotFoundError(name=top)) is None
    ]
    assert sorted(unnamed) == []


RUN = """
import sys
from gristmill.pipelines.commands.main import main
sys.argv[1:] = {arguments!r}
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
"""
FIRST_RECORDS = """
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.source import first_records
assert len([*first_records(find_inputs([{path!r}]))]) == 2
"""
HEAVY = {
    *("apache_beam", "array_record", "grain", "jax", "matplotlib", "numpy"),
    *("pyarrow", "rich", "tensorflow", "tensorflow_datasets"),
}
# Packages that no module brings in, directly or through another.
FOREIGN = {
    "dataset": {
        *("apache_beam", "grain", "jax", "pyarrow"),
        *("tensorflow", "tensorflow_datasets"),
    },
    "transforms": {"grain", "jax"},
    "loader": {"apache_beam", "tensorflow", "tensorflow_datasets"},
}
SLOW = {"tensorflow", "tensorflow_datasets", "matplotlib"}


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        pytest.param(RUN.format(arguments=["--help"]), HEAVY, id="help"),
        pytest.param(
            RUN.format(arguments=["convert", "--help"]), HEAVY, id="convert-help"
        ),
        pytest.param(  # `np.unique` without its indices would import numpy.ma.
            RUN.format(arguments=["convert", "in.jsonl", "out", "--workers=1"]),
            {"numpy.ma", "pandas"},
            id="convert",
        ),
        pytest.param(
            "import gristmill.transforms.conversion.make_shards",
            {"gristmill.pipelines"},
            id="worker-of-a-conversion",
        ),
        *(
            pytest.param(FIRST_RECORDS.format(path=path), {"pandas"}, id=path)
            for path in ("in.jsonl", "in.parquet")
        ),
        *(
            pytest.param(f"import gristmill.{package}", SLOW, id=f"face-of-{package}")
            for package in EXTRAS
        ),
        *(
            pytest.param(
                "\n".join(f"import {name}" for name in modules_of(package)),
                FOREIGN[package],
                id=f"all-of-{package}",
                marks=pytest.mark.slow,
            )
            for package in FOREIGN
        ),
    ],
)
def test_nothing_heavy_is_imported(code, absent, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        {"n": None, "f": [0.5], "s": "a", "b": True},
        {"n": 1, "f": None, "s": None, "b": None},
    ]
    pq.write_table(pa.Table.from_pylist(rows), "in.parquet")
    pathlib.Path("in.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    report = "\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    printed = python("-c", code + report)
    assert absent & {*json.loads(printed.splitlines()[-1])} == set()


def test_processes_of_a_conversion_unpickle_one_module():
    found = re.findall(rb"gristmill[\w.]+", pickle.dumps(MakeShards(jobs=()).step))
    assert found == [b"gristmill.transforms.conversion.make_shards"]
