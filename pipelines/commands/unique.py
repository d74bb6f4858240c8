"""`gristmill unique`: exact duplicates are found, and listed in a certificate."""

from __future__ import annotations

import dataclasses
import json

import click

from gristmill.pipelines.commands.jobs import run_of
from gristmill.pipelines.commands.messages import is_quiet, next_command, next_step
from gristmill.pipelines.commands.parameters import command
from gristmill.pipelines.options.conversions import ConvertOptions
from gristmill.pipelines.options.definitions import LaunchOptions
from gristmill.pipelines.options.option import (
    flag,
    like,
    split_name,
    text,
    worker_count,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UniqueOptions:
    """Options of `gristmill unique`."""

    input: tuple[str, ...] = like(ConvertOptions, "input", default=dataclasses.MISSING)
    by: str = text(
        "What is the same in duplicates: text; record, the stored bytes; or "
        "normalised, the text by NFKC, in lower case, with white space collapsed. "
        "text:NAME and normalised:NAME name the column or feature, - the whole record.",
        "KIND[:NAME]",
        default="text",
    )
    certificate: str = text(
        "File to write: which record is kept for each that is removed.",
        "FILE",
        default="duplicates.certificate",
    )
    split: str | None = split_name("Split of a dataset, whose records get the column.")
    input_format: str = like(ConvertOptions, "input_format")
    columns: str | None = like(ConvertOptions, "columns")
    record: str | None = like(ConvertOptions, "record")
    nulls: str = like(ConvertOptions, "nulls")
    overwrite: bool = flag("Replace a column duplicate_of that the dataset has.")
    workers: int | None = worker_count()
    runner: str | None = like(
        LaunchOptions,
        "runner",
        help="Run on this Beam runner instead of local processes. Beam's options can "
        "follow, or stand after --.",
    )


@command("unique", UniqueOptions)
def unique(options: UniqueOptions, *, as_json: bool) -> None:
    """Find exact duplicates among records, and list them in a certificate.

    INPUT is what `gristmill convert` takes. Of records that are the same, the first is
    kept, by file in the sorted list and place in it. Nothing is removed. A dataset gets
    the column duplicate_of: the number of the record kept, or -1 of one that is kept
    itself.
    """
    from gristmill.pipelines.duplicates.search import search

    launch = LaunchOptions(runner=options.runner)
    where = run_of(launch, options.workers)
    found, attached = search(
        ConvertOptions(
            input=options.input,
            output=options.certificate,
            split=options.split,
            input_format=options.input_format,
            columns=options.columns,
            record=options.record,
            nulls=options.nulls,  # type: ignore[arg-type]
        ),
        options.by,
        overwrite=options.overwrite,
        on_dataflow=launch.on_dataflow,
        **where._asdict(),
        show_progress=not is_quiet(),
    )
    if as_json:
        fields = {**found._asdict(), "kept": found.kept}
        if attached is not None:
            fields["column"] = json.loads(attached.json())
        click.echo(json.dumps(fields, ensure_ascii=False))
    else:
        click.echo(
            f"{found.records:,} records = {found.kept:,} kept + {found.removed:,} "
            f"duplicates, by {found.by}\n  certificate  {found.certificate}"
        )
        if attached is not None:
            click.echo(attached.text())
    if attached is not None:
        next_step("inspect", options.input[0])
    else:
        line = f"gristmill verify --certificate {found.certificate}"
        next_command(line, why="pairs compared byte by byte")
