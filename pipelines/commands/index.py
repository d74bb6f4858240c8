"""`gristmill index`: ArrayRecord files become a dataset in place."""

from __future__ import annotations

from typing import Any

import click

from gristmill.pipelines.commands.errors import EPILOG, errors_reported
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
from gristmill.pipelines.options.definitions import IndexOptions, LaunchOptions


@click.command(name="index", epilog=EPILOG)
@click.argument("files", nargs=-1, required=True)
@described_options(IndexOptions)
@workers_option
@described_options(LaunchOptions)
@json_option
@click.pass_context
@errors_reported
def command(
    ctx: click.Context,
    /,
    *,
    files: tuple[str, ...],
    workers: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Make existing ArrayRecord FILES a dataset, in place.

    FILES are files or quoted glob patterns, all in one directory. The files stay as
    they are; their indexes and dataset.json are written beside them.
    """
    launch, given = split_launch_options(given)
    options = IndexOptions(files=files, **given)
    beam_options = beam_options_of(ctx, launch, workers)
    if submit_to_dataflow(options, launch, beam_options, as_json=as_json):
        return
    from gristmill.pipelines.index import index
    from gristmill.pipelines.results.dataset import manifest_text

    manifest, directory = index(options, workers=workers, beam_options=beam_options)
    if as_json:
        click.echo(manifest.encode(), nl=False)
    else:
        click.echo(manifest_text(manifest, directory))
