"""`gristmill plan`: what a conversion will make, take and cost."""

from __future__ import annotations

import dataclasses

import click

from gristmill.pipelines.commands.parameters import command
from gristmill.pipelines.options.conversions import ConvertOptions
from gristmill.pipelines.options.option import integer, like, text, worker_count


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputOptions:
    """Which records a conversion is to make; the other options are what is planned."""

    input: tuple[str, ...] = like(ConvertOptions, "input")
    input_format: str = like(ConvertOptions, "input_format")
    columns: str | None = like(ConvertOptions, "columns")
    record: str | None = like(ConvertOptions, "record")
    map: str | None = like(ConvertOptions, "map")
    split: str | None = like(ConvertOptions, "split")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """Options of `gristmill plan` alone."""

    output: str | None = text(
        "Directory of the dataset, for the command. Nothing is written there.",
        "DIR",
        "named after the input",
    )
    hosts: int = integer("Number of hosts of the training.", 1, least=1)
    batch_size: int | None = integer(
        "Rows of the global batch, over all hosts.", shown="about 1024", least=1
    )
    workers: int | None = worker_count(
        "Number of worker processes of the conversion on this machine."
    )


@command("plan", InputOptions, PlanOptions)
def plan(inputs: InputOptions, options: PlanOptions, *, as_json: bool) -> None:
    """Plan a conversion: measure a sample of INPUT, and advise.

    INPUT is what `gristmill convert` takes. A sample from all over it is encoded in
    several ways, and some of it is converted. Shows the size of the output, what
    training on it asks of a bucket, what the conversion takes here and on Dataflow,
    and the command to copy. Takes some seconds, whatever the size of the input.
    """
    from gristmill.pipelines.advice.make_plan import make_plan
    from gristmill.pipelines.options.conversions import default_output

    output = options.output or default_output(inputs.input)
    found = make_plan(
        ConvertOptions(output=output, **dataclasses.asdict(inputs)),
        hosts=options.hosts,
        batch_size=options.batch_size,
        workers=options.workers,
    )
    click.echo(found.json() if as_json else found.text())
