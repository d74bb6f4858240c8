"""The options of the command that runs, and its messages beside errors."""

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
from gristmill.pipelines.options.job_options import flag_of
from gristmill.pipelines.text.printer import json_text, text_of

if TYPE_CHECKING:
    from gristmill.dataset.metadata.splits import Split
    from gristmill.transforms.tokens.tokenizers.token_texts import TokenTexts

COMMON = ("as_json", "quiet", "verbose", "log_file")
"""The options that all commands have."""


def said(name: str) -> Any:
    """Returns the value of an option of the command that runs, None if none."""
    ctx = click.get_current_context(silent=True)
    return None if ctx is None else ctx.params.get(name)


def as_json() -> bool:
    """Returns whether the result is to be printed as JSON."""
    return bool(said("as_json"))


def show(result: Any, text: str | None = None) -> None:
    """Prints a result: as JSON with `--json`, else a text, by default its own."""
    if as_json():
        click.echo(json_text(result))
    else:
        click.echo(text_of(result) if text is None else text)


def texts_of(tokenizer: str | None) -> TokenTexts | None:
    """Returns the texts of tokens, by a command's --tokenizer; None without."""
    from gristmill.transforms.tokens.tokenizers.token_texts import load_token_texts

    return None if tokenizer is None else load_token_texts(tokenizer)


def _was_given(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT


def options_given(names: Iterable[str]) -> list[str]:
    """Returns those of some options, spelled, that the command was given."""
    ctx = click.get_current_context()
    return [flag_of(name) for name in names if _was_given(ctx, name)]


def command_line(*, without: tuple[str, ...] = ()) -> list[str]:
    """Returns the arguments that mean what the command that runs was given.

    Options that were not given, those of all commands, and some others, are left out.
    """
    ctx = click.get_current_context()
    options: list[str] = []
    places: list[str] = []
    for parameter in ctx.command.params:
        name = str(parameter.name)
        value = ctx.params.get(name)
        if isinstance(parameter, click.Argument):
            some = value if isinstance(value, tuple) else [value]
            places += [str(one) for one in some if one]
        elif name not in (*COMMON, *without) and _was_given(ctx, name):
            if value is None or value is False:
                continue
            flag = max(parameter.opts, key=len)
            options += [flag] if value is True else [flag, str(value)]
    return [str(ctx.info_name), *places, *options]


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
    if ctx is not None and not is_quiet() and not as_json():
        _print(f"next{why and f' ({why})'}: {command}")


def next_batch(dataset: str, name: str, split: Split) -> None:
    """Says how training gets a batch of a split: a line of Python, for a shell."""
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
        for name in _unknown_variables(ctx):
            _log.warning("%s is not an option of gristmill %s", name, ctx.info_name)
        yield from _run_logged(ctx)


def _unknown_variables(ctx: click.Context) -> list[str]:
    """Returns variables of the environment that look like options of the command."""
    begin = f"{ctx.auto_envvar_prefix}_"
    known = {f"{begin}{str(one.name).upper()}" for one in ctx.command.params}
    return sorted(n for n in os.environ if n.startswith(begin) and n not in known)


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
        print(coloured(text), file=sys.stderr, flush=True)


def coloured(text: str) -> str:
    """Returns a message for standard error, its `error:` or `warning:` in colour there.

    As of rich, a terminal with NO_COLOR or TERM=dumb gets none.
    """
    head, colon, rest = text.partition(":")
    colour = {"error": "red", "warning": "yellow"}.get(head)
    off = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if colour is None or off or not sys.stderr.isatty():
        return text
    return click.style(head + colon, fg=colour, bold=True) + rest
