"""What may import what: one way between the packages, and nothing heavy by surprise."""

import ast
import importlib.metadata
import importlib.util
import json
import pathlib
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[1]

# Package -> packages of ours that it may import, and setup.py's extras that it may use.
ALLOWED = {
    "dataset": ({"dataset"}, {"gcs"}),
    "transforms": ({"dataset", "transforms"}, {"beam", "gcs", "tf"}),
    "loader": ({"dataset", "loader"}, {"gcs", "loader", "metrics"}),
    "pipelines": (
        {"dataset", "loader", "pipelines", "transforms"},
        {"beam", "gcs", "loader", "tf"},
    ),
}
# Packages that must not come in with any module of ours, directly or through another.
FOREIGN = {
    "dataset": {"apache_beam", "grain", "jax", "tensorflow", "tensorflow_datasets"},
    "transforms": {"grain", "jax"},
    "loader": {"apache_beam", "tensorflow", "tensorflow_datasets"},
}
HEAVY = {
    "apache_beam",
    "array_record",
    "grain",
    "jax",
    "matplotlib",
    "numpy",
    "tensorflow",
    "tensorflow_datasets",
}


def modules_of(package: str) -> list[str]:
    names = [".".join(path.parts) for path in relative_stems(package)]
    assert names, f"{package}/ holds no module"
    return [f"gristmill.{package}", *(f"gristmill.{package}.{name}" for name in names)]


def relative_stems(package: str) -> Iterator[pathlib.Path]:
    for path in sorted((ROOT / package).rglob("*.py")):
        if path.name != "__init__.py":
            yield path.relative_to(ROOT / package).with_suffix("")


def loaded_after(code: str) -> set[str]:
    """Runs code in a fresh interpreter and returns the top-level modules it loaded."""
    report = "\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code + report],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    modules = json.loads(done.stdout.splitlines()[-1])
    return {name.partition(".")[0] for name in modules}


def imports_of(source: str, package: str) -> Iterator[tuple[int, str]]:
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


def package_imports(package: str) -> Iterator[tuple[str, str]]:
    """Yields (place, absolute module) of every import in a package of ours."""
    for path in sorted((ROOT / package).rglob("*.py")):
        inside = [package, *path.relative_to(ROOT / package).parts[:-1]]
        source = path.read_text(encoding="utf-8")
        for line, module in imports_of(source, ".".join(["gristmill", *inside])):
            yield f"{path.relative_to(ROOT)}:{line}", module


def setup_arguments() -> dict[str, Any]:
    """Returns what setup.py hands to setuptools."""
    captured: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("setuptools.setup", lambda **kwargs: captured.update(kwargs))
        runpy.run_path(str(ROOT / "setup.py"))
    return captured


def normalized(requirement: str) -> str:
    name = re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0]
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import gristmill.loader as x", ["gristmill.loader"]),
        ("from gristmill import loader", ["gristmill.loader"]),
        ("from gristmill.loader import y", ["gristmill.loader.y"]),
        ("from ..loader import y", ["gristmill.loader.y"]),
        ("from . import y", ["gristmill.dataset.y"]),
        ("def f():\n  import jax.numpy, os", ["jax.numpy", "os"]),
    ],
)
def test_import_finder_sees_every_form(source: str, expected: list[str]) -> None:
    assert [name for _, name in imports_of(source, "gristmill.dataset")] == expected


@pytest.mark.parametrize("package", ALLOWED)
def test_packages_import_one_way(package: str) -> None:
    ours, _ = ALLOWED[package]
    wrong = [
        f"{place} imports {module}"
        for place, module in package_imports(package)
        if module.startswith("gristmill.")
        and module.split(".")[1] not in {*ours, "__version__"}
    ]
    assert wrong == []


@pytest.mark.parametrize("package", ALLOWED)
def test_third_party_imports_are_declared(package: str) -> None:
    _, extras = ALLOWED[package]
    arguments = setup_arguments()
    declared = [*arguments["install_requires"]]
    for extra in extras:
        declared += arguments["extras_require"][extra]
    declared_names = {normalized(requirement) for requirement in declared}
    distributions = importlib.metadata.packages_distributions()
    wrong = []
    for place, module in package_imports(package):
        top = module.partition(".")[0]
        if top in sys.stdlib_module_names or top in {"__future__", "gristmill"}:
            continue
        # A namespace such as google belongs to many distributions.
        owners = {normalized(name) for name in distributions.get(top, [])}
        if not owners & declared_names:
            wrong.append(f"{place} imports {module}, which setup.py does not require")
    assert wrong == []


@pytest.mark.parametrize("package", FOREIGN)
def test_modules_bring_in_nothing_foreign(package: str) -> None:
    code = "\n".join(f"import {name}" for name in modules_of(package))
    assert loaded_after(code) & FOREIGN[package] == set()


@pytest.mark.parametrize("arguments", [["--help"], ["convert", "--help"]])
def test_help_starts_without_heavy_imports(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        f"sys.argv = ['gristmill', *{arguments!r}]\n"
        "from gristmill.pipelines.commands.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as e:\n    assert not e.code, e.code\n"
    )
    assert loaded_after(code) & HEAVY == set()


@pytest.mark.parametrize("package", ALLOWED)
def test_package_import_is_lazy_about_heavy_optional_libraries(package: str) -> None:
    # TensorFlow alone takes seconds: nobody who imports a package asked for it.
    loaded = loaded_after(f"import gristmill.{package}")
    assert loaded & {"tensorflow", "tensorflow_datasets", "matplotlib"} == set()
