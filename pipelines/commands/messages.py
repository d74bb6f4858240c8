"""Messages on standard error beside errors: notes, logs, what to do next."""

from __future__ import annotations

import contextlib
import logging
import platform
import shlex
import sys
import time
from collections.abc import Iterator

import click

from gristmill import __version__
from gristmill.pipelines.commands.common_options import (
    command_line,
    said,
    unknown_variables,
)

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
