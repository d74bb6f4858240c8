"""The metadata of the Dataflow templates, made of the descriptions of the options.

`python -m gristmill.pipelines.template_metadata DIRECTORY` writes the files. Google
documents the format under "Configure Flex Templates: Use template metadata"; regular
expressions there are POSIX, and have to match the whole value.
"""

from __future__ import annotations

import json
import pathlib
import sys
from typing import Any

from gristmill.pipelines.options import PIPELINES, Option, template_options

_ABOUT = {
    "convert": (
        "gristmill convert",
        "Converts TFRecord files into a sharded, indexed and committed dataset of "
        "ArrayRecord files.",
    ),
    "index": (
        "gristmill index",
        "Makes a committed dataset, in place, of ArrayRecord files that exist already.",
    ),
    "verify": (
        "gristmill verify",
        "Reads every byte of a dataset again and compares it. The job fails if "
        "anything is wrong.",
    ),
}


def metadata(pipeline: str) -> dict[str, Any]:
    """Returns the metadata of a template."""
    name, description = _ABOUT[pipeline]
    return {
        "name": name,
        "description": description,
        "streaming": False,
        "parameters": [_parameter(option) for option in template_options(pipeline)],
    }


def _parameter(option: Option) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": option.name,
        "label": option.label,
        "helpText": _help(option),
        "isOptional": not option.required,
        "paramType": "TEXT",
    }
    regex = option.regex
    if option.kind == "flag":
        fields["paramType"] = "BOOLEAN"
        regex = "true|false"
    elif option.kind == "choice":
        fields["paramType"] = "ENUM"
        fields["enumOptions"] = [{"value": v, "label": v} for v in option.choices]
        regex = "|".join(option.choices)
    fields["regexes"] = [f"^({regex})$"]
    if option.kind == "flag" or option.default is not None:
        fields["defaultValue"] = str(option.default).lower()
    return fields


def _help(option: Option) -> str:
    text = option.help
    if option.kind == "paths":
        text += " Several are separated by commas."
    if option.shown is not None:
        text += f" Default: {option.shown}."
    return text


def main() -> None:
    """Writes the files."""
    for pipeline in PIPELINES:
        text = json.dumps(metadata(pipeline), indent=2) + "\n"
        pathlib.Path(sys.argv[1], f"{pipeline}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
