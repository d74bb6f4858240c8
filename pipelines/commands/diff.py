"""`gristmill diff`: the records that two editions, or two datasets, have in common."""

from __future__ import annotations

import json

import click

from gristmill.pipelines.commands.exit_codes import EPILOG, errors_reported, json_option
from gristmill.pipelines.options.given_datasets import opened_edition
from gristmill.pipelines.text.messages import next_step


@click.command("diff", epilog=EPILOG)
@click.argument("before", metavar="DATASET[@EDITION]")
@click.argument("after", metavar="[DATASET[@EDITION]]", required=False)
@click.option(
    "--split",
    metavar="NAME",
    show_default="the only one",
    help="Split to compare.",
)
@click.option(
    "--list",
    "with_list",
    is_flag=True,
    help="Print a line for each record that differs instead: its number, and its "
    "source as FILE@PLACE where that is known.",
)
@json_option
@errors_reported
def diff(
    *, before: str, after: str | None, split: str | None, with_list: bool, as_json: bool
) -> None:
    """Compare the records of two editions, or of two datasets.

    Counts records added, removed and kept, with their digests and source files, in
    whatever order each has them. DATASET@EDITION is the dataset as it was when that
    edition was the last, and DATASET the dataset as it is. Without a second one, the
    dataset as it is.

    Reads indexes of those shards that differ. Records are read only where indexes do
    not tell which are the same; the last line says how many.
    """
    from gristmill.pipelines.diff.compare import compare
    from gristmill.pipelines.diff.compared_split import ComparedSplit
    from gristmill.pipelines.diff.report import Report

    first = ComparedSplit(opened_edition(before, split))
    second = ComparedSplit(opened_edition(after or first.dataset.path, split))
    report = Report(before=first, after=second, difference=compare(first, second))
    if as_json:
        click.echo(json.dumps(report.as_dict(with_list=with_list), indent=2))
    elif with_list:
        for line in report.lines():
            click.echo(line)
    else:
        click.echo(report.text())
    removed = report.difference.removed
    if len(removed.records) and not with_list:
        given = (before, *([after] if after else []))
        own = ("--split", split) if split else ()
        next_step("diff", *given, *own, "--list", why="which records")
