"""Commands that run in this process, as a shell would call them."""

import json
import shlex

from click.testing import CliRunner

from gristmill.pipelines.commands.main import cli


def run(line, *words, code=0, **environment):
    """Runs a command line, which ends with an exit code.

    Args:
        line: It, without the program.
        *words: Those that follow, as they are.
        code: The exit code.
        **environment: Variables.
    """
    words = [*shlex.split(line), *map(str, words)]
    given = {"env": environment, "prog_name": "gristmill", "obj": []}
    done = CliRunner().invoke(cli, words, **given)
    assert done.exit_code == code, done.output
    return done


def refused(line, *words, code=2):
    """Returns the message of a command line that fails."""
    return run(line, *words, code=code).stderr


def json_of(line, *words):
    """Returns the JSON that a command prints."""
    return json.loads(run(line, *words, "--json").stdout)


def rows_of(line, *words):
    """Returns the lines of JSON that a command prints."""
    return [*map(json.loads, run(line, *words, "--json").stdout.splitlines())]
