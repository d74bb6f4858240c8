"""Pages of docs/reference that are made of the code: they are what the code says."""

import pathlib

import click
import pytest

from docs import make_reference
from gristmill.pipelines.commands.main import cli, find_command

ROOT = pathlib.Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "reference"


def page(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", make_reference.PAGES)
def test_page_is_what_the_code_says(name: str) -> None:
    again = "run: python docs/make_reference.py"
    assert make_reference.PAGES[name]() == page(name), again


def test_every_command_and_option_is_listed_and_explained() -> None:
    text = page("cli.md")
    several = text.partition("\n## Options of several commands\n")[2]
    for name in cli.list_commands(click.Context(cli)):
        command = find_command(name)
        assert command is not None
        own = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
        common = text.partition("\n## All commands\n")[2].partition("\n## ")[0]
        for option in command.params:
            if isinstance(option, click.Option):
                long = max(option.opts, key=len)
                assert long in own + common, (name, option.opts)
                assert option.help
                assert (
                    option.help.replace("|", r"\|") in own + several or long in common
                )


def test_every_variable_of_the_environment_is_listed() -> None:
    found: dict[str, str] = {}
    for package in make_reference.PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            found |= dict.fromkeys(make_reference.variables_in(text), str(path))
    told = {**make_reference.VARIABLES, **make_reference.SET_FOR_LIBRARIES}
    unknown = {name: path for name, path in found.items() if name not in told}
    assert unknown == {}, "add them to docs/make_reference.py"
    # Libraries read these.
    theirs = {"GOOGLE_APPLICATION_CREDENTIALS", "NO_COLOR", "TMPDIR"}
    assert {*told} - {*found} <= theirs
