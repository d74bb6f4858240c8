"""`gristmill rollback`, `clean` and `remove`: changes of a committed dataset."""

from __future__ import annotations

from typing import Any

import click

from gristmill.pipelines.commands.command import command
from gristmill.pipelines.commands.jobs import run_beside_dataflow
from gristmill.pipelines.commands.messages import as_json, next_step, refuse, show
from gristmill.pipelines.commands.shared_options import (
    COUNT,
    RUN,
    argument,
    edition,
    flag,
    split,
    text,
)


@command()
@argument("dataset")
@argument("edition", type=COUNT, metavar="EDITION")
@split("Split to roll back.")
def rollback(given: Any) -> None:
    """Go back to an earlier EDITION of a split.

    One write of dataset.json restores the split to its state when EDITION was the
    newest. The present state is kept until `gristmill clean`, so that you can go back.
    """
    from gristmill.dataset.commit.commit import roll_back
    from gristmill.dataset.metadata.manifest import chosen_split, open_manifest

    dataset = given.dataset
    name = chosen_split(dataset, open_manifest(dataset), given.split)
    now = roll_back(dataset, name, given.edition).splits[name]
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
def clean(given: Any) -> None:
    """Delete replaced editions, and files that no edition names.

    Runs that have a replaced edition open fail at their next read. Unfinished work
    stays: its files belong to future editions.
    """
    from gristmill.dataset.commit.clean import clean as clean_dataset

    dataset, unfinished, delete = given.dataset, given.unfinished, not given.dry_run

    def seen(path: str, size_bytes: int) -> None:
        if not delete and not as_json():
            click.echo(f"{size_bytes:>15,} {path}")

    found = clean_dataset(dataset, unfinished=unfinished, delete=delete, seen=seen)
    show({"deleted": delete, **vars(found)})
    if delete:
        next_step("inspect", dataset)
    elif found.files:
        next_step("clean", dataset, *["--unfinished"] * unfinished)


@command()
@argument("dataset")
@text(
    "--records",
    "FILE",
    "Remove the records that this file names, one per line: FILE@PLACE as trace shows "
    "it, with a byte offset, the number of a row or record, or line:N; or the number "
    "of a record in the split.",
)
@text(
    "--where",
    "CONDITION",
    "Remove the records whose columns fulfil this condition, such as 'duplicate_of >= "
    "0'.",
)
@text(
    "--column",
    "NAME",
    "Each line is a value of this feature instead. All records are read to find those "
    "that have it.",
)
@split("Split to change.")
@edition("Edition in which records have these numbers; it has to be the newest one.")
@flag("--allow-missing", "Remove what is found, even if some lines match nothing.")
@flag(
    "--erase",
    "Also delete earlier editions, so that no file of the dataset holds the records "
    "any more. Refused while other work on the split is unfinished.",
)
@flag(
    "--give-up",
    "With --erase: give up unfinished work on the split, and delete it. A command that "
    "still runs fails then.",
)
@RUN
def remove(given: Any) -> None:
    """Remove records from a split.

    Only shards that hold some of them are written again; the rest are shared with the
    previous edition, which is kept unless --erase is given. Readers see the old edition
    until the new one is complete.

    After a failure, run the same command again: finished shards are kept.
    """
    from gristmill.pipelines.removal import Removed, asked_records, remove

    run = run_beside_dataflow(given, "records cannot be removed")
    records, where, column = given.records, given.where, given.column
    refuse(
        (records is None) == (where is None) or (where and column),
        "exactly one option must name the records to remove",
        expected="--records, with or without --column, or --where",
        cure="give one of these",
    )
    asked, missing = asked_records(
        given.dataset,
        file=records,
        condition=where,
        column=column,
        split=given.split,
        edition=given.edition,
        allow_missing=given.allow_missing,
    )
    result = remove(
        given.dataset,
        asked,
        erase=given.erase,
        give_up=given.erase and given.give_up,
        **run,
    )
    removed = {"dataset": given.dataset, "result": result, "erased": given.erase}
    show(Removed(**removed, missing=tuple(missing)))
    next_step("verify", given.dataset)
