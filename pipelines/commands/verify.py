"""`gristmill verify`: a dataset is compared with its checksums."""

from __future__ import annotations

import sys
from typing import Any

import click

from gristmill.pipelines.commands.errors import EPILOG, EXIT_DAMAGED, errors_reported
from gristmill.pipelines.commands.launch import (
    beam_options_of,
    split_launch_options,
    submit_to_dataflow,
)
from gristmill.pipelines.commands.option_decorators import (
    described_options,
    json_option,
    workers_option,
)
from gristmill.pipelines.options.definitions import LaunchOptions, VerifyOptions


@click.command(name="verify", epilog=EPILOG)
@click.argument("dataset")
@described_options(VerifyOptions)
@workers_option
@described_options(LaunchOptions)
@json_option
@click.pass_context
@errors_reported
def command(
    ctx: click.Context,
    /,
    *,
    dataset: str,
    workers: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Check every byte of a dataset against its checksums."""
    launch, given = split_launch_options(given)
    options = VerifyOptions(dataset=dataset, **given)
    beam_options = beam_options_of(ctx, launch, workers)
    if submit_to_dataflow(options, launch, beam_options, as_json=as_json):
        return
    from gristmill.pipelines.verify import verify

    found = verify(
        dataset,
        quick=options.quick,
        report=options.report,
        workers=workers,
        beam_options=beam_options,
    )
    click.echo(found.json() if as_json else found.text())
    if found.findings:
        sys.exit(EXIT_DAMAGED)
