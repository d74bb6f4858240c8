"""The Dataflow templates: their metadata, and the command for a launcher's arguments.

One image holds all templates; the required parameters show which one was launched.
`pack` has those of `convert` and one more.

The launcher of a flex template passes `--name=value` for each parameter, and options of
Beam. With `--template_location`, Beam writes a description of the job instead of
creating it; the service creates the job when the launcher has ended.

`python -m gristmill.pipelines.commands.template` writes the metadata in the root of a
checkout; a test compares it. Google documents its format under "Configure Flex
Templates: Use template metadata".
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.commands.jobs import convert, index, pack, verify
from gristmill.pipelines.commands.messages import COMMON
from gristmill.pipelines.options.job_options import flag_of

IMAGE_VARIABLE = "GRISTMILL_IMAGE"
USER_VARIABLE = "GRISTMILL_USER"
_RUNNER = "--runner"
_IMAGE = "--sdk_container_image"

TEMPLATES = {"convert": convert, "index": index, "pack": pack, "verify": verify}
_OF_THIS_MACHINE = (*COMMON, "workers", "runner", "wait", "install_on_workers")
# Type and help of parameters that are paths, for the console's browser of buckets.
_PATHS = {
    "input": (
        "GCS_READ_FILE",
        "Input files, glob patterns, or a directory of such files; a dataset of "
        "gristmill, a TFDS directory or a Hugging Face repository keeps its splits.",
    ),
    "output": ("GCS_WRITE_FOLDER", "Directory of the dataset."),
    "dataset": ("GCS_READ_FOLDER", "Directory of a committed dataset."),
    "files": (
        "GCS_READ_FILE",
        "ArrayRecord files or glob patterns, all in one directory, or that directory.",
    ),
    "report": ("GCS_WRITE_FILE", ""),
}


def parameters_of(template: str) -> dict[str, click.Parameter]:
    """Returns the options of a command that are parameters of its template."""
    return {
        str(one.name): one
        for one in TEMPLATES[template].params
        if one.name not in _OF_THIS_MACHINE
    }


def is_asked_for(template: str, parameter: click.Parameter) -> bool:
    """Returns whether a template requires a parameter."""
    return parameter.required or (template, parameter.name) == ("pack", "length")


def metadata(template: str) -> dict[str, Any]:
    """Returns the metadata of a template."""
    return {
        "name": f"gristmill {template}",
        "description": TEMPLATES[template].get_short_help_str(200),
        "streaming": False,
        "parameters": [
            _described(one) | {"isOptional": not is_asked_for(template, one)}
            for one in parameters_of(template).values()
        ],
    }


def _described(parameter: click.Parameter) -> dict[str, Any]:
    name, kind = str(parameter.name), "TEXT"
    help, pattern = "", ".+"
    more: dict[str, Any] = {}
    if isinstance(parameter, click.Option):
        help = parameter.help or ""
        if isinstance(shown := parameter.show_default, str):
            help += f" Default: {shown}."
        elif isinstance(default := parameter.default, (str, int)):
            more["defaultValue"] = str(default).lower()
    if isinstance(parameter.type, click.Choice):
        kind, pattern = "ENUM", "|".join(parameter.type.choices)
        more["enumOptions"] = [
            {"value": value, "label": value} for value in parameter.type.choices
        ]
    elif isinstance(parameter.type, click.types.BoolParamType):
        kind, pattern, more["defaultValue"] = "BOOLEAN", "true|false", "false"
    elif isinstance(parameter.type, click.types.IntParamType):
        kind, pattern = "NUMBER", "[0-9]+"
    elif name in _PATHS:
        kind, about = _PATHS[name]
        help, pattern = help or about, "gs://[^,]+"
        if parameter.nargs == -1:
            help, pattern = f"{help} Separate several with commas.", "gs://.+"
    return {
        "name": name,
        "label": name.replace("_", " ").capitalize(),
        "helpText": help,
        "paramType": kind,
        "regexes": [f"^({pattern})$"],
        **more,
    }


def metadata_files(root: pathlib.Path) -> dict[pathlib.Path, str]:
    """Returns the metadata of all templates by their file, from a checkout's root."""
    return {
        root / "deploy" / "templates" / f"{template}.json": json.dumps(
            metadata(template), indent=2
        )
        + "\n"
        for template in TEMPLATES
    }


