"""Commands as tests of rows run them."""

from click.testing import CliRunner

from gristmill.pipelines.commands.main import cli


def run(command, *words, code=0):
    """Returns what a command line printed, and of one that fails also what it said."""
    done = CliRunner().invoke(cli, [*command.split(), *map(str, words)])
    assert done.exit_code == code, done.output
    return done.output if code else done.stdout
