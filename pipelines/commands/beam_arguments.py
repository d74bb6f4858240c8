"""Options of Beam on the command line: told from ours, and checked."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
from collections.abc import Sequence

import click
from apache_beam.options.pipeline_options import PipelineOptions, _BeamArgumentParser

from gristmill.dataset.errors import InputError
from gristmill.pipelines.beam_runners import runner_path


def checked_options(runner: str, given: Sequence[str]) -> list[str]:
    """Returns the options of a pipeline, `--runner` among them.

    Args:
        runner: As `runner_path` takes it.
        given: Options for Beam.

    Raises:
        InputError: There is no such runner, or Beam does not take the options.
    """
    options = [f"--runner={runner_path(runner)}", *given]
    said = io.StringIO()
    try:
        # Beam would print all its options and end the process, with the output taken.
        with contextlib.redirect_stderr(said):
            PipelineOptions(options).get_all_options()
    except SystemExit as e:
        raise InputError(
            "Beam does not take these options",
            where=" ".join(given),
            got=said.getvalue().strip().rpartition("error: ")[2],
            cure="correct the option that is named",
        ) from e
    return options


def split_arguments(
    command: click.Command | None, arguments: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Splits arguments into those of a command and those that only Beam knows.

    An option that both know is the command's. So is one that neither knows, and click
    reports it. Beam's options may be written with hyphens. Those of a runner are known
    once it is imported.
    """
    if (runner := _value_of("--runner", arguments)) is not None:
        runner_path(runner)
    ours = {} if command is None else _options(command)
    beams = beam_options()
    kept: list[str] = []
    beside: list[str] = []
    at = 0
    while at < len(arguments):
        name, equals, _ = arguments[at].partition("=")
        beam_name = (
            name if name in beams else name.replace("-", "_").replace("__", "--", 1)
        )
        if name in ours:
            takes = 0 if equals else ours[name]
            target = kept
        elif name.startswith("--") and beam_name in beams:
            takes = 0 if equals else _values(beams[beam_name], arguments[at + 1 :])
            target = beside
        else:
            takes, target = 0, kept
        taken = list(arguments[at : at + 1 + takes])
        if target is beside:
            taken[0] = beam_name + taken[0].removeprefix(name)
        target += taken
        at += 1 + takes
    return kept, beside


def _value_of(name: str, arguments: Sequence[str]) -> str | None:
    """Returns the last value of an option, None if it has none."""
    value = None
    for argument, following in itertools.zip_longest(arguments, arguments[1:]):
        given, equals, own = argument.partition("=")
        if given == name:
            value = own if equals else following
    return value


def _options(command: click.Command) -> dict[str, int]:
    """Returns how many values each option of a command takes, by its spelling."""
    return {
        spelling: 0 if parameter.is_flag else parameter.nargs
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for spelling in parameter.opts
    }


def beam_options() -> dict[str, argparse.Action]:
    """Returns the options that Beam knows now, by their spelling."""
    parser = _BeamArgumentParser(add_help=False, conflict_handler="resolve")
    for kind in PipelineOptions.__subclasses__():
        kind._add_argparse_args(parser)
    return {
        spelling: action
        for action in parser._actions
        for spelling in action.option_strings
    }


def _values(action: argparse.Action, following: Sequence[str]) -> int:
    """Returns how many of the following arguments an option of Beam takes."""
    if action.nargs is None:
        return 1
    if isinstance(action.nargs, int):
        return action.nargs
    # "?", "*" and "+": all up to the next option.
    values = itertools.takewhile(lambda text: not text.startswith("-"), following)
    count = len(list(values))
    return min(count, 1) if action.nargs == "?" else count
