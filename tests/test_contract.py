"""What docs/reference/stability.md promises is what the code has, word by word.

A difference here is a change of the contract: that page says how it is announced. Then
`python -m docs.make_contract` writes the new text.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import Any

import click
import jsonschema
import pytest

from docs import make_contract
from gristmill.pipelines.commands.main import cli, find_command
from tests.support.json_outputs import outputs_of_commands

PAGE = make_contract.FOLDER.parent / "stability.md"


def differences(kept: str, now: str) -> list[str]:
    """Returns the lines that differ, without those that are headings of a diff."""
    lines = difflib.unified_diff(kept.splitlines(), now.splitlines(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


@pytest.mark.parametrize("name", make_contract.TEXTS)
def test_names_and_options_are_those_that_are_promised(name: str) -> None:
    kept = (make_contract.FOLDER / name).read_text(encoding="utf-8")
    assert differences(kept, make_contract.TEXTS[name]()) == [], (
        "see docs/reference/stability.md; then run python -m docs.make_contract"
    )


def test_texts_have_what_users_write() -> None:
    api, options = (text() for text in make_contract.TEXTS.values())
    assert re.search(r"^  class Writer\(path: .*, split: str = 'train'", api, re.M)
    assert re.search(
        r"^  class Feed\(.*\n    attributes: batches, rows, mask$", api, re.M
    )
    assert re.search(r"^    feed\(self, \*, decode: .*, workers: int = 0", api, re.M)
    assert "\n  --group-size integer | GRISTMILL_CONVERT_GROUP_SIZE | 1\n" in options
    assert "\n  3 damaged\n" in options
    # A method is that of the class that has it, and not of those below.
    assert api.count("    facts(self)") == 1


def schemas() -> dict[str, Any]:
    found = make_contract.FOLDER.glob("*.schema.json")
    return {
        path.name.removesuffix(".schema.json"): json.loads(path.read_text())
        for path in found
    }


def test_each_command_with_json_has_a_schema_on_the_page() -> None:
    page, kept = PAGE.read_text(encoding="utf-8"), schemas()
    for name in cli.list_commands(click.Context(cli)):
        command = find_command(name)
        assert command is not None
        if any("--json" in each.opts for each in command.params):
            assert name in kept
    for name, schema in kept.items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert f"(contract/{name}.schema.json)" in page


def test_a_field_too_much_or_too_few_shows() -> None:
    seen = [{"a": 1, "b": [1, 2.5]}, {"a": None, "c": {"x": "t"}}]
    schema = json.loads(make_contract.schema_text("x", seen))
    validator = jsonschema.Draft202012Validator(schema)
    for value in seen:
        validator.validate(value)
    for wrong in ({"b": []}, {"a": "1"}, {"a": 1, "d": 2}, {"a": 1, "b": ["t"]}):
        assert not validator.is_valid(wrong)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    return outputs_of_commands(tmp_path_factory.mktemp("commands"))


@pytest.mark.slow
def test_outputs_of_real_commands_are_those_of_the_schemas(
    outputs: dict[str, list[Any]],
) -> None:
    kept = schemas()
    assert kept.keys() == outputs.keys()
    for name, found in outputs.items():
        validator = jsonschema.Draft202012Validator(kept[name])
        for output in found:
            validator.validate(output)


@pytest.mark.slow
def test_schemas_have_no_more_than_real_outputs(
    outputs: dict[str, list[Any]],
) -> None:
    for name, found in outputs.items():
        kept = make_contract.schema_path(name).read_text(encoding="utf-8")
        assert differences(kept, make_contract.schema_text(name, found)) == [], (
            f"{name} --json: see docs/reference/stability.md; then run "
            "python -m docs.make_contract"
        )


def test_a_difference_shows_both_lines() -> None:
    assert differences("a\nb\n", "a\nc\n") == ["-b", "+c"]
