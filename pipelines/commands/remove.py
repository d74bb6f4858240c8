"""`gristmill remove`: records leave a dataset."""

from __future__ import annotations

from typing import Any

from gristmill.pipelines.commands.command import command
from gristmill.pipelines.commands.jobs import run_beside_dataflow
from gristmill.pipelines.commands.messages import is_quiet, next_step, show
from gristmill.pipelines.commands.shared_options import (
    RUN,
    argument,
    edition,
    flag,
    split,
    text,
)


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
def remove(
    dataset: str,
    records: str | None,
    where: str | None,
    column: str | None,
    split: str | None,
    edition: int | None,
    allow_missing: bool,
    erase: bool,
    give_up: bool,
    workers: int | None,
    runner: str | None,
) -> None:
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

    run = run_beside_dataflow(*(runner, workers), what="records cannot be removed")
    if (records is None) == (where is None) or (where and column):
        raise InputError(
            "exactly one option must name the records to remove",
            expected="--records, with or without --column, or --where",
            cure="give one of these",
        )
    place: dict[str, Any] = {"split": split, "edition": edition}
    if where is not None:
        asked = selected_records(dataset, where, **place)
    else:
        lines = read_lines(records or "")
        asked = asked_records(dataset, lines, column=column, **place)
        check_found(asked, records or "", allow_missing=allow_missing)
    result = remove(
        dataset,
        asked.arguments,
        erase=erase,
        give_up=erase and give_up,
        **run._asdict(),
        show_progress=not is_quiet(),
    )
    missing = tuple(asked.missing)
    show(Removed(dataset=dataset, result=result, missing=missing, erased=erase))
    next_step("verify", dataset)
