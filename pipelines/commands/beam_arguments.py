"""Splits a command line into our arguments and Beam's."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence

import click
from apache_beam.options.pipeline_options import PipelineOptions, _BeamArgumentParser


def split_arguments(
    command: click.Command | None, arguments: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Splits arguments into those of a command and those that only Beam knows.

    An option that both know is the command's. So is one that neither knows, and click
    reports it. Beam's options may be written with hyphens.
    """
    ours = {} if command is None else _options(command)
    beams = _beam_options()
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


def _options(command: click.Command) -> dict[str, int]:
    """Returns how many values each option of a command takes, by its spelling."""
    return {
        spelling: 0 if parameter.is_flag else parameter.nargs
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for spelling in parameter.opts
    }


def _beam_options() -> dict[str, argparse.Action]:
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
