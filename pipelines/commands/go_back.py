"""`gristmill rollback` and `clean`: earlier editions of a dataset, and their files."""

from __future__ import annotations

import json

import click

from gristmill.pipelines.commands.exit_codes import (
    EPILOG,
    at_least,
    errors_reported,
    json_option,
)
from gristmill.pipelines.text.messages import next_step


@click.command("rollback", epilog=EPILOG)
@click.argument("dataset")
@click.argument("edition", type=at_least(1))
@click.option(
    "--split",
    metavar="NAME",
    show_default="the only one",
    help="Split to go back with.",
)
@json_option
@errors_reported
def rollback(*, dataset: str, edition: int, split: str | None, as_json: bool) -> None:
    """Go back to an earlier EDITION of a split.

    The split is what it was when EDITION was the newest, by one write of dataset.json.
    What it is now is kept, to go back to, until `gristmill clean`.
    """
    from gristmill.dataset.commit.roll_back import roll_back
    from gristmill.dataset.metadata.choose_state import chosen_split
    from gristmill.dataset.metadata.open_manifest import open_manifest
    from gristmill.pipelines.text.edition_history import edition_numbers
    from gristmill.pipelines.text.formatting import plural

    name = chosen_split(dataset, open_manifest(dataset), split)
    now = roll_back(dataset, name, edition).splits[name]
    if as_json:
        found = {"split": name, "editions": now.numbers, "records": now.records}
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(f"{dataset}, split {name}: {edition_numbers(now)}")
    click.echo(f"  {plural(now.records, 'record')}, digest {now.records_digest}")
    next_step("inspect", dataset)


@click.command("clean", epilog=EPILOG)
@click.argument("dataset")
@click.option(
    "--dry-run", is_flag=True, help="List the files, and delete none of them."
)
@click.option(
    "--unfinished",
    is_flag=True,
    help="Also delete what unfinished commands have made of editions to come. A "
    "command that still runs fails then.",
)
@json_option
@errors_reported
def clean(*, dataset: str, dry_run: bool, unfinished: bool, as_json: bool) -> None:
    """Delete replaced editions, and files that no edition names.

    Runs that have a replaced edition open cannot read on. Work that is not finished
    stays: its files belong to editions to come.
    """
    from gristmill.dataset.commit.clean import clean as clean_dataset
    from gristmill.dataset.metadata.layout import parse_edition_key
    from gristmill.pipelines.text.formatting import plural, size_text

    def show(path: str, size_bytes: int) -> None:
        if dry_run and not as_json:
            click.echo(f"{size_bytes:>15,} {path}")

    found = clean_dataset(dataset, unfinished=unfinished, delete=not dry_run, seen=show)
    if as_json:
        fields = {
            "deleted": not dry_run,
            "editions": found.editions,
            "files": found.files,
            "file_bytes": found.file_bytes,
        }
        click.echo(json.dumps(fields, indent=2))
        return
    gone = "would be kept no longer" if dry_run else "is kept no longer"
    for key in found.editions:
        split, edition = parse_edition_key(key)
        click.echo(f"split {split}: edition {edition:,} {gone}")
    done = "to delete" if dry_run else "deleted"
    click.echo(f"{done}: {plural(found.files, 'file')}, {size_text(found.file_bytes)}")
    if dry_run and found.files:
        more = ["--unfinished"] if unfinished else []
        next_step("clean", dataset, *more)
    elif not dry_run:
        next_step("inspect", dataset)
