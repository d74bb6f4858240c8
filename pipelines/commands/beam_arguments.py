"""Options of Beam on the command line: told from ours, and checked."""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
from collections.abc import Sequence

import click
from apache_beam.options.pipeline_options import PipelineOptions

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.beam.pipeline_options import (
    DRY_RUN,
    ignored_options,
    known_options,
    without_flag_values,
)
from gristmill.pipelines.beam.runners import runner_path, takes_other_options
from gristmill.pipelines.options.definitions import LaunchOptions


def checked_options(runner: str, given: Sequence[str]) -> list[str]:
    """Returns the options of a pipeline, `--runner` among them.

    Args:
        runner: As `runner_path` takes it.
        given: Options for Beam.

    Raises:
        InputError: There is no such runner, Beam does not take the options, or it
            would ignore one.
    """
    given = list(without_flag_values(given))
    if (other := _value_of("--runner", given)) is not None:
        raise InputError(
            "the runner is given twice",
            got=f"{runner}, and {other} after --",
            cure="give --runner once, before --",
        )
    if DRY_RUN in given and not LaunchOptions(runner=runner).on_dataflow:
        raise InputError(
            f"{DRY_RUN} only applies to Dataflow",
            got=f"--runner {runner}, which would run the pipeline",
            cure="drop it, or give --runner DataflowRunner; gristmill plan says what a "
            "conversion would make",
        )
    of_beam = [f"{each}=True" if each == DRY_RUN else each for each in given]
    options = [f"--runner={runner_path(runner)}", *of_beam]
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
    if not takes_other_options(runner):
        _check_none_ignored(given)
    return options


def _check_none_ignored(given: Sequence[str]) -> None:
    # A launcher of the service may say more than Beam knows: it is noted there.
    launched = _value_of("--template_location", given) is not None
    for argument, nearest in ignored_options(given):
        if nearest is not None or not launched:
            raise InputError(
                "Beam would ignore this option",
                got=argument,
                expected=nearest,
                cure=f"give {nearest}, or drop it"
                if nearest
                else "check its name with Beam's documentation, or drop it",
            )


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
    beams = known_options()
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
