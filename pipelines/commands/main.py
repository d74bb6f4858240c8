"""The command line: finds the named command, and runs it.

Modules of commands import only click and the descriptions of options; the function of a
command imports everything else.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from gristmill import __version__
from gristmill.pipelines.commands.command import (
    COMMON_OPTIONS,
    EPILOG,
    EXIT_FAILED,
    ending_in_time,
    errors_reported,
    exit_interrupted,
    is_of_print,
    print_error_json,
    printing_failed,
    wants_json,
)
from gristmill.pipelines.commands.messages import tell

# Purpose -> command -> its module.
_SECTIONS = {
    "Get started": {"demo": "get_started", "doctor": "get_started"},
    "Prepare data": {
        "plan": "jobs",
        "convert": "jobs",
        "append": "jobs",
        "index": "jobs",
        "audit": "jobs",
        "pack": "jobs",
        "unique": "changes",
        "attach": "changes",
        "rollback": "changes",
        "clean": "changes",
        "remove": "changes",
    },
    "Check and look": {
        "verify": "jobs",
        "inspect": "inspection",
        "head": "inspection",
        "view": "view",
    },
    "Train": {
        "bench-loader": "bench_loader",
        "trace": "trace",
        "account": "trace",
    },
}
COMMANDS = {
    command: module
    for commands in _SECTIONS.values()
    for command, module in commands.items()
}


# Names that users may expect -> what to use instead.
_INSTEAD = {
    "diff": "Compare the digests that `gristmill inspect DATASET --edition N` prints",
    "status": "`gristmill inspect DATASET` says how far a job is",
    "blame": "`gristmill trace` finds the documents of a step's rows",
    "repack": "Pack the documents again, without those that were removed from them",
    "--check": "Leave it out: every shard is compared with what was read",
    "--records-per-shard": "Give --num-shards N or --shard-size SIZE",
    "--unique": "`gristmill unique DATASET` adds the column duplicate_of; then convert "
    "or pack it with --select 'duplicate_of < 0'",
    "--dry-run": "`gristmill plan` says what a conversion makes, and writes nothing",
}


def _hint(name: str) -> str:
    """Returns the cure for a name that does not exist, if it is known."""
    return f" {_INSTEAD[name]}." if name in _INSTEAD else ""


class _Commands(click.Group):
    """The commands, each imported when it is named."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return find_command(cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Finds the command; suggests the nearest name for one that does not exist."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as e:
            near = difflib.get_close_matches(args[0], COMMANDS, n=1)
            suggested = "".join(f" Did you mean '{name}'?" for name in near)
            what = e.message + suggested + _hint(args[0])
            raise click.UsageError(what, ctx) from e

    def format_commands(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Writes the commands with their short help, by purpose."""
        width = max(map(len, COMMANDS))
        limit = formatter.width - 6 - width  # As click does for one list.
        for section, names in _SECTIONS.items():
            commands = {name: self.get_command(ctx, name) for name in names}
            rows = [
                (name.ljust(width), command.get_short_help_str(limit))
                for name, command in commands.items()
                if command is not None
            ]
            with formatter.section(section):
                formatter.write_dl(rows)
        records = (option.get_help_record(ctx) for option in COMMON_OPTIONS)
        with formatter.section("Options of the commands"):
            formatter.write_dl([record for record in records if record])

    def main(self, *args: Any, **settings: Any) -> Any:
        """Runs a command line; with `--json`, wrong usage is printed as JSON too."""
        given = args[0] if args else settings.pop("args", None)
        arguments = list(sys.argv[1:] if given is None else given)
        settings["standalone_mode"] = False
        for stream in (sys.stdout, sys.stderr):
            # Names of files can have bytes that are not text.
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        try:
            sys.exit(super().main(arguments, **settings))
        except OSError as e:  # From --help and --version.
            if not is_of_print(e):
                raise
            tell(f"error: {printing_failed(e)}")
            sys.exit(EXIT_FAILED)
        except click.ClickException as e:
            if isinstance(e, click.NoSuchOption) and (hint := _hint(e.option_name)):
                e = click.UsageError(e.message + hint, e.ctx)
            with contextlib.suppress(OSError):
                e.show()
            what = e.format_message()
            if isinstance(e, click.BadParameter) and (variable := _variable(e)):
                tell(f"The value is from {variable}.")
                what += f" The value is from {variable}."
            if wants_json(arguments):
                print_error_json(type(e).__name__, what=what)
            sys.exit(e.exit_code)
        except click.Abort:  # Ctrl-C, while a command was imported.
            exit_interrupted(as_json=wants_json(arguments))


def find_command(name: str) -> click.Command | None:
    """Returns a command by its name, None if there is none."""
    if name not in COMMANDS:
        return None
    module = importlib.import_module(f"{__package__}.{COMMANDS[name]}")
    found: click.Command = getattr(module, name.replace("-", "_"))
    return found


def _variable(error: click.BadParameter) -> str | None:
    """Returns the environment variable of a wrong value, None if it is from none."""
    ctx, parameter = error.ctx, error.param
    if ctx is None or parameter is None or parameter.name is None:
        return None
    source = ctx.get_parameter_source(parameter.name)
    if source is not click.core.ParameterSource.ENVIRONMENT:
        return None
    own = parameter.envvar or f"{ctx.auto_envvar_prefix}_{parameter.name.upper()}"
    return str(own)


@click.group(
    cls=_Commands,
    epilog=EPILOG,
    context_settings={
        "auto_envvar_prefix": "GRISTMILL",
        "help_option_names": ["-h", "--help"],
        "show_default": True,
    },
)
@click.version_option(
    __version__, message="gristmill %(version)s", allow_from_autoenv=False
)
def cli() -> None:
    """Turn files of records into indexed ArrayRecord datasets, and train on them.

    gristmill COMMAND --help lists the options of a command.
    """


def main(argv: Sequence[str] | None = None) -> None:
    """Runs the command line.

    Args:
        argv: The arguments; by default those of this process, which then ends with the
            command.
    """
    if argv is not None:
        _run(list(argv))
    else:
        with ending_in_time():
            _run(sys.argv[1:])


def _run(arguments: list[str]) -> None:
    if arguments[:1] != ["bench-loader"]:
        # numpy's linear algebra would start a thread per core in every process. These
        # take address space, and 0.05 s of CPU when numpy is imported. A function that
        # bench-loader measures may need them.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    beam_options: list[str] = []
    if "--" in arguments:
        at = arguments.index("--")
        arguments, beam_options = arguments[:at], arguments[at + 1 :]
    given = any(argument.partition("=")[0] == "--runner" for argument in arguments)
    name = "".join(arguments[:1]).replace("-", "_").upper()
    runner = os.environ.get(f"GRISTMILL_{name}_RUNNER")
    if runner and not given:
        arguments = [*arguments[:1], f"--runner={runner}", *arguments[1:]]
    if runner or given:
        with errors_reported(as_json=wants_json(arguments)):
            from gristmill.pipelines.beam.pipeline_options import split_arguments

            command = find_command(arguments[0])
            arguments, beside = split_arguments(command, arguments)
            beam_options = beside + beam_options
    cli(arguments, prog_name="gristmill", obj=beam_options)
