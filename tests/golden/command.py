"""Runs the command `gristmill` in this process, as its entry point does."""

import contextlib
import importlib.metadata
import io
from typing import Any


def gristmill(*arguments: object) -> str:
    """Runs a command that must succeed, and returns what it prints."""
    (command,) = importlib.metadata.entry_points(
        group="console_scripts", name="gristmill"
    )
    main: Any = command.load()
    out, told = io.StringIO(), io.StringIO()
    code: object = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(told):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            code = end.code
    assert not code, f"{arguments} ended with {code}: {told.getvalue()}"
    return out.getvalue()
