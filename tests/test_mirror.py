"""The tests mirror the packages: each module has a test file, with quick tests in it.

That of `loader/feed/state.py` is `tests/loader/feed/test_state.py`, or the one that
names it at the end of its docstring: `Covers: loader/feed/state.py, ...`.
"""

import ast
import functools
import pathlib
import re

ROOT = pathlib.Path(__file__).parents[1]
PACKAGES = ("dataset", "loader", "package", "pipelines", "transforms")
MODULES = sorted(
    path.relative_to(ROOT).as_posix()
    for package in PACKAGES
    for path in (ROOT / package).rglob("*.py")
    if path.name != "__init__.py"
)
TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


@functools.cache
def parsed(test: pathlib.Path) -> tuple[str, bool]:
    """Returns the docstring of a file, and whether some test of it is not slow."""
    module = ast.parse(test.read_text(encoding="utf-8"))
    return ast.get_docstring(module) or "", has_quick_tests(module.body)


def covered_by(test: pathlib.Path) -> list[str]:
    """Returns the modules that a test file covers: that at its path, those it names."""
    path = test.relative_to(ROOT / "tests")
    mirrored = (path.parent / path.name.removeprefix("test_")).as_posix()
    text, _ = parsed(test)
    named = re.search(r"^Covers: ([^.]+\.py(,\s+[^.]+\.py)*)\.$", text, re.MULTILINE)
    assert named or not re.search("^Covers:", text, re.MULTILINE), test
    names = re.split(r",\s+", named[1]) if named else []
    covered = [*([mirrored] if mirrored in MODULES else []), *names]
    assert len(set(covered)) == len(covered), test
    return covered


def is_slow(node: ast.stmt) -> bool:
    decorators = getattr(node, "decorator_list", [])
    return any(ast.unparse(each) == "pytest.mark.slow" for each in decorators)


def has_quick_tests(body: list[ast.stmt]) -> bool:
    """Returns whether some test of a file is not marked slow."""
    assigned = [ast.unparse(node) for node in body if isinstance(node, ast.Assign)]
    if "pytestmark = pytest.mark.slow" in assigned:
        return False
    classes = [node for node in body if isinstance(node, ast.ClassDef)]
    methods = [node for each in classes if not is_slow(each) for node in each.body]
    return any(
        isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not is_slow(node)
        for node in [*body, *methods]
    )


def test_every_module_has_quick_tests() -> None:
    quick = {name for test in TESTS if parsed(test)[1] for name in covered_by(test)}
    missing = [module for module in MODULES if module not in quick]
    assert not missing, "no test file has their path or names them after `Covers:`"


def test_every_test_of_a_package_covers_modules_that_exist() -> None:
    for test in TESTS:
        modules = covered_by(test)
        if test.relative_to(ROOT / "tests").parts[0] in PACKAGES:
            assert modules, f"{test}: no module has its path; name some: `Covers:`"
        assert set(modules) <= set(MODULES), test


def test_only_files_of_tests_mark_tests_as_slow() -> None:
    # For the slow tests, .ci/run reads the files of tests that hold this word alone.
    conftest = ROOT / "tests" / "conftest.py"
    others = {*(ROOT / "tests").rglob("*.py")} - {*TESTS, conftest}
    assert [path for path in others if "mark.slow" in path.read_text("utf-8")] == []
    # And those that ask for the fixture of conftest, by these words.
    assert conftest.read_text("utf-8").count("mark.slow") == 1
    asks = re.compile(r"def test_\w+\([^)]*\boutput\b")
    said = re.compile(r"\b(slow|output: str|def output)\b|\"output\"")
    for test in TESTS:
        text = test.read_text("utf-8")
        assert said.search(text) or not asks.search(text), test
