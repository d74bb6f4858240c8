"""`gristmill remove`: records leave a dataset."""

from __future__ import annotations

from typing import Any

import click

from gristmill.pipelines.commands.exit_codes import (
    EPILOG,
    at_least,
    errors_reported,
    json_option,
)
from gristmill.pipelines.text.messages import is_quiet, next_step


@click.command("remove", epilog=EPILOG)
@click.argument("dataset")
@click.option(
    "--records",
    required=True,
    metavar="FILE",
    help="Remove the records that this file names, one a line: FILE@PLACE as trace "
    "shows it, with a byte offset, the number of a row or record, or line:N; or the "
    "number of a record in the split. Of packed rows, documents are removed: by "
    "FILE@PLACE, or SHARD@N for document N of a shard.",
)
@click.option(
    "--column",
    metavar="NAME",
    show_default="none",
    help="Each line is a value of this feature instead. All records are read to find "
    "those that have it.",
)
@click.option(
    "--split", metavar="NAME", show_default="the only one", help="Split to change."
)
@click.option(
    "--edition",
    type=at_least(1),
    metavar="N",
    show_default="the newest",
    help="Edition in which records have these numbers; it has to be the newest one.",
)
@click.option(
    "--allow-missing",
    is_flag=True,
    help="Remove what is found though some lines name nothing that is there.",
)
@click.option(
    "--erase",
    is_flag=True,
    help="Delete the editions before, too, so that no file of the dataset holds the "
    "records any more.",
)
@click.option(
    "--workers",
    type=at_least(1),
    metavar="N",
    show_default="all cores",
    help="Number of worker processes on this machine.",
)
@click.option(
    "--runner",
    metavar="RUNNER",
    show_default="none",
    help="Run on this Beam runner instead of local processes. Beam's options can "
    "follow, or stand after --.",
)
@json_option
@click.pass_context
@errors_reported
def remove(
    ctx: click.Context,
    /,
    *,
    dataset: str,
    records: str,
    column: str | None,
    split: str | None,
    edition: int | None,
    allow_missing: bool,
    erase: bool,
    workers: int | None,
    runner: str | None,
    as_json: bool,
) -> None:
    """Remove records from a split, or documents from packed rows.

    Only shards that hold some are written again; the others are shared with the edition
    before, which is kept to go back to, unless --erase is given. Readers see the old
    edition until the new one is whole.

    After a failure, run the same command again: finished shards are kept.
    """
    from gristmill.dataset.base.errors import InputError
    from gristmill.pipelines.commands.jobs import beam_options_of
    from gristmill.pipelines.options.definitions import LaunchOptions
    from gristmill.pipelines.removal.named_records import asked_records, read_lines
    from gristmill.pipelines.removal.run_removal import check_found, remove
    from gristmill.pipelines.text.removal import Removed

    launch = LaunchOptions(runner=runner)
    if launch.on_dataflow:
        raise InputError(
            "records cannot be removed on Dataflow by this command",
            cure="leave --runner out, or use gristmill.transforms.RemoveRecords in a "
            "pipeline of your own",
        )
    beam_options = beam_options_of(launch, workers, ctx.obj or ())
    where: dict[str, Any] = {"workers": workers, "beam_options": beam_options}
    lines = read_lines(records)
    asked = asked_records(dataset, lines, split=split, column=column, edition=edition)
    check_found(asked, records, allow_missing=allow_missing)
    result = remove(
        dataset, asked.arguments, erase=erase, show_progress=not is_quiet(), **where
    )
    removed = Removed(
        dataset=dataset, result=result, missing=tuple(asked.missing), erased=erase
    )
    click.echo(removed.json() if as_json else removed.text())
    next_step("verify", dataset)
