"""The options that Beam knows, and those that it would ignore."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from apache_beam.options.pipeline_options import PipelineOptions, _BeamArgumentParser

# Beam declares it with a value, and takes any for true, `false` too. Here it is a flag.
DRY_RUN = "--dry_run"
_NEAR = 0.8
# What a launch may say to the service, and a launcher of templates then to Beam.
_OF_LAUNCHERS = frozenset({"--launcher_machine_type", "--streaming_mode"})


class Ignored(NamedTuple):
    """An argument that Beam would ignore.

    Attributes:
        argument: As it was given.
        nearest: The option of Beam that its name is nearest to, if any is near.
    """

    argument: str
    nearest: str | None


def known_options() -> dict[str, argparse.Action]:
    """Returns the options that Beam knows now, by their spelling."""
    return {
        spelling: action
        for action in _parser()._actions
        for spelling in action.option_strings
    }


def ignored_options(arguments: Sequence[str]) -> list[Ignored]:
    """Returns the arguments that Beam would ignore: it says so in its log only."""
    known = list(known_options())
    _, unknown = _parser().parse_known_args(list(without_flag_values(arguments)))
    found = []
    for argument in unknown:
        name = argument.partition("=")[0]
        if name not in _OF_LAUNCHERS:
            name = "--" + name.lstrip("-").replace("-", "_")
            near = difflib.get_close_matches(name, known, n=1, cutoff=_NEAR)
            found.append(Ignored(argument, near[0] if near else None))
    return found


def without_flag_values(arguments: Sequence[str]) -> Iterator[str]:
    """Yields arguments, with `--flag=true` and `--flag=false` as Beam takes flags.

    Options that are given to a template have a value each, also those that take none.

    >>> list(without_flag_values(["--no_auth=true", "--use_public_ips=false"]))
    ['--no_auth', '--no_use_public_ips']
    """
    known = known_options()
    for argument in arguments:
        name, _, value = argument.partition("=")
        action = known.get(name)
        value = value.lower()
        if action is None or action.nargs != 0 or value not in ("true", "false"):
            yield argument
        elif value == "true":
            yield name
        else:
            yield from (
                spelling
                for spelling, other in known.items()
                if other.dest == action.dest
                and other.nargs == 0
                and other.const != action.const
            )


def _parser() -> _BeamArgumentParser:
    parser = _BeamArgumentParser(
        add_help=False, allow_abbrev=False, conflict_handler="resolve"
    )
    for kind in PipelineOptions.__subclasses__():
        kind._add_argparse_args(parser)
    parser.add_argument(DRY_RUN, action="store_true")
    return parser
