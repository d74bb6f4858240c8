"""What commands share: `--json`, messages of errors, and exit codes."""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

import click

from gristmill.dataset.lazy_names import packages_named
from gristmill.pipelines.commands.ending import exit_now

F = TypeVar("F", bound=Callable[..., Any])

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DAMAGED = 3
EXIT_INTERRUPTED = 130

EPILOG = (
    "Exit codes: 0 done; 1 failed (storage, a worker, the --map function); 2 wrong "
    "usage, inputs or options; 3 damaged input, shard or dataset; 130 interrupted."
)

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON."
)


def errors_reported(command: F) -> F:
    """Makes a command end with a message and an exit code where it raises an error.

    The message goes to standard error. With `--json`, standard output gets it too, as
    one JSON object.
    """

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        from gristmill.dataset.errors import GristmillError, WorkerDiedError

        try:
            with packages_named():
                return command(*args, **kwargs)
        except KeyboardInterrupt:
            exit_interrupted(as_json=bool(kwargs.get("as_json")))
        except GristmillError as e:
            click.echo(f"error: {e}", err=True)
            if kwargs.get("as_json"):
                print_error_json(type(e).__name__, **e.facts())
            if isinstance(e, WorkerDiedError):
                exit_now(EXIT_FAILED)
            sys.exit(_exit_code(e))

    return wrapped  # type: ignore[return-value]


def exit_interrupted(*, as_json: bool) -> NoReturn:
    """Ends the process after Ctrl-C."""
    cure = "run the same command again to do what is missing"
    click.echo(f"interrupted: {cure}", err=True)
    if as_json:
        print_error_json("KeyboardInterrupt", what="interrupted", cure=cure)
    exit_now(EXIT_INTERRUPTED)


def print_error_json(type_: str, **facts: str) -> None:
    """Prints an error as one JSON object. Fields that are not known are null."""
    names = ("what", "where", "expected", "got", "cure")
    fields = {"type": type_, **{name: facts.get(name) for name in names}}
    click.echo(json.dumps({"error": fields}, ensure_ascii=False))


def _exit_code(error: Exception) -> int:
    from gristmill.dataset import errors

    damaged = (
        errors.CorruptInputError,
        errors.CorruptShardError,
        errors.InvalidDatasetError,
        errors.NotADatasetError,
        errors.DataLossError,
    )
    if isinstance(error, damaged):
        return EXIT_DAMAGED
    usage = (errors.InputError, errors.JobChangedError, errors.MissingPackageError)
    if isinstance(error, usage):
        return EXIT_USAGE
    return EXIT_FAILED