def pipeline_of(arguments: Sequence[str]) -> str:
    """Returns the template whose required parameters are among a launcher's arguments.

    Raises:
        InputError: They match no template, or several.
    """
    given = {argument.partition("=")[0].removeprefix("--") for argument in arguments}
    asked = {
        template: [
            name
            for name, one in parameters_of(template).items()
            if is_asked_for(template, one)
        ]
        for template in TEMPLATES
    }
    found = [template for template, names in asked.items() if given & {*names}]
    if found[:2] == ["convert", "pack"]:
        found.remove("convert" if "length" in given else "pack")
    if len(found) != 1:
        every = {name for names in asked.values() for name in names}
        raise InputError(
            "the parameters are not those of one template",
            expected="; ".join(f"{t}: {', '.join(n)}" for t, n in asked.items()),
            got=", ".join(sorted(given & every)) or "none of these",
            cure="give the required parameters of one template",
        )
    return found[0]


def leave_root() -> None:
    """Becomes the user that an image names, if this process runs as root.

    Dataflow's launcher needs root for its log file, but its child does not.
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
    template: str, arguments: Sequence[str], *, image: str | None = None
) -> list[str]:
    """Returns the arguments of `gristmill` that match those of a launcher.

    Args:
        template: Name of the template.
        arguments: Arguments of the launcher. Those that are not parameters of the
            template are passed to Beam.
        image: Container image of the workers, unless the arguments name one.
    """
    parameters = parameters_of(template)
    given: dict[str, str] = {}
    others: list[str] = []
    remaining = iter(arguments)
    for argument in remaining:
        flag, equals, value = argument.partition("=")
        name = flag.removeprefix("--")
        if name == flag or (name not in parameters and flag not in (_RUNNER, _IMAGE)):
            others.append(argument)
            continue
        if not equals:
            is_flag = _is_flag(parameters.get(name))
            value = "true" if is_flag else next(remaining, "")
        if not value:
            raise _wrong(name, "has no value")
        given[flag] = value
    line, places = [template], []
    for name, parameter in parameters.items():
        value = given.get(f"--{name}", "")
        if is_asked_for(template, parameter) and not value:
            raise _wrong(name, "is not given")
        if isinstance(parameter, click.Argument):
            places += value.split(",") if parameter.nargs == -1 else [value]
            for word in places:
                if word.startswith("-"):
                    raise _wrong(name, f"would be taken for an option: {word!r}")
        elif _is_flag(parameter):
            if value not in ("", "true", "false"):
                raise _wrong(name, f"is not a boolean, true or false: {value!r}")
            line += [flag_of(name)] if value == "true" else []
        elif value:
            line += [f"{flag_of(name)}={value}"]
    line += [f"{_RUNNER}={given.get(_RUNNER, 'DataflowRunner')}", *places, "--"]
    image = given.get(_IMAGE, image)
    return [*line, *others, *([f"{_IMAGE}={image}"] if image else [])]


def _is_flag(parameter: click.Parameter | None) -> bool:
    return isinstance(parameter, click.Option) and parameter.is_flag


def _wrong(name: str, what: str) -> InputError:
    return InputError(
        f"parameter {name} {what}",
        cure=f"give {name}=VALUE among the template's parameters",
    )


def main() -> None:
    """Runs the pipeline that the arguments of this process belong to."""
    from gristmill.pipelines.commands.command import EXIT_USAGE
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


if __name__ == "__main__":
    for path, text in metadata_files(pathlib.Path.cwd()).items():
        path.write_text(text, encoding="utf-8")
