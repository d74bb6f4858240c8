"""Commands of click, made of functions and of the descriptions of their options."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from gristmill.pipelines.commands.ending import EPILOG, errors_reported
from gristmill.pipelines.commands.messages import json_option
from gristmill.pipelines.options.option import Option, options_of


class _Inputs(click.Argument):
    """One path or more, before other arguments or after them."""

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Names the argument after these as missing, where one path was given.

        Click gives the only path to the last argument, and misses the inputs.
        """
        last = [each for each in ctx.command.params if isinstance(each, click.Argument)]
        # What is not given is an empty tuple, or a mark of click's own.
        given = isinstance(paths := opts.get(str(self.name)), tuple) and paths
        if not given and isinstance(opts.get(str(last[-1].name)), str):
            raise click.MissingParameter(ctx=ctx, param=last[-1])
        return super().handle_parse_result(ctx, opts, args)


def command(
    name: str, *kinds: type[Any], with_json: bool = True
) -> Callable[[Callable[..., None]], click.Command]:
    """Makes a function a command.

    Args:
        name: Name of the command.
        *kinds: Dataclasses of options. The function gets an instance of each.
        with_json: Whether it has `--json`, which the function gets as `as_json`.
    """
    described = [options_of(kind) for kind in kinds]
    options = [option for each in described for option in each]

    def decorated(run: Callable[..., None]) -> click.Command:
        @errors_reported
        @functools.wraps(run)
        def called(**given: Any) -> None:
            own = [
                kind(**{option.name: given.pop(option.name) for option in each})
                for kind, each in zip(kinds, described, strict=True)
            ]
            run(*own, **given)

        params = [parameter_of(option) for option in sorted(options, key=_is_last)]
        made = click.command(name, epilog=EPILOG, params=params)(called)
        return json_option(made) if with_json else made

    return decorated


def _is_last(option: Option) -> bool:
    return option.last


def parameter_of(option: Option) -> click.Parameter:
    """Returns the parameter of click for an option."""
    if option.is_argument:
        many = option.kind == "paths"
        return (_Inputs if many else click.Argument)(
            [option.name],
            type=_type_of(option),
            nargs=-1 if many else 1,
            required=option.required,
            metavar=option.metavar,
        )
    if option.kind == "flag":
        return click.Option([option.flag], is_flag=True, help=option.help)
    # To click a default, even None, is a value: nothing would be missing.
    default = {} if option.required else {"default": option.default}
    return click.Option(
        [option.short, option.flag] if option.short else [option.flag],
        type=_type_of(option),
        required=option.required,
        **default,
        show_default=option.shown or True,
        metavar=option.metavar or ("N" if option.kind == "integer" else None),
        help=option.help,
    )


def _type_of(option: Option) -> click.ParamType[Any]:
    if option.kind == "choice":
        return click.Choice(option.choices)
    if option.kind == "file":
        return click.Path(dir_okay=False)
    if option.kind == "number":
        return click.FloatRange(min=option.least)
    if option.kind != "integer":
        return click.STRING
    if option.least is None:
        return click.INT
    kind = click.IntRange(min=int(option.least), max=option.most)
    kind.name = "integer"  # In messages, where click says "integer range".
    return kind


def options_given(names: Iterable[str]) -> list[str]:
    """Returns those of some options, spelled, that the command was given."""
    ctx = click.get_current_context()
    return [
        f"--{name.replace('_', '-')}"
        for name in names
        if ctx.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
    ]
