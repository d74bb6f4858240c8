"""Writes docs/reference/errors.md: `python -m docs.make_errors`.

Its examples are provoked by the cases of tests/support/error_catalogue.py. The site
adds tables of the other messages, which docs/site_errors.py finds in the code.
"""

from __future__ import annotations

import inspect
import pathlib
import tempfile

from docs.make_reference import rows
from docs.site_errors import ROOT, classes, messages
from tests.support.error_catalogue import CASES, WITHIN, Case

PAGE = ROOT / "docs" / "reference" / "errors.md"
_ABOUT = """\
# Errors

Every error of gristmill derives from `gristmill.dataset.GristmillError` and from the
builtin that fits. Its message says what is wrong, where, what was expected, what was
there, and what to do. The attributes `what`, `where`, `expected`, `got` and `cure` have
the same by name, and commands print them as JSON with `--json`; the exit codes are in
[the command line](cli.md#exit-codes).

To find a message, paste it into the search of the site as it is; on GitHub, search this
page for its first line, without names and numbers. The examples were provoked by a test
and show the messages as they were; `/data` is the folder of the test. On the site,
tables have all other messages, with `…` for what differs, and what to do.

"""


def example(case: Case, message: str) -> str:
    """Returns what the page says of an error that was provoked."""
    what, _, _ = message.partition("\n")
    return f"### {_heading(what)}\n\n{case.cause}\n\n```text\n{message}\n```"


def _heading(what: str) -> str:
    return what.replace("*", r"\*").replace("_", r"\_").replace("<", r"\<")


def page(shown: dict[str, str]) -> str:
    """Returns the page, given the messages that cases provoked by their names."""
    parts = [_ABOUT.rstrip()]
    within = []
    for kind in classes():
        about = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]
        if kind in WITHIN:
            within.append([f"`{kind.__name__}`", about, WITHIN[kind]])
            continue
        parts += [f"## {kind.__name__}", about]
        parts += [
            example(case, shown[case.name]) for case in CASES if case.kind is kind
        ]
        if kind.__name__ in messages():
            parts += [
                f"### All messages of {kind.__name__}",
                f"<!-- messages: {kind.__name__} -->\n(The site lists them here.)",
            ]
    parts += [
        "## Within",
        "These classes are public, and no command or method ends with them.",
        rows("class | what it is | what becomes of it", within),
    ]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    """Provokes all errors and writes the page."""
    shown = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            shown[case.name] = case.message(pathlib.Path(folder))
    PAGE.write_text(page(shown), encoding="utf-8")


if __name__ == "__main__":
    main()
