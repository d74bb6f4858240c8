"""Messages on standard error beside errors, and the options that all commands have."""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from gristmill import __version__

_PATHS = ("FILE", "DIR")

if TYPE_CHECKING:
    from gristmill.transforms.tokens.tokenizers.token_texts import TokenTexts

    _TextType = click.ParamType[str]
else:
    _TextType = click.ParamType  # Of earlier releases, which it is not generic in.


class _Path(_TextType):
    """A path or pattern, which a shell completes to the name of a file."""

    name = "text"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]


def _remember(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    ctx.meta[f"{__name__}.{param.name}"] = value


def said(name: str) -> Any:
    """Returns the value of a common option of the command that runs, None if none."""
    ctx = click.get_current_context(silent=True)
    return None if ctx is None else ctx.meta.get(f"{__name__}.{name}")


def texts_of(tokenizer: str | None) -> TokenTexts | None:
    """Returns the texts of tokens, by a command's --tokenizer; None without."""
    from gristmill.transforms.tokens.tokenizers.token_texts import load_token_texts

    return None if tokenizer is None else load_token_texts(tokenizer)


def variable_name(*parts: str) -> str:
    """Returns the variable of a command's option, or of an option of all commands.

    >>> variable_name("bench-loader", "--batch-size")
    'GRISTMILL_BENCH_LOADER_BATCH_SIZE'
    """
    names = (part.lstrip("-").replace("-", "_").upper() for part in parts)
    return "_".join(("GRISTMILL", *names))


def _spelling(parameter: click.Parameter) -> str:
    return max(parameter.opts, key=len)


def with_common_options(command: click.Command) -> click.Command:
    """Adds the common options to a command, and variables for all of its options.

    Returns the command, which gets nothing that it has already.
    """
    if any("--quiet" in parameter.opts for parameter in command.params):
        return command
    for parameter in command.params:
        is_path = isinstance(parameter, click.Argument) or parameter.metavar in _PATHS
        if is_path and parameter.type is click.STRING:
            parameter.type = _Path()
        if isinstance(parameter, click.Option) and parameter.envvar is None:
            parameter.envvar = variable_name(str(command.name), _spelling(parameter))
    hidden: dict[str, Any] = {"expose_value": False, "callback": _remember}
    command.params += [
        click.Option(
            ("-q", "--quiet"),
            is_flag=True,
            envvar=variable_name("quiet"),
            help="Print only errors and warnings to standard error.",
            **hidden,
        ),
        click.Option(
            ("-v", "--verbose"),
            is_flag=True,
            envvar=variable_name("verbose"),
            help="Also print each step to standard error, and where errors come from.",
            **hidden,
        ),
        click.Option(
            ("--log-file",),
            metavar="FILE",
            type=_Path(),
            envvar=variable_name("log-file"),
            help="Append the steps, with times, and all messages to this file.",
            **hidden,
        ),
    ]
    return command


def unknown_variables(command: click.Command) -> list[str]:
    """Returns variables of the environment that look like options of a command."""
    known = {parameter.envvar for parameter in command.params}
    begin = variable_name(str(command.name), "")
    return sorted(n for n in os.environ if n.startswith(begin) and n not in known)


def variable_of(ctx: click.Context, parameter: click.Parameter) -> str | None:
    """Returns the variable that a parameter's value is from, None if from none."""
    source = ctx.get_parameter_source(str(parameter.name))
    variable = parameter.envvar
    if source is click.core.ParameterSource.ENVIRONMENT and isinstance(variable, str):
        return variable
    return None


def command_line(*, without: tuple[str, ...] = ()) -> list[str]:
    """Returns the arguments that mean what the command that runs was given.

    Options that were not given, and some others, are left out.
    """
    ctx = click.get_current_context()
    options: list[str] = []
    places: list[str] = []
    for parameter in ctx.command.params:
        name = str(parameter.name)
        value = ctx.params.get(name)
        source = ctx.get_parameter_source(name)
        if isinstance(parameter, click.Argument):
            places += map(
                str, value if isinstance(value, tuple) else filter(None, [value])
            )
        elif (
            value is not None
            and name not in without
            and source is not click.core.ParameterSource.DEFAULT
        ):
            flag = _spelling(parameter)
            is_flag = isinstance(parameter, click.Option) and parameter.is_flag
            options += ([flag] if value else []) if is_flag else [flag, str(value)]
    return [str(ctx.info_name), *places, *options]


JSON_VARIABLE = variable_name("json")
json_option = click.option(
    *("--json", "as_json"),
    is_flag=True,
    envvar=JSON_VARIABLE,
    help="Print the result as JSON.",
)


def wants_json(arguments: Sequence[str]) -> bool:
    """Returns whether a command line that may be wrong asks for JSON."""
    said = os.environ.get(JSON_VARIABLE, "").lower()
    return "--json" in arguments or said in ("1", "on", "t", "true", "y", "yes")


_log = logging.getLogger(__name__)
_TOLD = {"told": True}  # Of records whose text was printed already.


def is_quiet() -> bool:
    """Returns whether only errors and warnings are to be said."""
    return bool(said("quiet"))


def note(text: str) -> None:
    """Says something beside the result."""
    _log.info("note: %s", text, extra=_TOLD)
    if not is_quiet():
        _print(f"note: {text}")


def next_step(*arguments: object, why: str = "") -> None:
    """Says which of our commands comes next; not beside JSON.

    Args:
        *arguments: Those of `gristmill`.
        why: What for, where that is not plain.
    """
    next_command(shlex.join(["gristmill", *map(str, arguments)]), why=why)


def next_command(command: str, *, why: str = "") -> None:
    """Says which command comes next, a line for a shell to copy; not beside JSON."""
    ctx = click.get_current_context(silent=True)
    if ctx is None or is_quiet() or ctx.params.get("as_json"):
        return
    _print(f"next{why and f' ({why})'}: {command}")


@contextlib.contextmanager
def logged() -> Iterator[None]:
    """Logs as the options of the command that runs say, while the body runs.

    Raises:
        click.UsageError: They contradict each other, or the file cannot be written.
    """
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        yield
        return
    if is_quiet() and said("verbose"):
        raise click.UsageError("--quiet and --verbose exclude each other", ctx)
    ours, everyone = logging.getLogger("gristmill"), logging.getLogger()
    level = ours.level
    with contextlib.ExitStack() as stack:
        # Libraries give the root a handler, which would print everything again.
        stack.callback(setattr, ours, "propagate", ours.propagate)
        ours.propagate = False
        printer = _Printer(logging.INFO if said("verbose") else logging.WARNING)
        stack.enter_context(_handled(ours, printer))
        if (path := said("log_file")) is not None:
            handler = _log_file(path, ctx)
            stack.enter_context(_handled(everyone, handler))
            stack.enter_context(_handled(ours, handler))
        if said("verbose") or path is not None:
            stack.callback(ours.setLevel, level)
            ours.setLevel(logging.INFO)
        for name in unknown_variables(ctx.command):
            _log.warning("%s is not an option of gristmill %s", name, ctx.info_name)
        yield from _run_logged(ctx)


def _run_logged(ctx: click.Context) -> Iterator[None]:
    """Logs the start and the end of a command."""
    started = time.monotonic()
    line = command_line() + (["--", *ctx.obj] if ctx.obj else [])
    _log.info(
        "gristmill %s, Python %s: %s",
        *(__version__, platform.python_version()),
        shlex.join(["gristmill", *line]),
    )
    try:
        yield
    except SystemExit as e:
        _log.info("ended with exit code %s", e.code or 0)
        raise
    except BaseException as e:
        # Whoever catches it prints the message.
        _log.error("%s: %s", type(e).__name__, e, exc_info=True, extra=_TOLD)
        raise
    _log.info("done in %.1f s", time.monotonic() - started)


class _Printer(logging.Handler):
    """Prints messages of the package to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, "told", False):
            begin = "" if record.levelno <= logging.INFO else record.levelname.lower()
            _print(f"{begin}: {self.format(record)}" if begin else self.format(record))
        elif record.exc_info and self.level <= logging.INFO:
            _print(logging.Formatter().formatException(record.exc_info))


def _log_file(path: str, ctx: click.Context) -> logging.Handler:
    try:
        handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    except OSError as e:
        raise click.UsageError(
            f"Cannot write to the file of --log-file, {path}: {e.strerror}", ctx
        ) from e
    form = logging.Formatter(
        "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s",
        datefmt="%Y-%m-%dT%H:%M:%S",
    )
    form.converter = time.gmtime
    handler.setFormatter(form)
    return handler


@contextlib.contextmanager
def _handled(logger: logging.Logger, handler: logging.Handler) -> Iterator[None]:
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def _print(text: str) -> None:
    # Not by click, which would write past a progress bar.
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)
