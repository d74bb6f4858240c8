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
    LaunchOptions,
    options_of,
    template_options,
)
from gristmill.pipelines.options.generated_files import generated_files, table

ROOT = pathlib.Path(__file__).parents[3]


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
        assert parameter.is_optional != option.required
        assert parameter.help_text.startswith(option.help)
        assert re.fullmatch("[a-z_]+", parameter.name)
        default = {None: "", False: "false"}.get(option.default, str(option.default))
        assert parameter.default_value == default
        values = [choice.value for choice in parameter.enum_options]
        assert values == list(option.choices)
        assert (parameter.param_type == enum["BOOLEAN"].number) == (
            option.kind == "flag"
        )
    wrong = json.loads(text) | {"parametres": []}
    with pytest.raises(json_format.ParseError, match="no field named"):
        json_format.Parse(json.dumps(wrong), TemplateMetadata.pb()())


def test_documents_are_made_of_the_options():
    stale = [
        str(path)
        for path, text in generated_files(ROOT).items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run python -m gristmill.pipelines.options.generated_files"
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for kind in (*PIPELINES.values(), LaunchOptions):
        assert table(options_of(kind)) in text
