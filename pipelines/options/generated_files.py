"""Files that are generated from the options: template metadata, tables of cli.md.

Run `python -m gristmill.pipelines.options.generated_files` in the root of a checkout to
write them; a test compares them. Google documents the format of the metadata under
"Configure Flex Templates: Use template metadata"; its regular expressions are POSIX and
must match the whole value.
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterable
from typing import Any

from gristmill.pipelines.options.definitions import (
    COMMANDS,
    PIPELINES,
    LaunchOptions,
    options_of,
    template_options,
)
from gristmill.pipelines.options.option import Option

TABLES = {**COMMANDS, "launch": LaunchOptions}
# A table ends where a line is empty.
_TABLE = re.compile(r"<!-- options: (\w+) -->\n(?:\|.*\n)*\n?")

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


def table(options: Iterable[Option]) -> str:
    """Returns a table of options in Markdown."""
    rows = ["| option | default | effect |", "| --- | --- | --- |"]
    for option in options:
        if option.required:
            continue
        value = option.metavar or {"flag": "", "choice": "|".join(option.choices)}.get(
            option.kind, "TEXT"
        )
        name = f"{option.flag} {value}".strip().replace("|", "\\|")
        default = option.shown or (
            "" if option.default in (None, False) else f"`{option.default}`"
        )
        rows.append(f"| `{name}` | {default} | {option.help} |")
    return "\n".join(rows)


def with_tables(document: str) -> str:
    """Returns a document with each table after `<!-- options: NAME -->` replaced."""

    def replaced(match: re.Match[str]) -> str:
        kind = TABLES[match[1]]
        return f"<!-- options: {match[1]} -->\n{table(options_of(kind))}\n\n"

    return _TABLE.sub(replaced, document)


def generated_files(root: pathlib.Path) -> dict[pathlib.Path, str]:
    """Returns the content of every file that is generated, from a checkout's root."""
    templates = root / "deploy" / "templates"
    found = {
        templates / f"{pipeline}.json": json.dumps(metadata(pipeline), indent=2) + "\n"
        for pipeline in PIPELINES
    }
    cli = root / "docs" / "reference" / "cli.md"
    return found | {cli: with_tables(cli.read_text(encoding="utf-8"))}


if __name__ == "__main__":
    for path, text in generated_files(pathlib.Path.cwd()).items():
        path.write_text(text, encoding="utf-8")
