"""A command of click: the options of all commands, its errors and its end."""

from __future__ import annotations

import collections
import contextlib
import functools
import json
import os
import re
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import click

from gristmill import __version__
from gristmill.dataset.base import errors
from gristmill.dataset.base.lazy_names import packages_named
from gristmill.pipelines.commands.messages import COMMON, logged, tell

PATH = click.Path(readable=False)
"""A path, pattern or URL, which a shell completes to the name of a file."""

HOME = "home"
"""The attribute of an option that another command's help explains: its name."""

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_DAMAGED = 3
EXIT_INTERRUPTED = 130

EPILOG = (
    "Exit codes: 0 done; 1 failed (storage, a worker, the --map function); 2 wrong "
    "usage, inputs or options; 3 damaged input, shard or dataset, or not a dataset; "
    "130 interrupted.\n\n"
    "Options can be environment variables: GRISTMILL_CONVERT_GROUP_SIZE is "
    "--group-size of convert."
)
_DAMAGED = (
    errors.CorruptInputError,
    errors.CorruptShardError,
    errors.InvalidDatasetError,
    errors.NotADatasetError,
    errors.DataLossError,
)
_USAGE = (
    errors.InputError,
    errors.JobChangedError,
    errors.MissingPackageError,
    errors.OutOfRangeError,
    errors.StateMismatchError,
)

# Parts of help texts: limits of numbers, empty defaults, and defaults in words.
_NO = re.compile(r"; x>=[\d.]+|  \[default: \(none\)\]|  \[x>=[\d.]+\]")
_DEFAULT = re.compile(r"  \[default: \((.*)\)\]")
# An option of ours; those of Beam have underscores.
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*(?![\w=])")


def command(
    *, looks: bool = False, with_json: bool = True
) -> Callable[[Callable[[Any], None]], click.Command]:
    """Makes a function a command of its name, with the options that all commands have.

    The function gets the values of its options as attributes. An error of ours ends the
    command with a message on standard error and an exit code; with `--json`, standard
    output gets one JSON object too.

    Args:
        looks: Whether it only reads data, so that the reader of its output may stop.
        with_json: Whether it has `--json`.
    """

    def decorated(run: Callable[[Any], None]) -> click.Command:
        @functools.wraps(run)
        def called(**given: Any) -> None:
            common = {name: given.pop(name, None) for name in COMMON}
            with errors_reported(looks=looks, as_json=bool(common["as_json"])):
                run(types.SimpleNamespace(**given))

        made = click.command(run.__name__.replace("_", "-"), _Command)(called)
        made.params += COMMON_OPTIONS[0 if with_json else 1 :]
        return made

    return decorated


class _Command(click.Command):
    """A command whose help explains its own options, and lists those of others."""

    def format_options(
        self, ctx: click.Context, formatter: click.HelpFormatter
    ) -> None:
        """Writes the options; those that another command explains only by name."""
        own, shared = [], collections.defaultdict[str, list[str]](list)
        for parameter in self.get_params(ctx):
            home: str | None = getattr(parameter, HOME, self.name)
            if parameter.name in COMMON:
                home = "gristmill"
            if home != self.name:
                shared[str(home)].append(max(parameter.opts, key=len))
            elif isinstance(parameter, click.Option) and parameter.name != "help":
                names, help = parameter.get_help_record(ctx) or ("", "")
                own.append((names, _DEFAULT.sub(r"  [default: \1]", _NO.sub("", help))))
        with formatter.section("Options"):
            formatter.write_dl(own, col_max=26)
        with formatter.section("Options that the --help of another command explains"):
            formatter.write_dl(
                [(home, ", ".join(some)) for home, some in shared.items()]
            )


COMMON_OPTIONS = [
    click.Option(
        names,
        allow_from_autoenv=False,
        envvar="GRISTMILL" + names[0][1:].upper().replace("-", "_"),
        help=help,
        **about,
    )
    for names, help, about in (
        (("--json", "as_json"), "Print the result as JSON.", {"is_flag": True}),
        (
            ("--quiet", "-q"),
            "Print only errors and warnings to standard error.",
            {"is_flag": True},
        ),
        (
            ("--verbose", "-v"),
            "Also print each step to standard error, and where errors come from.",
            {"is_flag": True},
        ),
        (
            ("--log-file",),
            "Append the steps, with times, and all messages to this file.",
            {"metavar": "FILE", "type": PATH},
        ),
    )
]


def wants_json(arguments: Sequence[str]) -> bool:
    """Returns whether a command line that may be wrong asks for JSON."""
    said = os.environ.get("GRISTMILL_JSON", "").lower()
    return "--json" in arguments or said in ("1", "on", "t", "true", "y", "yes")


@contextlib.contextmanager
def errors_reported(*, looks: bool = False, as_json: bool = False) -> Iterator[None]:
    """Ends the process with a message and an exit code if the body raises an error.

    Args:
        looks: Whether the reader of standard output may stop.
        as_json: Whether standard output gets the error too.
    """
    try:
        with logged(), packages_named(), _system_errors(looks):
            yield
    except KeyboardInterrupt:
        exit_interrupted(as_json=as_json)
    except errors.GristmillError as e:
        if e.cure is not None:
            e.cure += _homes_of_options(e.cure)
        tell(f"error: {e.for_commands()}")
        if as_json:
            print_error_json(type(e).__name__, **e.facts())
        if isinstance(e, errors.WorkerDiedError):
            exit_now(EXIT_FAILED)
        sys.exit(exit_code_of(e))
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except Exception:
        tell(
            f"this is a fault of gristmill {__version__}: please report it, with the "
            "command, the text that follows, and what `gristmill doctor --json` prints"
        )
        raise


