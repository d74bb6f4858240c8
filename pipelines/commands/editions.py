"""`gristmill rollback` and `clean`: the editions of a dataset."""

from __future__ import annotations

import click

from gristmill.pipelines.commands.command import command
from gristmill.pipelines.commands.messages import as_json, next_step, show
from gristmill.pipelines.commands.shared_options import COUNT, argument, flag, split


@command()
@argument("dataset")
@argument("edition", type=COUNT, metavar="EDITION")
@split("Split to roll back.")
def rollback(dataset: str, edition: int, split: str | None) -> None:
    """Go back to an earlier EDITION of a split.

    One write of dataset.json restores the split to its state when EDITION was the
    newest. The present state is kept until `gristmill clean`, so that you can go back.
    """
    from gristmill.dataset.commit.roll_back import roll_back
    from gristmill.dataset.metadata.open_manifest import chosen_split, open_manifest

    name = chosen_split(dataset, open_manifest(dataset), split)
    now = roll_back(dataset, name, edition).splits[name]
    show(
        {
            "split": name,
            "editions": now.numbers,
            "records": now.records,
            "digest": now.records_digest,
        }
    )
    next_step("inspect", dataset)


@command()
@argument("dataset")
@flag("--dry-run", "List the files, and delete none of them.")
@flag(
    "--unfinished",
    "Also delete the files of unfinished commands for future editions. A command that "
    "still runs fails then.",
)
def clean(dataset: str, dry_run: bool, unfinished: bool) -> None:
    """Delete replaced editions, and files that no edition names.

    Runs that have a replaced edition open fail at their next read. Unfinished work
    stays: its files belong to future editions.
    """
    from gristmill.dataset.commit.clean import clean as clean_dataset

    def seen(path: str, size_bytes: int) -> None:
        if dry_run and not as_json():
            click.echo(f"{size_bytes:>15,} {path}")

    found = clean_dataset(dataset, unfinished=unfinished, delete=not dry_run, seen=seen)
    show({"deleted": not dry_run, **vars(found)})
    if dry_run and found.files:
        next_step("clean", dataset, *["--unfinished"] * unfinished)
    elif not dry_run:
        next_step("inspect", dataset)
