"""`gristmill remove` and `attach`: a dataset loses records, or gets columns."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import click

from gristmill.pipelines.commands.jobs import run_of
from gristmill.pipelines.commands.messages import is_quiet, next_step
from gristmill.pipelines.commands.parameters import command
from gristmill.pipelines.options.definitions import LaunchOptions
from gristmill.pipelines.options.option import (
    argument,
    choice,
    flag,
    integer,
    like,
    split_name,
    text,
    worker_count,
)

if TYPE_CHECKING:
    from gristmill.pipelines.columns.attached import Attached
    from gristmill.pipelines.columns.row_keys import JoinBy


@dataclasses.dataclass(frozen=True, kw_only=True)
class RemoveOptions:
    """Options of `gristmill remove`."""

    dataset: str = argument()
    records: str | None = text(
        "Remove the records that this file names, one a line: FILE@PLACE as trace "
        "shows it, with a byte offset, the number of a row or record, or line:N; or "
        "the number of a record in the split. From packed rows, documents are removed: "
        "by FILE@PLACE, or SHARD@N for document N of a shard.",
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
        "Remove what is found though some lines name nothing that is there."
    )
    erase: bool = flag(
        "Delete the editions before, too, so that no file of the dataset holds the "
        "records any more."
    )
    workers: int | None = worker_count()
    runner: str | None = like(
        LaunchOptions,
        "runner",
        help="Run on this Beam runner instead of local processes. Beam's options can "
        "follow, or stand after --.",
    )


@command("remove", RemoveOptions)
def remove(options: RemoveOptions, *, as_json: bool) -> None:
    """Remove records from a split, or documents from packed rows.

    Only shards that hold some are written again; the others are shared with the edition
    before, which is kept to go back to, unless --erase is given. Readers see the old
    edition until the new one is whole.

    After a failure, run the same command again: finished shards are kept.
    """
    from gristmill.dataset.base.errors import InputError
    from gristmill.pipelines.removal.named_records import (
        asked_records,
        read_lines,
        selected_records,
    )
    from gristmill.pipelines.removal.run_removal import Removed, check_found, remove

    launch = LaunchOptions(runner=options.runner)
    if launch.on_dataflow:
        raise InputError(
            "records cannot be removed on Dataflow by this command",
            cure="leave --runner out, or use gristmill.transforms.RemoveRecords in a "
            "pipeline of your own",
        )
    run = run_of(launch, options.workers)
    dataset, records, condition = options.dataset, options.records, options.where
    if (records is None) == (condition is None) or (condition and options.column):
        raise InputError(
            "records to remove are named in one way",
            expected="--records, which --column can go with, or --where",
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttachOptions:
    """Options of `gristmill attach`."""

    dataset: str = argument()
    files: tuple[str, ...] = argument("paths", required=False)
    key: str | None = text(
        "Rows belong to the records that have their key: a feature, and a column of "
        "FILES of the same name, or FEATURE=COLUMN.",
        "NAME",
        "none",
    )
    place: str | None = text(
        "Rows name the place that their record came from, as trace shows it: the "
        "columns with the source file, and with the byte offset or number in it.",
        "FILE,PLACE",
        "none",
    )
    number: str | None = text(
        "Rows name the number of their record in the split, in this column.",
        "NAME",
        "none",
    )
    columns: str | None = text(
        "Columns of FILES to attach.", "NAME,...", "all but the key"
    )
    map: str | None = text(
        "Compute the columns instead: the function gets a record, and returns a dict "
        "of its values by column.",
        "MODULE:FUNCTION",
        "none",
    )
    missing: str | None = text(
        "Value, as JSON, for records without a row or value; or an object with one for "
        "each column. Without it, they are an error.",
        "VALUE",
        "none",
    )
    repeated: str = choice(
        "Which of several rows with the same key to take.", ("error", "first", "last")
    )
    allow_unmatched: bool = flag("Leave out rows that belong to no record.")
    overwrite: bool = flag("Replace columns of these names.")
    split: str | None = split_name("Split whose records get the columns.")
    workers: int | None = worker_count()
    runner: str | None = like(
        LaunchOptions,
        "runner",
        help="With --map: run on this Beam runner instead of local processes. Beam's "
        "options can follow, or stand after --.",
    )


@command("attach", AttachOptions)
def attach(options: AttachOptions, *, as_json: bool) -> None:
    """Attach columns, such as scores, to the records of a dataset.

    FILES are Parquet or JSON lines, or a dataset. The records stay as they are, and so
    do the states of runs. Each column is bound to its records by their digests.
    """
    found = _attached(options)
    click.echo(found.json() if as_json else found.text())
    next_step("inspect", options.dataset)


def _attached(options: AttachOptions) -> Attached:
    from gristmill.dataset.base.errors import InputError
    from gristmill.pipelines.columns.attach import attach_computed, attach_tables

    run = run_of(launch := LaunchOptions(runner=options.runner), options.workers)
    if launch.on_dataflow or (launch.runner and options.map is None):
        raise InputError(
            "only --map runs on Beam, and not on Dataflow by this command",
            got=f"--runner {options.runner}",
            cure="leave --runner out, or use gristmill.transforms.AttachColumns in a "
            "pipeline of your own",
        )
    common: dict[str, Any] = {
        "split": options.split,
        "overwrite": options.overwrite,
        "workers": run.workers,
        "show_progress": not is_quiet(),
    }
    given = [
        f"--{name.replace('_', '-')}"
        for name in ("key", "place", "number", "columns", "missing", "allow_unmatched")
        if getattr(options, name)
    ]
    given += ["--repeated"] * (options.repeated != "error")
    if options.map is not None:
        given += ["FILES"] * bool(options.files)
        if given:
            raise InputError(
                "columns are joined from files, or computed by a function",
                got=f"--map and {', '.join(given)}",
                cure="leave out --map, or the others",
            )
        given_beam = run.beam_options
        return attach_computed(
            options.dataset, options.map, beam_options=given_beam, **common
        )
    if not options.files:
        raise InputError(
            "there is nothing to attach",
            expected="files, or --map",
            cure="give files of Parquet or JSON lines, a dataset, or a function",
        )
    columns = None if options.columns is None else options.columns.split(",")
    by = _join_by(options)
    return attach_tables(options.dataset, options.files, by, columns=columns, **common)


def _join_by(options: AttachOptions) -> JoinBy:
    from gristmill.dataset.base.errors import InputError
    from gristmill.pipelines.columns.row_keys import JoinBy

    ways = [name for name in ("key", "place", "number") if getattr(options, name)]
    if len(ways) != 1:
        raise InputError(
            "rows find their records in one way",
            expected="--key, --place or --number",
            got=", ".join(f"--{name}" for name in ways) or "none of them",
            cure="give one of these",
        )
    feature: str | None = None
    key: tuple[str, ...] = (options.number or "",)
    if options.key:
        feature, _, column = options.key.partition("=")
        key = (column or feature,)
    elif options.place:
        file, comma, place = options.place.partition(",")
        key = (file, place)
        if not (file and comma and place):
            raise InputError(
                "--place names two columns",
                expected="FILE,PLACE",
                got=options.place,
                cure="name the column with the file, and that with the place in it",
            )
    fill = None
    if options.missing is not None:
        try:
            fill = json.loads(options.missing)
        except ValueError as e:
            raise InputError(
                "--missing is not a value of JSON",
                expected='such as 0, NaN, "" or {"score": 0.5}',
                got=options.missing,
                cure=f"correct it: {e}",
            ) from e
    return JoinBy(
        feature=feature,
        key=key,
        repeated=options.repeated,  # type: ignore[arg-type]
        allow_unmatched=options.allow_unmatched,
        fill=fill,
    )
