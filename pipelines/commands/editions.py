"""`gristmill rollback` and `clean`: the editions of a dataset."""

from __future__ import annotations

import dataclasses
import json

import click

from gristmill.pipelines.commands.messages import next_step
from gristmill.pipelines.commands.parameters import command
from gristmill.pipelines.options.option import argument, flag, split_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class RollbackOptions:
    """Options of `gristmill rollback`."""

    dataset: str = argument()
    edition: int = argument("integer", least=1)
    split: str | None = split_name("Split to roll back.")


@command("rollback", RollbackOptions)
def rollback(options: RollbackOptions, *, as_json: bool) -> None:
    """Go back to an earlier EDITION of a split.

    One write of dataset.json restores the split to its state when EDITION was the
    newest. The present state is kept until `gristmill clean`, so that you can go back.
    """
    from gristmill.dataset.commit.roll_back import roll_back
    from gristmill.dataset.metadata.open_manifest import chosen_split, open_manifest
    from gristmill.pipelines.text.edition_history import edition_numbers
    from gristmill.pipelines.text.formatting import plural

    dataset = options.dataset
    name = chosen_split(dataset, open_manifest(dataset), options.split)
    now = roll_back(dataset, name, options.edition).splits[name]
    if as_json:
        found = {"split": name, "editions": now.numbers, "records": now.records}
        click.echo(json.dumps(found, indent=2))
        return
    click.echo(f"{dataset}, split {name}: {edition_numbers(now)}")
    click.echo(f"  {plural(now.records, 'record')}, digest {now.records_digest}")
    next_step("inspect", dataset)


@dataclasses.dataclass(frozen=True, kw_only=True)
class CleanOptions:
    """Options of `gristmill clean`."""

    dataset: str = argument()
    dry_run: bool = flag("List the files, and delete none of them.")
    unfinished: bool = flag(
        "Also delete the files of unfinished commands for future editions. A "
        "command that still runs fails then."
    )


@command("clean", CleanOptions)
def clean(options: CleanOptions, *, as_json: bool) -> None:
    """Delete replaced editions, and files that no edition names.

    Runs that have a replaced edition open fail at their next read. Unfinished work
    stays: its files belong to future editions.
    """
    from gristmill.dataset.commit.clean import clean as clean_dataset
    from gristmill.pipelines.text.formatting import plural, size_text

    dry_run, unfinished = options.dry_run, options.unfinished

    def show(path: str, size_bytes: int) -> None:
        if dry_run and not as_json:
            click.echo(f"{size_bytes:>15,} {path}")

    found = clean_dataset(
        options.dataset, unfinished=unfinished, delete=not dry_run, seen=show
    )
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
    for split, edition in found.editions:
        click.echo(f"split {split}: edition {edition:,} {gone}")
    done = "to delete" if dry_run else "deleted"
    click.echo(f"{done}: {plural(found.files, 'file')}, {size_text(found.file_bytes)}")
    if dry_run and found.files:
        more = ["--unfinished"] if unfinished else []
        next_step("clean", options.dataset, *more)
    elif not dry_run:
        next_step("inspect", options.dataset)
