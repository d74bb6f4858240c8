"""`gristmill attach` and `unique`: columns beside the records of a dataset."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import click

from gristmill.pipelines.commands.jobs import run_beside_dataflow
from gristmill.pipelines.commands.messages import is_quiet, next_step
from gristmill.pipelines.commands.parameters import command
from gristmill.pipelines.options.definitions import beam_runner
from gristmill.pipelines.options.option import (
    argument,
    choice,
    flag,
    split_name,
    text,
    worker_count,
)

if TYPE_CHECKING:
    from gristmill.pipelines.columns.attached import Attached
    from gristmill.pipelines.columns.row_keys import JoinBy


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
    runner: str | None = beam_runner("With --map: run")


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

    if options.runner and options.map is None:
        raise InputError(
            "only --map runs on Beam",
            got=f"--runner {options.runner}",
            cure="leave --runner out",
        )
    run = run_beside_dataflow(
        *(options.runner, options.workers),
        what="columns cannot be attached",
        transform="AttachColumns",
    )
    common: dict[str, Any] = {
        "split": options.split,
        "overwrite": options.overwrite,
        "workers": run.workers,
        "show_progress": not is_quiet(),
    }
    given = [
        f"--{name.replace('_', '-')}"
        for name in ("key", "number", "columns", "missing", "allow_unmatched")
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

    if bool(options.key) == bool(options.number):
        raise InputError(
            "exactly one option must match rows to records",
            expected="--key or --number",
            got="both" if options.key else "none of them",
            cure="give one of these",
        )
    feature: str | None = None
    key = options.number or ""
    if options.key:
        feature, _, column = options.key.partition("=")
        key = column or feature
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class UniqueOptions:
    """Options of `gristmill unique`."""

    dataset: str = argument()
    by: str = text(
        "The part that is the same in duplicates: text; record, the stored bytes; or "
        "normalised, the text by NFKC, in lower case, with white space collapsed. "
        "text:NAME and normalised:NAME name the feature, - the whole record.",
        "KIND",
        default="text",
    )
    split: str | None = split_name("Split whose records get the column.")
    overwrite: bool = flag("Replace a column duplicate_of that the dataset has.")
    workers: int | None = worker_count()
    runner: str | None = beam_runner()


@command("unique", UniqueOptions)
def unique(options: UniqueOptions, *, as_json: bool) -> None:
    """Find exact duplicates among the records of a dataset.

    The dataset gets the column duplicate_of: the number of the first of equal records,
    or -1 for that itself. The records stay; `--select 'duplicate_of < 0'` of other
    commands takes one of each.
    """
    from gristmill.pipelines.columns.attach import run_anywhere
    from gristmill.transforms.columns.duplicates import DuplicatesJob

    where = run_beside_dataflow(
        *(options.runner, options.workers),
        what="duplicates cannot be found",
        transform="FindDuplicates",
    )
    dataset, split = options.dataset, options.split
    found = run_anywhere(
        DuplicatesJob(dataset, options.by, split, options.overwrite),
        *(dataset, split, where.beam_options),
        workers=where.workers,
        show_progress=not is_quiet(),
    )
    if as_json:
        fields = {
            **{"split": found.split, "by": found.by, "records": found.records},
            **{"kept": found.kept, "duplicates": found.duplicates},
            "done_before": found.done_before,
        }
        click.echo(json.dumps(fields))
    else:
        before = ", found before" if found.done_before else ""
        click.echo(
            f"{found.manifest.name}/{found.split}: {found.records:,} records = "
            f"{found.kept:,} kept + {found.duplicates:,} duplicates, by "
            f"{found.by}{before}\n  column       duplicate_of"
        )
    next_step("inspect", dataset)
