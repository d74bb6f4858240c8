"""The metadata of the Dataflow templates, made from the options.

Run `python -m gristmill.pipelines.options.generated_files` in the root of a checkout to
write them; a test compares them. Google documents the format of the metadata under
"Configure Flex Templates: Use template metadata"; its regular expressions are POSIX and
must match the whole value.
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

from gristmill.pipelines.options.definitions import (
    PIPELINES,
    template_options,
)
from gristmill.pipelines.options.option import Option

_ABOUT = {
    "convert": "Converts TFRecord, ArrayRecord, Parquet, WebDataset, JSON lines, CSV, "
    "TSV or text files to a sharded, indexed and committed ArrayRecord dataset.",
    "index": "Makes existing ArrayRecord files a committed dataset, in place.",
    "pack": "Tokenises documents of such files, and packs them into rows of tokens: a "
    "committed ArrayRecord dataset.",
    "verify": "Checks every byte of a dataset against its checksums. The job fails if "
    "anything is wrong.",
}


def metadata(pipeline: str) -> dict[str, Any]:
    """Returns the metadata of a template."""
    return {
        "name": f"gristmill {pipeline}",
        "description": _ABOUT[pipeline],
        "streaming": False,
        "parameters": [_parameter(option) for option in template_options(pipeline)],
    }


_TYPES = {"choice": "ENUM", "flag": "BOOLEAN", "integer": "NUMBER"}


def _parameter(option: Option) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "name": option.name,
        "label": option.label,
        "helpText": _help(option),
        "groupName": option.group,
        "isOptional": not option.is_asked_for,
        "paramType": option.param_type or _TYPES.get(option.kind, "TEXT"),
    }
    regex = option.regex
    if option.kind == "flag":
        regex = "true|false"
    elif option.kind == "choice":
        fields["enumOptions"] = [{"value": v, "label": v} for v in option.choices]
        regex = "|".join(option.choices)
    fields["regexes"] = [f"^({regex})$"]
    if option.kind == "flag" or option.default is not None:
        fields["defaultValue"] = str(option.default).lower()
    return fields


def _help(option: Option) -> str:
    text = option.help
    if option.kind == "paths":
        text += " Separate several with commas."
    if option.shown is not None:
        text += f" Default: {option.shown}."
    return f"{text} For example, {option.example}"


def generated_files(root: pathlib.Path) -> dict[pathlib.Path, str]:
    """Returns the content of every file that is generated, from a checkout's root."""
    templates = root / "deploy" / "templates"
    return {
        templates / f"{pipeline}.json": json.dumps(metadata(pipeline), indent=2) + "\n"
        for pipeline in PIPELINES
    }


if __name__ == "__main__":
    for path, text in generated_files(pathlib.Path.cwd()).items():
        path.write_text(text, encoding="utf-8")
