"""`gristmill convert`: TFRecord files become a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
from gristmill.pipelines.options.definitions import ConvertOptions, LaunchOptions

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gristmill.pipelines.results.conversion import Outcome
    from gristmill.transforms.jobs.prepared_job import PreparedJob


@click.command(name="convert", epilog=EPILOG)
@click.argument("inputs", nargs=-1, required=True, metavar="INPUT...")
@click.argument("output")
@described_options(ConvertOptions)
@workers_option
@described_options(LaunchOptions)
@json_option
@click.pass_context
@errors_reported
def command(
    ctx: click.Context,
    /,
    *,
    inputs: tuple[str, ...],
    output: str,
    workers: int | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Convert TFRecord files to an ArrayRecord dataset at OUTPUT.

    INPUT is a TFRecord file, a quoted glob pattern, or a TFDS directory.

    After a failure, run the same command again: finished shards are kept.
    """
    launch, given = split_launch_options(given)
    options = ConvertOptions(input=inputs, output=output, **given)
    beam_options = beam_options_of(ctx, launch, workers)
    if submit_to_dataflow(options, launch, beam_options, as_json=as_json):
        return
    outcome = run_conversion(options, workers=workers, beam_options=beam_options)
    click.echo(outcome.json() if as_json else outcome.text())


def run_conversion(
    options: ConvertOptions,
    *,
    workers: int | None = None,
    beam_options: Sequence[str] | None = None,
) -> Outcome:
    """Converts, and shows progress on standard error."""
    from gristmill.pipelines.convert import convert
    from gristmill.pipelines.local.pool import default_workers
    from gristmill.pipelines.options.conversion_jobs import conversion_of

    conversion = conversion_of(options)
    return convert(
        conversion.jobs,
        workers=workers or default_workers(),
        overwrite=options.overwrite,
        features=conversion.features,
        tfds_directory=conversion.tfds_directory,
        beam_options=beam_options,
        show=_show,
    )


def _show(
    prepared: Sequence[PreparedJob], progress_dir: str
) -> AbstractContextManager[None]:
    from rich.console import Console

    from gristmill.pipelines.local.progress import ProgressReader, show_progress

    return show_progress(ProgressReader(prepared, progress_dir), Console(stderr=True))
