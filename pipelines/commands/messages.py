"""The options of the running command, and its messages besides errors."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from gristmill import __version__
from gristmill.dataset.base.errors import InputError

if TYPE_CHECKING:
    from gristmill.dataset.metadata.splits import Split
    from gristmill.transforms.tokens.tokenizer import Tokenizer

COMMON = ("as_json", "quiet", "verbose", "log_file")
"""The options that all commands have."""


def said(name: str) -> Any:
    """Returns the value of an option of the running command, None if not given."""
    ctx = click.get_current_context(silent=True)
    return None if ctx is None else ctx.params.get(name)


def as_json() -> bool:
    """Returns whether to print the result as JSON."""
    return bool(said("as_json"))


def show(result: Any, text: str | None = None) -> None:
    """Prints a result: with `--json` as JSON, otherwise as text, by default its own."""
    from gristmill.pipelines.text.printer import json_text, text_of

    if as_json():
        text = json_text(result)
    click.echo(text_of(result) if text is None else text)


def refuse(wrong: object, what: str, **facts: Any) -> None:
    """Raises InputError with these facts if `wrong` is true."""
    if wrong:
        raise InputError(what, **facts)


def texts_of(tokenizer: str | None) -> Tokenizer | None:
    """Returns the texts of tokens, by a command's --tokenizer; None without."""
    from gristmill.transforms.tokens.load_tokenizer import load_texts

    return None if tokenizer is None else load_texts(tokenizer)


def _given(ctx: click.Context) -> Iterator[tuple[click.Option, Any]]:
    """Yields the options given to the command, without those of all commands."""
    for one in ctx.command.params:
        name = str(one.name)
        if isinstance(one, click.Option) and name not in (*COMMON, "help"):
            source = ctx.get_parameter_source(name)
            if source is not click.core.ParameterSource.DEFAULT:
                yield one, ctx.params.get(name)


def options_given(names: Iterable[str]) -> list[str]:
    """Returns the spellings of those options that were given to the command."""
    given = _given(click.get_current_context())
    return [max(one.opts, key=len) for one, _ in given if one.name in names]


def command_line(*, without: tuple[str, ...] = ()) -> list[str]:
    """Returns arguments that repeat the running command.

    They omit the options of all commands, and those of `without`.
    """
    ctx = click.get_current_context()
    line = [str(ctx.info_name)]
    for one in ctx.command.params:
        if isinstance(one, click.Argument):
            value: Any = ctx.params.get(str(one.name))
            line += map(str, filter(None, value if one.nargs == -1 else [value]))
    for option, value in _given(ctx):
        if option.name not in without and value is not None and value is not False:
            flag = max(option.opts, key=len)
            line += [flag] if value is True else [flag, str(value)]
    return line


_log = logging.getLogger(__name__)
_TOLD = {"told": True}  # For log records whose text was printed already.


def is_quiet() -> bool:
    """Returns whether to print only errors and warnings."""
    return bool(said("quiet"))


def note(text: str) -> None:
    """Prints a note beside the result."""
    _log.info("note: %s", text, extra=_TOLD)
    if not is_quiet():
        tell(f"note: {text}")


def next_step(*arguments: object, why: str = "") -> None:
    """Prints which gristmill command comes next, except beside JSON.

    Args:
        *arguments: The arguments of `gristmill`.
        why: Its purpose, if that is not obvious.
    """
    next_command(shlex.join(["gristmill", *map(str, arguments)]), why=why)


def next_command(command: str, *, why: str = "") -> None:
    """Prints which command comes next, to copy into a shell, except beside JSON."""
    ctx = click.get_current_context(silent=True)
    if ctx is not None and not is_quiet() and not as_json():
        tell(f"next{why and f' ({why})'}: {command}")


def next_batch(dataset: str, name: str, split: Split) -> None:
    """Prints how training gets a batch of a split: a line of Python, for a shell."""
    decode = ""
    if split.packed is not None:
        decode = "decode=loader.PackedRows.of(data), "
    elif split.features is not None:
        decode = "decode=loader.ExampleDecoder.of(data), "
    code = (
        f"from gristmill import loader; data = loader.open({json.dumps(dataset)}, "
        f"{json.dumps(name)}); "
        "batches = loader.global_batches(data, batch_size=4, seed=0); "
        f"feed = batches.feed({decode}host=(0, 1)); print(next(feed)); feed.close()"
    )
    next_command(shlex.join(["python", "-c", code]), why="a batch, as training gets it")


@contextlib.contextmanager
def logged() -> Iterator[None]:
    """Logs during the body, by the options of the running command.

    Raises:
        click.UsageError: They contradict each other, or the file cannot be written.
    """
    ctx = click.get_current_context(silent=True)
    if ctx is None:
        yield
        return
    verbose, path = said("verbose"), said("log_file")
    if is_quiet() and verbose:
        raise click.UsageError("--quiet and --verbose exclude each other", ctx)
    ours = logging.getLogger("gristmill")
    with contextlib.ExitStack() as stack:

        def handle(logger: logging.Logger, handler: logging.Handler) -> None:
            logger.addHandler(handler)
            stack.callback(logger.removeHandler, handler)

        # Libraries add a handler to the root, which would print everything again.
        stack.callback(setattr, ours, "propagate", ours.propagate)
        ours.propagate = False
        handle(ours, _Printer(logging.INFO if verbose else logging.WARNING))
        if path is not None:
            file = stack.enter_context(contextlib.closing(_log_file(path, ctx)))
            handle(logging.getLogger(), file)
            handle(ours, file)
        if verbose or path is not None:
            stack.callback(ours.setLevel, ours.level)
            ours.setLevel(logging.INFO)
        begin = f"{ctx.auto_envvar_prefix}_"
        known = {f"{begin}{str(one.name).upper()}" for one in ctx.command.params}
        for name in sorted(os.environ.keys() - known):
            if name.startswith(begin):
                _log.warning("%s is not an option of gristmill %s", name, ctx.info_name)
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
            level = record.levelname.lower()
            begin = "" if record.levelno <= logging.INFO else f"{level}: "
            tell(begin + self.format(record))
        elif record.exc_info and self.level <= logging.INFO:
            tell(logging.Formatter().formatException(record.exc_info))


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


def tell(text: str) -> None:
    """Prints a message to standard error, unless nothing can be written there."""
    # Not by click, which would write past a progress bar.
    with contextlib.suppress(Exception):  # It may be closed, or its reader gone.
        print(coloured(text), file=sys.stderr, flush=True)


def coloured(text: str) -> str:
    """Returns a message with `error:` or `warning:` in colour, if a terminal shows it.

    Like rich, it uses no colour with NO_COLOR or TERM=dumb.
    """
    head, colon, rest = text.partition(":")
    colour = {"error": "red", "warning": "yellow"}.get(head)
    off = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if colour is None or off or not sys.stderr.isatty():
        return text
    return click.style(head + colon, fg=colour, bold=True) + rest
