"""Commands that run in this process, as a shell would call them."""

import json

from click.testing import CliRunner

from gristmill.pipelines.commands.main import cli


def run(*arguments, code=0, **environment):
    """Runs a command line, which ends with an exit code."""
    words = [*map(str, arguments)]
    done = CliRunner().invoke(cli, words, env=environment, prog_name="gristmill")
    assert done.exit_code == code, done.output
    return done


def refused(*arguments, code=2):
    """Returns the message of a command line that fails."""
    return run(*arguments, code=code).stderr


def json_of(*arguments):
    """Returns the JSON that a command prints."""
    return json.loads(run(*arguments, "--json").stdout)


def rows_of(*arguments):
    """Returns the lines of JSON that a command prints."""
    return [*map(json.loads, run(*arguments, "--json").stdout.splitlines())]
