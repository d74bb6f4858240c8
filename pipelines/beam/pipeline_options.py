"""The options of Beam and its runners: told from ours, checked, or ignored by it."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import io
import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import click
from apache_beam.options.pipeline_options import (
    PipelineOptions,
    StandardOptions,
    _BeamArgumentParser,
)
from apache_beam.runners.runner import PipelineRunner

from gristmill.dataset.base.errors import InputError, MissingPackageError
from gristmill.pipelines.options.job_options import LaunchOptions

# Beam declares it with a value, and takes any for true, `false` too. Here it is a flag.
DRY_RUN = "--dry_run"
_NEAR = 0.8
# What a launch may say to the service, and a launcher of templates then to Beam.
_OF_LAUNCHERS = frozenset({"--launcher_machine_type", "--streaming_mode"})
# Beam knows this runner by its full name only.
_DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"
_KNOWN = {
    path.rpartition(".")[2]: path
    for path in (*StandardOptions.ALL_KNOWN_RUNNERS, _DASK)
}


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
    """Returns the number of values of each option of a command, by its spelling."""
    return {
        spelling: 0 if parameter.is_flag else parameter.nargs
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for spelling in parameter.opts
    }


def _values(action: argparse.Action, following: Sequence[str]) -> int:
    """Returns the number of further arguments that a Beam option takes."""
    if action.nargs is None:
        return 1
    if isinstance(action.nargs, int):
        return action.nargs
    # "?", "*" and "+": all up to the next option.
    values = itertools.takewhile(lambda text: not text.startswith("-"), following)
    count = len(list(values))
    return min(count, 1) if action.nargs == "?" else count


def runner_path(name: str) -> str:
    """Returns the full name of a runner, once its module is imported.

    The module of a runner may define options of its own, which Beam then knows.

    Args:
        name: Such as `FnApiRunner`, `dataflow` or `my_package.MyRunner`.

    Raises:
        InputError: There is no such runner, or it cannot be imported.
        MissingPackageError: It needs an optional package that is not installed.
    """
    given = name.lower().removesuffix("runner")
    short = {
        known.lower().removesuffix("runner"): path for known, path in _KNOWN.items()
    }
    path = short.get(given, name)
    module, _, attribute = path.rpartition(".")
    if not module:
        raise InputError(
            "unknown Beam runner",
            expected=f"one of {', '.join(sorted(_KNOWN))}",
            got=repr(name),
            cure=f"{_meant(given, short)}give one of these as --runner, or the full "
            "name of a class such as my_package.MyRunner; leave out --runner to run "
            "without Beam",
        )
    try:
        if path == _DASK:  # Its module can be imported without Dask.
            importlib.import_module("dask.distributed")
        kind: object = getattr(importlib.import_module(module), attribute)
    except Exception as e:  # Importing runs foreign code, which can raise anything.
        if isinstance(e, ModuleNotFoundError) and not module.startswith(e.name or ""):
            missing = MissingPackageError.of(e)
            if missing is not None:
                raise missing from e
        raise InputError(
            "the Beam runner cannot be imported",
            where=path,
            got=f"{type(e).__name__}: {e}",
            cure="check the name, and install the packages that the runner needs",
        ) from e
    if not (isinstance(kind, type) and issubclass(kind, PipelineRunner)):
        raise InputError(
            "this is not a Beam runner",
            where=path,
            expected="a subclass of apache_beam.runners.PipelineRunner",
            got=repr(kind),
            cure="check the name",
        )
    return path


def _meant(given: str, short: dict[str, str]) -> str:
    near = difflib.get_close_matches(given, short, n=1)
    return f"did you mean {short[near[0]].rpartition('.')[2]}? " if near else ""


def takes_other_options(name: str) -> bool:
    """Returns whether a runner takes options that Beam's parser does not know.

    Job services of portable runners say themselves which options they have.
    """
    from apache_beam.runners.portability.portable_runner import PortableRunner

    module, _, attribute = runner_path(name).rpartition(".")
    kind = getattr(importlib.import_module(module), attribute)
    return issubclass(kind, PortableRunner)