def exit_code_of(error: Exception) -> int:
    """Returns the exit code of a command that ended with an error."""
    if isinstance(error, _DAMAGED):
        return EXIT_DAMAGED
    return EXIT_USAGE if isinstance(error, _USAGE) else EXIT_FAILED


def _homes_of_options(cure: str) -> str:
    """Returns the commands that have a cure's options which the running one lacks.

    Code that reads data serves commands that make datasets, and those that look.
    """
    ctx = click.get_current_context(silent=True)
    group = ctx.parent.command if ctx is not None and ctx.parent is not None else None
    if ctx is None or not isinstance(group, click.Group):
        return ""

    def has(command: click.Command | None, option: str) -> bool:
        return command is not None and any(option in p.opts for p in command.params)

    text = ""
    for option in sorted(set(_OPTION.findall(cure))):
        if not has(ctx.command, option):
            names = [
                name
                for name in group.list_commands(ctx)
                if has(group.get_command(ctx, name), option)
            ]
            if names and not any(f"gristmill {name}" in cure for name in names):
                text += f" ({option} is an option of gristmill {', '.join(names)})"
    return text


def exit_interrupted(*, as_json: bool) -> NoReturn:
    """Ends the process after Ctrl-C."""
    cure = "run the same command again to do what is missing"
    tell(f"interrupted: {cure}")
    if as_json:
        print_error_json("KeyboardInterrupt", what="interrupted", cure=cure)
    exit_now(EXIT_INTERRUPTED)


def print_error_json(type_: str, **facts: str) -> None:
    """Prints an error as one JSON object, with null for unknown fields."""
    names = ("what", "where", "expected", "got", "cure")
    fields = {"type": type_, **{name: facts.get(name) for name in names}}
    try:
        click.echo(json.dumps({"error": fields}, ensure_ascii=False))
    except OSError:
        _give_up_stdout()  # The message for people has been printed.


@contextlib.contextmanager
def _system_errors(looks: bool) -> Iterator[None]:
    """Turns errors of the system into errors with a cure."""
    from gristmill.dataset.base.system import limits_named

    with limits_named():
        try:
            yield
        except OSError as e:
            if not is_of_print(e):
                raise
            if isinstance(e, BrokenPipeError) and looks:
                # `gristmill head | head -1` has seen what it wanted.
                _give_up_stdout()
                sys.exit()
            raise printing_failed(e) from e


def is_of_print(error: OSError) -> bool:
    """Returns whether an error was raised by printing a result."""
    frames = traceback.extract_tb(error.__traceback__)
    return frames[-1].filename == click.utils.__file__


def printing_failed(error: OSError) -> errors.GristmillError:
    """Returns the error to raise for an error of `is_of_print`; stops printing."""
    _give_up_stdout()
    return errors.StorageError(
        "cannot print the result to standard output",
        got=error.strerror or error,
        cure="print to a file or pipe that takes it; a command that makes or changes "
        "a dataset has done so: see it with `gristmill inspect DATASET`",
    )


def _give_up_stdout() -> None:
    """Drops unprinted output, which the interpreter would try to print at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_os_exit = os._exit


def exit_now(code: int) -> NoReturn:
    """Ends the process without waiting for threads that a runner may have left."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # It may be closed, or its reader gone.
            stream.flush()
    _os_exit(code)


@contextlib.contextmanager
def ending_in_time(*, patience_seconds: float = 5.0) -> Iterator[None]:
    """Ends the process soon after the body, whatever still runs in it.

    Python waits without a limit for threads that are not daemons, for processes of
    multiprocessing, and for atexit functions. The module of a --map function and its
    libraries can leave all of these. They can also call `os._exit`, which is an error
    before the end of the body.

    Args:
        patience_seconds: The time for what still runs.
    """
    process, code = os.getpid(), 1

    def exit_early(status: int) -> NoReturn:
        if os.getpid() == process:  # And not in one that was forked.
            tell(
                f"error: os._exit({status}) was called before the command was done\n"
                "  to do:    look for it in the --map function and the libraries that "
                "it uses; finished shards are kept"
            )
            exit_now(1)
        _os_exit(status)

    os._exit = exit_early
    try:
        yield
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
        raise
    finally:
        os._exit = _os_exit
        # Ctrl-C means not to wait, and would print tracebacks.
        signal.signal(signal.SIGINT, lambda *_: exit_now(code))
        end = threading.Timer(patience_seconds, _end, args=(code,))
        end.daemon = True
        with contextlib.suppress(RuntimeError):  # There may be room for no thread.
            end.start()


def _end(code: int) -> None:
    left = [
        f"the thread {thread.name}"
        for thread in threading.enumerate()
        if not thread.daemon and thread is not threading.main_thread()
    ]
    if multiprocessing := sys.modules.get("multiprocessing"):
        children = multiprocessing.active_children()
        left += [f"the process {child.pid}" for child in children]
    tell(
        "note: the command is done; its process was ended, as "
        f"{', '.join(left) or 'an atexit function'} did not end by itself"
    )
    exit_now(code)
