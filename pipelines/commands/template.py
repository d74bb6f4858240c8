"""The entry point of a Dataflow template: a launcher's arguments become a command line.

The launcher of a flex template calls it with `--name=value` for each parameter, and
with options of Beam's such as `--template_location`, which makes Beam write the job
down instead of creating it: the service does that, when the launcher has ended.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from gristmill.dataset.errors import InputError
from gristmill.pipelines.options.definitions import template_options

IMAGE_VARIABLE = "GRISTMILL_IMAGE"
_RUNNER = "--runner"
_IMAGE = "--sdk_container_image"


def command_line(
    pipeline: str, arguments: Sequence[str], *, image: str | None = None
) -> list[str]:
    """Returns the arguments of `gristmill` that say what a launcher's arguments say.

    Args:
        pipeline: Name of the pipeline.
        arguments: As the launcher passes them. What is no parameter of the pipeline is
            for Beam.
        image: The image that the workers run, unless the arguments name one.

    Raises:
        InputError: A parameter is missing or is given no value.
    """
    options = {option.name: option for option in template_options(pipeline)}
    given: dict[str, str] = {}
    beam: dict[str, str] = {}
    others: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        name, equals, value = argument.partition("=")
        option = options.get(name.removeprefix("--"))
        if option is not None and name.startswith("--"):
            if not equals:
                value = "true" if option.kind == "flag" else next(waiting, "")
            if not value:
                raise InputError(
                    f"parameter {option.name} has no value",
                    cure=f"give {option.name}=VALUE among the template's parameters",
                )
            given[option.name] = value
        elif name in (_RUNNER, _IMAGE):
            beam[name] = value if equals else next(waiting, "")
        else:
            others.append(argument)
    line = [pipeline]
    places: list[str] = []
    for option in options.values():
        value = given.get(option.name, "")
        if option.required:
            if not value:
                raise InputError(
                    f"parameter {option.name} is not given",
                    cure=f"give {option.name}=VALUE among the template's parameters",
                )
            places += value.split(",") if option.kind == "paths" else [value]
        elif option.kind == "flag":
            if value not in ("", "true", "false"):
                raise InputError(
                    f"parameter {option.name} is true or false", got=repr(value)
                )
            line += [option.flag] if value == "true" else []
        elif value:
            line += [f"{option.flag}={value}"]
    if image is not None:
        beam.setdefault(_IMAGE, image)
    line += [f"{_RUNNER}={beam.pop(_RUNNER, 'DataflowRunner')}", *places, "--", *others]
    return line + [f"{name}={value}" for name, value in beam.items()]


def main(pipeline: str) -> None:
    """Runs a pipeline with the arguments of this process."""
    from gristmill.pipelines.commands.errors import EXIT_USAGE
    from gristmill.pipelines.commands.main import main as run

    try:
        line = command_line(
            pipeline, sys.argv[1:], image=os.environ.get(IMAGE_VARIABLE)
        )
    except InputError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    run(line)
