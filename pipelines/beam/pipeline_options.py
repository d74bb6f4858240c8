"""The options of Beam and its runners: separating them from ours, and checking them."""

from __future__ import annotations

import argparse
import difflib
import importlib
import itertools
from collections.abc import Iterator, Sequence
from typing import NoReturn

import click
from apache_beam.options.pipeline_options import (
    PipelineOptions,
    StandardOptions,
    _BeamArgumentParser,
)
from apache_beam.runners.portability.portable_runner import PortableRunner
from apache_beam.runners.runner import PipelineRunner

from gristmill.dataset.base.errors import InputError, MissingPackageError
from gristmill.pipelines.options.job_options import LaunchOptions

# Beam declares it with a value, and takes any value for true, even `false`. Here it is
# a flag.
DRY_RUN = "--dry_run"
_NEAR = 0.8
# Options of the service, which a launcher of templates passes on to Beam.
_OF_LAUNCHERS = frozenset({"--launcher_machine_type", "--streaming_mode"})
# Beam knows this runner only by its full name.
_DASK = "apache_beam.runners.dask.dask_runner.DaskRunner"
_KNOWN = {
    path.rpartition(".")[2]: path
    for path in (*StandardOptions.ALL_KNOWN_RUNNERS, _DASK)
}


class _Parser(_BeamArgumentParser):
    """The options that Beam knows now; an invalid one raises ValueError."""

    def __init__(self) -> None:
        super().__init__(add_help=False, allow_abbrev=False, conflict_handler="resolve")
        for kind in PipelineOptions.__subclasses__():
            kind._add_argparse_args(self)
        self.add_argument(DRY_RUN, action="store_true")
        self.known: dict[str, argparse.Action] = {
            spelling: action
            for action in self._actions
            for spelling in action.option_strings
        }

    def error(self, message: str) -> NoReturn:
        # Beam would print all its options and end the process after the output was
        # taken.
        raise ValueError(message)


def ignored_options(arguments: Sequence[str]) -> list[tuple[str, str | None]]:
    """Returns the arguments that Beam would ignore, with a note only in its log.

    Each comes with the option of Beam that has the closest name, if any is close.

    Raises:
        ValueError: Beam rejects another argument.
    """
    parser, found = _Parser(), []
    _, unknown = parser.parse_known_args([*without_flag_values(arguments)])
    for argument in unknown:
        name = argument.partition("=")[0]
        if name not in _OF_LAUNCHERS:
            name = "--" + name.lstrip("-").replace("-", "_")
            near = difflib.get_close_matches(name, parser.known, n=1, cutoff=_NEAR)
            found.append((argument, near[0] if near else None))
    return found


def without_flag_values(arguments: Sequence[str]) -> Iterator[str]:
    """Yields arguments, with `--flag=true` and `--flag=false` in Beam's form of flags.

    Options given to a template always have a value, even flags.

    >>> list(without_flag_values(["--no_auth=true", "--use_public_ips=false"]))
    ['--no_auth', '--no_use_public_ips']
    """
    known = _Parser().known
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
                if (other.dest, other.nargs) == (action.dest, 0)
                and other.const != action.const
            )


def checked_options(runner: str, given: Sequence[str]) -> list[str]:
    """Returns the options of a pipeline, `--runner` among them.

    Args:
        runner: As `find_runner` takes it.
        given: Options for Beam.

    Raises:
        InputError: There is no such runner, or Beam would reject or ignore an option.
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
    path, kind = find_runner(runner)
    try:
        ignored = ignored_options(given)
    except ValueError as e:
        raise InputError(
            "Beam does not take these options",
            where=" ".join(given),
            got=str(e),
            cure="correct the option that is named",
        ) from e
    # A launcher of the service may pass options that Beam does not know; these are
    # noted there.
    launched = _value_of("--template_location", given) is not None
    for argument, nearest in ignored:
        # Job services of portable runners have options of their own.
        if issubclass(kind, PortableRunner) or (launched and nearest is None):
            continue
        raise InputError(
            "Beam would ignore this option",
            got=argument,
            expected=nearest,
            cure=f"give {nearest}, or drop it"
            if nearest
            else "check its name with Beam's documentation, or drop it",
        )
    of_beam = (f"{each}=True" if each == DRY_RUN else each for each in given)
    return [f"--runner={path}", *of_beam]


def split_arguments(
    command: click.Command | None, arguments: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Splits arguments into those of a command and those that only Beam knows.

    An option that both know is the command's. So is one that neither knows, which click
    then reports. Beam's options may be written with hyphens. A runner's options are
    known once it is imported.
    """
    if (runner := _value_of("--runner", arguments)) is not None:
        find_runner(runner)
    ours = {
        spelling: parameter.is_flag
        for parameter in (command.params if command else ())
        if isinstance(parameter, click.Option)
        for spelling in parameter.opts
    }
    beams = _Parser().known
    kept: list[str] = []
    beside: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, _ = word.partition("=")
        spelled = name
        if name not in beams:
            spelled = name.replace("-", "_").replace("__", "--", 1)
        target, is_alone = kept, ours.get(name, True)
        if name not in ours and name.startswith("--") and spelled in beams:
            target, is_alone = beside, beams[spelled].nargs == 0
            word = spelled + word.removeprefix(name)
        target.append(word)
        if not (is_alone or equals):
            target += itertools.islice(words, 1)
    return kept, beside


def _value_of(name: str, arguments: Sequence[str]) -> str | None:
    """Returns the last value of an option, None if it has none."""
    value = None
    for argument, following in itertools.zip_longest(arguments, arguments[1:]):
        given, equals, own = argument.partition("=")
        if given == name:
            value = own if equals else following
    return value


def find_runner(name: str) -> tuple[str, type[PipelineRunner]]:
    """Returns the full name of a runner and its class, once its module is imported.

    The module of a runner may define options of its own, which Beam then knows.

    Args:
        name: Such as `FnApiRunner`, `dataflow` or `my_package.MyRunner`.

    Raises:
        InputError: There is no such runner, or it cannot be imported.
        MissingPackageError: It needs an optional package that is not installed.
    """
    given = name.lower().removesuffix("runner")
    short = {known.lower().removesuffix("runner"): known for known in _KNOWN}
    path = _KNOWN.get(short.get(given, ""), name)
    module, _, attribute = path.rpartition(".")
    if not module:
        near = difflib.get_close_matches(given, short, n=1)
        meant = f"did you mean {short[near[0]]}? " if near else ""
        raise InputError(
            "unknown Beam runner",
            expected=f"one of {', '.join(sorted(_KNOWN))}",
            got=repr(name),
            cure=f"{meant}give one of these as --runner, or the full name of a class "
            "such as my_package.MyRunner; leave out --runner to run without Beam",
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
    return path, kind
