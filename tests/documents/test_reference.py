"""Pages of docs/reference list all options, metrics and variables."""

import ast
import re

from gristmill.pipelines.commands.main import COMMANDS
from gristmill.transforms.beam import run_job
from tests.support.distributions import ROOT

FOLDER = ROOT / "docs" / "reference"
PACKAGES = ("dataset", "loader", "package", "pipelines", "transforms")
# Types of parameters, and options of all commands, which cli.md lists, are none.
_NONE = "GCS_(?:READ|WRITE)|GRISTMILL_(?:JSON|LOG_FILE|QUIET|VERBOSE)$"
_LIKE_A_VARIABLE = re.compile(rf"(?!{_NONE})(?:[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+|TMPDIR)")


def page(name):
    return (FOLDER / name).read_text("utf-8")


def test_every_command_has_a_row():
    text = page("cli.md")
    for name in COMMANDS:
        assert re.search(rf"\| \[?`{name}[`\]]", text), name


def test_the_table_of_metrics_is_what_the_code_says():
    rows = [
        f"| `{name}` | {kind} | {text.replace('|', chr(92) + '|')}. |"
        for kind, metrics in (
            ("counter", run_job.COUNTERS),
            ("distribution", run_job.DISTRIBUTIONS),
        )
        for name, text in metrics.items()
    ]
    table = "\n".join(rows)
    assert f"--- |\n{table}\n" in page("metrics.md"), f"it must have:\n{table}"


def variables_in(source):
    """Yields texts of a module that may be variables, if it uses the environment."""
    if "environ" not in source and "getenv" not in source and "envvar" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        text = node.value if isinstance(node, ast.Constant) else None
        if isinstance(text, str) and _LIKE_A_VARIABLE.fullmatch(text):
            yield text


def test_every_variable_of_the_environment_is_listed():
    found = {
        name
        for package in PACKAGES
        for path in sorted((ROOT / package).rglob("*.py"))
        for name in variables_in(path.read_text("utf-8"))
    }
    listed = re.findall(r"^\| `(\w+)` \|", page("environment.md"), re.MULTILINE)
    # Libraries read these.
    theirs = {"GOOGLE_APPLICATION_CREDENTIALS", "NO_COLOR", "TMPDIR"}
    assert sorted(listed) == sorted({*found, *theirs})
