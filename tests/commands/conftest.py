"""Commands that run in this process, as a shell would call them."""

from __future__ import annotations

import json
from typing import Any

from click.testing import CliRunner, Result

from gristmill.pipelines.commands.main import cli


def run(*arguments: object, code: int = 0, **environment: str) -> Result:
    """Runs a command line, which ends with an exit code."""
    words = [*map(str, arguments)]
    done = CliRunner().invoke(cli, words, env=environment, prog_name="gristmill")
    assert done.exit_code == code, done.output
    return done


def refused(*arguments: object, code: int = 2) -> str:
    """Returns the message of a command line that fails."""
    return run(*arguments, code=code).stderr


def json_of(*arguments: object) -> Any:
    """Returns the JSON that a command prints."""
    return json.loads(run(*arguments, "--json").stdout)


def rows_of(*arguments: object) -> list[dict[str, Any]]:
    """Returns the lines of JSON that a command prints."""
    return [*map(json.loads, run(*arguments, "--json").stdout.splitlines())]
