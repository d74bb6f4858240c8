"""Files in the repository are those that the options make."""

from __future__ import annotations

import json
import pathlib
import re

import pytest
from google.cloud.dataflow_v1beta3.types import TemplateMetadata
from google.protobuf import json_format

from gristmill.pipelines.options.definitions import (
    PIPELINES,
    template_options,
)
from gristmill.pipelines.options.generated_files import generated_files

ROOT = pathlib.Path(__file__).parents[3]
GROUPS = {
    "Conversations",
    "Tokens",
    "Source",
    "Target",
    "Shards",
    "Encoding",
    "Damaged input",
    "Location",
}


class _Types(dict[tuple[str, str], str]):
    """Types of parameters: those of paths by name, so that the console browses."""

    def __missing__(self, key: tuple[str, str]) -> str:
        kinds = {"flag": "BOOLEAN", "choice": "ENUM", "integer": "NUMBER"}
        return kinds.get(key[1], "TEXT")


TYPES = _Types(
    {
        ("input", "paths"): "GCS_READ_FILE",
        ("output", "text"): "GCS_WRITE_FOLDER",
        ("dataset", "text"): "GCS_READ_FOLDER",
        ("report", "text"): "GCS_WRITE_FILE",
        ("files", "paths"): "GCS_READ_FILE",
    }
)


@pytest.mark.parametrize("pipeline", PIPELINES)
def test_metadata_is_what_the_service_reads(pipeline):
    text = (ROOT / "deploy" / "templates" / f"{pipeline}.json").read_text()
    parsed = json_format.Parse(text, TemplateMetadata.pb()())
    options = {option.name: option for option in template_options(pipeline)}
    assert [parameter.name for parameter in parsed.parameters] == list(options)
    kinds = TemplateMetadata.pb().DESCRIPTOR.fields_by_name["parameters"].message_type
    enum = kinds.fields_by_name["param_type"].enum_type.values_by_name
    for parameter in parsed.parameters:
        option = options[parameter.name]
        assert parameter.is_optional != option.is_asked_for
        assert parameter.help_text.startswith(option.help)
        assert re.fullmatch("[a-z_]+", parameter.name)
        default = {None: "", False: "false"}.get(option.default, str(option.default))
        assert parameter.default_value == default
        values = [choice.value for choice in parameter.enum_options]
        assert values == list(option.choices)
        assert enum[TYPES[parameter.name, option.kind]].number == parameter.param_type
        assert parameter.group_name in GROUPS
        # An example that the service would take, last of all.
        _, _, example = parameter.help_text.rpartition(" For example, ")
        assert example == option.example
        (pattern,) = parameter.regexes
        assert re.fullmatch(pattern, example)
        assert example not in (parameter.default_value, option.shown)
    wrong = json.loads(text) | {"parametres": []}
    with pytest.raises(json_format.ParseError, match="no field named"):
        json_format.Parse(json.dumps(wrong), TemplateMetadata.pb()())


def test_metadata_is_made_of_the_options():
    stale = [
        str(path)
        for path, text in generated_files(ROOT).items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run python -m gristmill.pipelines.options.generated_files"
