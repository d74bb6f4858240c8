"""`gristmill remove`: records leave a dataset."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from gristmill.pipelines.commands.jobs import run_beside_dataflow
from gristmill.pipelines.commands.messages import is_quiet, next_step
from gristmill.pipelines.commands.parameters import command
from gristmill.pipelines.options.definitions import beam_runner
from gristmill.pipelines.options.option import (
    argument,
    flag,
    integer,
    split_name,
    text,
    worker_count,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoveOptions:
    """Options of `gristmill remove`."""

    dataset: str = argument()
    records: str | None = text(
        "Remove the records that this file names, one per line: FILE@PLACE as trace "
        "shows it, with a byte offset, the number of a row or record, or line:N; or "
        "the number of a record in the split.",
        "FILE",
        "none",
    )
    where: str | None = text(
        "Remove the records whose columns fulfil this condition, such as "
        "'duplicate_of >= 0'.",
        "CONDITION",
        "none",
    )
    column: str | None = text(
        "Each line is a value of this feature instead. All records are read to find "
        "those that have it.",
        "NAME",
        "none",
    )
    split: str | None = split_name("Split to change.")
    edition: int | None = integer(
        "Edition in which records have these numbers; it has to be the newest one.",
        shown="the newest",
        least=1,
    )
    allow_missing: bool = flag(
        "Remove what is found, even if some lines match nothing."
    )
    erase: bool = flag(
        "Also delete earlier editions, so that no file of the dataset holds the "
        "records any more. Refused while other work on the split is unfinished."
    )
    give_up: bool = flag(
        "With --erase: give up unfinished work on the split, and delete it. A command "
        "that still runs fails then."
    )
    workers: int | None = worker_count()
    runner: str | None = beam_runner()


@command("remove", RemoveOptions)
def remove(options: RemoveOptions, *, as_json: bool) -> None:
    """Remove records from a split.

    Only shards that hold some of them are written again; the rest are shared with the
    previous edition, which is kept unless --erase is given. Readers see the old edition
    until the new one is complete.

    After a failure, run the same command again: finished shards are kept.
    """
    from gristmill.dataset.base.errors import InputError
    from gristmill.pipelines.removal.named_records import (
        asked_records,
        read_lines,
        selected_records,
    )
    from gristmill.pipelines.removal.run_removal import Removed, check_found, remove

    run = run_beside_dataflow(
        *(options.runner, options.workers),
        what="records cannot be removed",
        transform="RemoveRecords",
    )
    dataset, records, condition = options.dataset, options.records, options.where
    if (records is None) == (condition is None) or (condition and options.column):
        raise InputError(
            "exactly one option must name the records to remove",
            expected="--records, with or without --column, or --where",
            cure="give one of these",
        )
    place: dict[str, Any] = {"split": options.split, "edition": options.edition}
    if condition is not None:
        asked = selected_records(dataset, condition, **place)
    else:
        lines = read_lines(records or "")
        asked = asked_records(dataset, lines, column=options.column, **place)
        check_found(asked, records or "", allow_missing=options.allow_missing)
    result = remove(
        dataset,
        asked.arguments,
        erase=options.erase,
        give_up=options.erase and options.give_up,
        workers=run.workers,
        beam_options=run.beam_options,
        show_progress=not is_quiet(),
    )
    removed = Removed(
        dataset=dataset,
        result=result,
        missing=tuple(asked.missing),
        erased=options.erase,
    )
    click.echo(removed.json() if as_json else removed.text())
    next_step("verify", dataset)
