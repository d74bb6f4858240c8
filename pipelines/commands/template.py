"""Entry point of the Dataflow templates: turns a launcher's arguments into a command.

One image holds all templates: which one was launched shows in its required parameters.
Those of `pack` are those of `convert` and one more.

The launcher of a flex template passes `--name=value` for each parameter, and options of
Beam such as `--template_location`. With that one, Beam writes a description of the job
instead of creating it; the service creates the job when the launcher has ended.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Sequence

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.options.definitions import PIPELINES, template_options

IMAGE_VARIABLE = "GRISTMILL_IMAGE"
USER_VARIABLE = "GRISTMILL_USER"
_RUNNER = "--runner"
_IMAGE = "--sdk_container_image"


def pipeline_of(arguments: Sequence[str]) -> str:
    """Returns the pipeline whose required parameters are among those of a launcher.

    Raises:
        InputError: They are those of no template, or of several.
    """
    given = {argument.partition("=")[0].removeprefix("--") for argument in arguments}
    required = {
        pipeline: [o.name for o in template_options(pipeline) if o.is_asked_for]
        for pipeline in PIPELINES
    }
    found = [p for p, names in required.items() if not given.isdisjoint(names)]
    for fewer, more in itertools.permutations(found, 2):
        own = set(required[more]).difference(required[fewer])
        if len(own) == len(required[more]) - len(required[fewer]):
            found.remove(more if given.isdisjoint(own) else fewer)
    if len(found) != 1:
        raise InputError(
            "the parameters are not those of one template",
            expected="; ".join(f"{p}: {', '.join(n)}" for p, n in required.items()),
            got=", ".join(
                dict.fromkeys(n for p in found for n in required[p] if n in given)
            )
            or "none of these",
            cure="give the required parameters of one template",
        )
    return found[0]


def leave_root() -> None:
    """Becomes the user that an image names, if this process runs as root.

    Dataflow's launcher needs root for its log file, what it starts does not.
    """
    import pwd

    name = os.environ.get(USER_VARIABLE)
    if name is None or os.geteuid() != 0:
        return
    user = pwd.getpwnam(name)
    os.initgroups(name, user.pw_gid)
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


def command_line(
    pipeline: str, arguments: Sequence[str], *, image: str | None = None
) -> list[str]:
    """Returns the arguments of `gristmill` that match those of a launcher.

    Args:
        pipeline: Name of the pipeline.
        arguments: Arguments of the launcher. Those that are no parameter of the
            pipeline are passed to Beam.
        image: Container image of the workers, unless the arguments name one.
    """
    options = {option.name: option for option in template_options(pipeline)}
    given: dict[str, str] = {}
    beam: dict[str, str] = {}
    others: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        name, equals, value = argument.partition("=")
        option = options.get(name.removeprefix("--")) if name[:2] == "--" else None
        if option is None and name not in (_RUNNER, _IMAGE):
            others.append(argument)
            continue
        if not equals:
            is_flag = option is not None and option.kind == "flag"
            value = "true" if is_flag else next(remaining, "")
        if option is None:
            beam[name] = value
        elif value:
            given[option.name] = value
        else:
            raise InputError(
                f"parameter {option.name} has no value",
                cure=f"give {option.name}=VALUE among the template's parameters",
            )
    line = [pipeline]
    positional: list[str] = []
    for option in options.values():
        value = given.get(option.name, "")
        if option.is_asked_for and not value:
            raise InputError(
                f"parameter {option.name} is not given",
                cure=f"give {option.name}=VALUE among the template's parameters",
            )
        if option.required:
            words = value.split(",") if option.kind == "paths" else [value]
            for word in words:
                if word.startswith("-"):
                    raise InputError(
                        f"parameter {option.name} would be taken for an option",
                        expected="no hyphen at the start of a value",
                        got=repr(word),
                        cure=f"correct {option.name} among the template's parameters",
                    )
            positional += words
        elif option.kind == "flag":
            if value not in ("", "true", "false"):
                raise InputError(
                    f"parameter {option.name} is not a boolean",
                    expected="true or false",
                    got=repr(value),
                    cure=f"give {option.name}=true or leave it out",
                )
            line += [option.flag] if value == "true" else []
        elif value:
            line += [f"{option.flag}={value}"]
    if image is not None:
        beam.setdefault(_IMAGE, image)
    line += [
        f"{_RUNNER}={beam.pop(_RUNNER, 'DataflowRunner')}",
        *positional,
        "--",
        *others,
    ]
    return line + [f"{name}={value}" for name, value in beam.items()]


def main() -> None:
    """Runs the pipeline that the arguments of this process belong to."""
    from gristmill.pipelines.commands.ending import EXIT_USAGE
    from gristmill.pipelines.commands.main import main as run

    leave_root()
    arguments = sys.argv[1:]
    try:
        line = command_line(
            pipeline_of(arguments), arguments, image=os.environ.get(IMAGE_VARIABLE)
        )
    except InputError as e:
        print(f"error: {e}", file=sys.stderr)
        sys.exit(EXIT_USAGE)
    run(line)
