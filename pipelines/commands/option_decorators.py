"""Decorators that give a command its options."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from gristmill.pipelines.options.definitions import (
    LaunchOptions,
    Option,
    Options,
    options_of,
)

F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON."
)


def _limit_library_threads(
    ctx: click.Context, param: click.Parameter, workers: int | None
) -> int | None:
    # numpy's linear algebra would start a thread for each core in every process, and
    # they spin while idle: 0.05 s of CPU when numpy is imported.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    return workers


workers_option = click.option(
    "--workers",
    callback=_limit_library_threads,
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    show_default="all cores",
    help="Number of worker processes on this machine.",
)


def described_options(kind: type[Options | LaunchOptions]) -> Callable[[F], F]:
    """Gives a command the options that a class describes."""

    def decorated(command: F) -> F:
        for option in reversed(options_of(kind)):
            if not option.required:
                command = _click_option(option)(command)
        return command

    return decorated


def _click_option(option: Option) -> Callable[[F], F]:
    if option.kind == "flag":
        return click.option(option.flag, option.name, is_flag=True, help=option.help)
    kind: click.ParamType[Any] | type[str] = str
    if option.kind == "choice":
        kind = click.Choice(option.choices)
    elif option.kind == "integer":
        kind = click.INT if option.least is None else click.IntRange(min=option.least)
    return click.option(
        option.flag,
        option.name,
        type=kind,
        default=option.default,
        show_default=option.shown or True,
        metavar=option.metavar,
        help=option.help,
    )
