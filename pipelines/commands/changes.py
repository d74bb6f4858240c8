"""Commands that change a committed dataset: its columns, its editions, its records."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.commands.command import command
from gristmill.pipelines.commands.jobs import run_beside_dataflow
from gristmill.pipelines.commands.messages import (
    as_json,
    next_step,
    options_given,
    refuse,
    show,
)
from gristmill.pipelines.commands.shared_options import (
    COUNT,
    RUN,
    argument,
    choice,
    edition,
    flag,
    paths,
    runner,
    split,
    text,
    workers,
)

if TYPE_CHECKING:
    from gristmill.pipelines.columns.row_store import JoinBy


_OF_TABLES = ("key", "number", "columns", "missing", "allow_unmatched", "repeated")


@command()
@argument("dataset")
@paths("files", required=False)
@text(
    "--key",
    "NAME",
    "Rows belong to the records that have their key: a feature, and a column of FILES "
    "of the same name, or FEATURE=COLUMN.",
)
@text(
    "--number",
    "NAME",
    "Rows name the number of their record in the split, in this column.",
)
@text("--columns", "NAME,...", "Columns of FILES to attach.", "all but the key")
@text(
    "--map",
    "MODULE:FUNCTION",
    "Compute the columns instead: the function gets a record, and returns a dict of "
    "its values by column.",
)
@text(
    "--missing",
    "VALUE",
    "Value, as JSON, for records without a row or value; or an object with one for "
    "each column. Without it, they are an error.",
)
@choice(
    "--repeated",
    ("error", "first", "last"),
    "Which of several rows with the same key to take.",
)
@flag("--allow-unmatched", "Leave out rows that belong to no record.")
@flag("--overwrite", "Replace columns of these names.")
@split("Split whose records get the columns.")
@workers()
@runner("With --map: run")
def attach(given: Any) -> None:
    """Attach columns, such as scores, to the records of a dataset.

    FILES are Parquet or JSON lines, or a dataset. The records stay as they are, and so
    do the states of runs. Each column is bound to its records by their digests.
    """
    from gristmill.pipelines.columns.attach import attach_computed, attach_tables

    dataset, files = given.dataset, given.files
    refuse(
        given.runner and given.map is None,
        "only --map runs on Beam",
        got=f"--runner {given.runner}",
        cure="leave --runner out",
    )
    useless = options_given(_OF_TABLES) + ["FILES"] * bool(files)
    refuse(
        given.map is not None and useless,
        "columns are joined from files, or computed by a function",
        got=f"--map and {', '.join(useless)}",
        cure="leave out --map, or the others",
    )
    refuse(
        given.map is None and not files,
        "there is nothing to attach",
        expected="files, or --map",
        cure="give files of Parquet or JSON lines, a dataset, or a function",
    )
    how = run_beside_dataflow(given, "columns cannot be attached")
    how |= {"split": given.split, "overwrite": given.overwrite}
    if given.map is not None:
        show(attach_computed(dataset, given.map, **how))
    else:
        del how["beam_options"]
        names = given.columns and given.columns.split(",")
        show(attach_tables(dataset, files, _join_by(given), columns=names, **how))
    next_step("inspect", dataset)


def _join_by(given: Any) -> JoinBy:
    from gristmill.pipelines.columns.row_store import JoinBy

    key, number, missing = given.key, given.number, given.missing
    refuse(
        bool(key) == bool(number),
        "exactly one option must match rows to records",
        expected="--key or --number",
        got="both" if key else "none of them",
        cure="give one of these",
    )
    feature, _, column = (key or "").partition("=")
    try:
        fill = None if missing is None else json.loads(missing)
    except ValueError as e:
        raise InputError(
            "--missing is not a value of JSON",
            expected='such as 0, NaN, "" or {"score": 0.5}',
            got=missing,
            cure=f"correct it: {e}",
        ) from e
    return JoinBy(
        feature=feature or None,
        key=number or column or feature,
        repeated=given.repeated,
        allow_unmatched=given.allow_unmatched,
        fill=fill,
    )


@command()
@argument("dataset")
@text(
    "--by",
    "KIND",
    "The part that is the same in duplicates: text; record, the stored bytes; or "
    "normalised, the text by NFKC, in lower case, with white space collapsed. "
    "text:NAME and normalised:NAME name the feature, - the whole record.",
    None,
    default="text",
)
@split("Split whose records get the column.")
@flag("--overwrite", "Replace a column duplicate_of that the dataset has.")
@RUN
def unique(given: Any) -> None:
    """Find exact duplicates among the records of a dataset.

    The dataset gets the column duplicate_of: the number of the first of equal records,
    or -1 for that itself. The records stay; `--select 'duplicate_of < 0'` of other
    commands takes one of each.
    """
    from gristmill.pipelines.columns.attach import run_anywhere
    from gristmill.transforms.columns.duplicates import DuplicatesJob

    dataset, split = given.dataset, given.split
    where = run_beside_dataflow(given, "duplicates cannot be found")
    job = DuplicatesJob(dataset, given.by, split, given.overwrite)
    found = run_anywhere(job, dataset, split, **where)
    names = ("split", "by", "records", "kept", "duplicates", "done_before")
    show(
        {name: getattr(found, name) for name in names},
        f"{found.manifest.name}/{found.split}: {found.records:,} records = "
        f"{found.kept:,} kept + {found.duplicates:,} duplicates, by {found.by}",
    )
    next_step("inspect", dataset)


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
    name = chosen_split(given.split, open_manifest(dataset).splits, dataset)
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
