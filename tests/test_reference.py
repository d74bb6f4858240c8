"""Pages of docs/reference that are made of the code: they are what the code says."""

import json
import pathlib

import click
import prometheus_client
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from docs import make_reference
from gristmill import loader
from gristmill.loader.stats.causes import CAUSES
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
    # Python and rich read these two.
    assert {*told} - {*found} <= {"NO_COLOR", "TMPDIR"}


def test_variables_are_found() -> None:
    source = 'import os\nX = "MY_NAME"\nos.environ.get(X)\nos.getenv("OTHER_1")\n"no"\n'
    assert [*make_reference.variables_in(source)] == ["MY_NAME", "OTHER_1"]
    assert [*make_reference.variables_in('X = "MY_NAME"')] == []


class NotFed:
    """Something with stats, without a feed that makes them."""

    stats = loader.FeedStats(batches=3, records=12)


def test_every_exported_metric_is_listed_with_its_unit() -> None:
    text = page("metrics.md")
    registry = prometheus_client.CollectorRegistry()
    feed = NotFed()
    loader.export_stats(feed, name="train", registry=registry)
    families = [*registry.collect()]
    assert len(families) > 20
    for family in families:
        for name in {sample.name for sample in family.samples}:
            assert f"`{name}`" in text, name
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    loader.export_to_opentelemetry(feed, name="train", provider=provider)
    exported = json.loads(reader.get_metrics_data().to_json())
    provider.shutdown()
    metrics = exported["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    for metric in metrics:
        (line,) = (
            line for line in text.splitlines() if f"`{metric['name']}` |" in line
        )
        unit = {"s": "seconds", "By": "bytes", "": " |  | "}[metric["unit"]]
        assert unit in line, metric["name"]
        assert metric["description"] in line
    causes = text.partition("## Causes")[2]
    assert [cause for cause in CAUSES if f"`{cause}`" not in causes] == []
