"""`gristmill plan`: what a conversion will make, take and cost."""

from __future__ import annotations

from typing import Any

import click

from gristmill.pipelines.commands.exit_codes import (
    EPILOG,
    at_least,
    errors_reported,
    json_option,
)
from gristmill.pipelines.commands.jobs import parameter_of
from gristmill.pipelines.options.conversions import ConvertOptions
from gristmill.pipelines.options.definitions import options_of

# Which records the conversion is to make; the other options are what it plans.
_CONVERSION = ("input", "input_format", "columns", "record", "map", "split")


@click.command(
    "plan",
    epilog=EPILOG,
    params=[
        parameter_of(option)
        for option in options_of(ConvertOptions)
        if option.name in _CONVERSION
    ],
)
@click.option(
    "--output",
    metavar="DIR",
    show_default="named after the input",
    help="Directory of the dataset, for the command. Nothing is written there.",
)
@click.option(
    "--hosts",
    type=at_least(1),
    metavar="N",
    default=1,
    show_default=True,
    help="Number of hosts of the training.",
)
@click.option(
    "--batch-size",
    type=at_least(1),
    metavar="N",
    show_default="about 1024",
    help="Rows of the global batch, over all hosts.",
)
@click.option(
    "--workers",
    type=at_least(1),
    metavar="N",
    show_default="all cores",
    help="Number of worker processes of the conversion on this machine.",
)
@json_option
@errors_reported
def plan(
    *,
    output: str | None,
    hosts: int,
    batch_size: int | None,
    workers: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Plan a conversion: measure a sample of INPUT, and advise.

    INPUT is what `gristmill convert` takes. A sample from all over it is encoded in
    several ways, and some of it is converted. Shows the size of the output, what
    training on it asks of a bucket, what the conversion takes here and on Dataflow,
    and the command to copy. Takes some seconds, whatever the size of the input.
    """
    from gristmill.pipelines.advice.command import default_output
    from gristmill.pipelines.advice.make_plan import make_plan

    options = ConvertOptions(output=output or default_output(given["input"]), **given)
    found = make_plan(options, hosts=hosts, batch_size=batch_size, workers=workers)
    click.echo(found.json() if as_json else found.text())
