"""`gristmill trace`: finds the record of a row, or the rows of a record."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gristmill.pipelines.commands.exit_codes import EPILOG, errors_reported, json_option
from gristmill.pipelines.commands.order import (
    opened_batches,
    order_given,
    order_options,
)
from gristmill.pipelines.options.given_datasets import (
    check_mixture,
    mixture_of,
    opened_datasets,
)
from gristmill.pipelines.text.common_options import command_line
from gristmill.pipelines.text.messages import next_step

if TYPE_CHECKING:
    from gristmill.loader.data.batches import Batches
    from gristmill.loader.data.dataset import Dataset
    from gristmill.loader.order import Sighting
    from gristmill.loader.provenance.find_document import FoundDocument
    from gristmill.loader.provenance.locate import Location


@click.command("trace", epilog=EPILOG)
@click.option(
    "--step",
    type=int,
    metavar="N",
    help="Step of the row to trace, counted from 0. Needs --row.",
)
@click.option(
    "--row",
    type=int,
    metavar="N",
    help="Row of the global batch to trace, counted from 0. Needs --step.",
)
@click.option(
    "--token",
    type=int,
    metavar="N",
    show_default="all pieces",
    help="Of a packed row, trace only the piece that has this token, counted from 0.",
)
@click.option(
    "--record",
    type=int,
    metavar="N",
    help="Find the steps and rows of this record instead, counted from 0; without "
    "--batch-size and --state, only its source. With --state, --edition is the one in "
    "which it has this number.",
)
@click.option(
    "--document",
    metavar="FILE@PLACE",
    help="Find the steps and rows of a document of packed rows instead, by its source: "
    "PLACE is a byte offset, or the number of a row or record, or line:N.",
)
@click.option(
    "--of",
    "name",
    metavar="NAME",
    help="Dataset of a mixture that --record or --document is in.",
)
@click.option(
    "--first-epoch",
    type=int,
    metavar="N",
    default=0,
    show_default=True,
    help="First epoch to search for --record or --document, counted from 0.",
)
@click.option(
    "--stop-epoch",
    type=int,
    metavar="N",
    show_default="one after --first-epoch",
    help="Stop the search before this epoch.",
)
@order_options
@click.option("--show", is_flag=True, help="Also show the record.")
@json_option
@click.pass_context
@errors_reported
def trace(
    ctx: click.Context,
    /,
    *,
    dataset: tuple[str, ...],
    step: int | None,
    row: int | None,
    token: int | None,
    record: int | None,
    document: str | None,
    name: str | None,
    first_epoch: int,
    stop_epoch: int | None,
    show: bool,
    as_json: bool,
    **order: Any,
) -> None:
    """Find the record of a training step's row, and its source.

    Of a packed row, find the document of each piece. DATASET is a path, or NAME=PATH
    for each dataset of a mixture; several paths, also of one NAME, are joined. Give the
    arguments that gristmill.loader.global_batches got, or the --state of a feed.
    """
    from gristmill.dataset.base.errors import (
        InputError,
        OutOfRangeError,
        StateMismatchError,
    )

    wanted = [one is not None for one in (step, record, document)]
    if (step is None) != (row is None) or sum(wanted) != 1:
        raise InputError(
            "give --step and --row, or --record, or --document",
            cure="give --step and --row for a row, --record for a record, or "
            "--document for a document",
        )
    if token is not None and step is None:
        raise InputError(
            "--token is a token of a row", cure="give --step and --row with it"
        )
    _check(dataset, name, record, first_epoch, stop_epoch)
    if stop_epoch is None:
        stop_epoch = first_epoch + 1
    try:
        asked = {*order, "first_epoch", "stop_epoch"} - {"split", "edition"}
        if record is not None and not order_given(ctx, asked):
            _trace_record(ctx, dataset, record, name, show=show, as_json=as_json)
            return
        of_edition = None
        if (
            record is not None
            and order["state"]
            and (order["edition"] or "").isdecimal()
        ):
            # The state says which editions were open.
            of_edition, order["edition"] = int(order["edition"]), None
        batches = opened_batches(ctx, dataset, **order)
        if step is not None and row is not None:
            seen = _trace_row(batches, step, row, token, show=show, as_json=as_json)
            if not show:
                next_step(*command_line(ctx), "--show", why="what is in it")
            else:
                again = command_line(ctx, without=("step", "row", "token"))
                of = ("--of", seen.dataset) if batches.names else ()
                where = ("--record", seen.record, *of)
                next_step(*again, *where, why="where it is seen again")
        elif record is not None:
            epochs = {"first_epoch": first_epoch, "stop_epoch": stop_epoch}
            found = batches.find(record, name, edition=of_edition, **epochs)
            _print_sightings(found, as_json=as_json)
            if show:
                of_it = batches.datasets[batches.number_of(name)]
                if of_edition is not None:
                    of_it = of_it.as_of(of_edition)
                _print_record(of_it, record, as_json=as_json)
            _next_row(ctx, found)
        elif document is not None:
            epochs = {"first_epoch": first_epoch, "stop_epoch": stop_epoch}
            documents = _trace_document(
                batches, document, name, as_json=as_json, **epochs
            )
            pieces = (piece for one in documents for piece in one.pieces)
            _next_row(ctx, [seen for piece in pieces for seen in piece.sightings])
    except (OutOfRangeError, StateMismatchError) as e:
        raise InputError(**e.facts()) from e


def _trace_record(
    ctx: click.Context,
    dataset: tuple[str, ...],
    record: int,
    name: str | None,
    *,
    show: bool,
    as_json: bool,
) -> None:
    """Prints where a record comes from, whatever the order."""
    from gristmill.dataset.base.errors import InputError
    from gristmill.loader.provenance.locate import locate_record
    from gristmill.pipelines.text.location import location_json, location_text
    from gristmill.pipelines.text.source_details import detailed

    opened = opened_datasets(dataset, ctx.params["split"], ctx.params["edition"])
    if isinstance(opened, Mapping):
        if name not in opened:
            raise InputError(
                "the mixture has no such dataset",
                expected=f"--of with one of {', '.join(opened)}",
                got=name,
                cure="give the name of one of these",
            )
        opened = opened[name]
    location = detailed(locate_record(opened, record, name=name), [opened])
    if as_json:
        fields = location_json(location)
        del fields["epoch"]
        click.echo(json.dumps(fields))
    else:
        click.echo(location_text(location))
    if show:
        _print_record(opened, record, as_json=as_json)
    again = (*command_line(ctx, without=("show",)), "--batch-size", "N")
    next_step(*again, why="the steps that it is seen in")


def _trace_row(
    batches: Batches,
    step: int,
    row: int,
    token: int | None,
    *,
    show: bool,
    as_json: bool,
) -> Location:
    """Prints what a row is, and returns where its record is."""
    from gristmill.loader.data.batches import row_at
    from gristmill.loader.provenance.locate import locate
    from gristmill.pipelines.text.location import location_json, location_text
    from gristmill.pipelines.text.source_details import detailed

    location = detailed(locate(batches, step, row, token), batches.datasets)
    if as_json:
        fields = {"step": step, "row": row} | location_json(location)
        click.echo(json.dumps(fields))
    else:
        click.echo(f"step {step:,}, row {row:,}: epoch {location.found.epoch:,}")
        click.echo(location_text(location, token))
    if show:
        seen = row_at(batches, step, row)
        _print_record(seen.dataset, seen.record, as_json=as_json)
    return location.found


def _trace_document(
    batches: Batches, document: str, name: str | None, *, as_json: bool, **epochs: int
) -> list[FoundDocument]:
    """Prints where a document is, and returns that."""
    from gristmill.dataset.base.errors import InputError
    from gristmill.loader.provenance.find_document import find_document
    from gristmill.pipelines.text.location import document_text
    from gristmill.pipelines.text.source_details import line_offset

    path, at, text = document.rpartition("@")
    line = text.removeprefix("line:")
    if not (at and path and line.replace(",", "").isdecimal()):
        raise InputError(
            "not a place of a file",
            expected="FILE@PLACE, with a byte offset, the number of a row or record, "
            "or line:N",
            got=document,
            cure="give the file as it was given to the conversion, @, and the place",
        )
    place = int(line.replace(",", ""))
    if line != text:
        place = line_offset(batches.datasets, path, place)
    found = find_document(batches, path, place, name, **epochs)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(one) for one in found]))
        return found
    for one in found:
        click.echo(document_text(one))
    return found


def _next_row(ctx: click.Context, found: Sequence[Sighting]) -> None:
    """Says how to trace the first row that a record was found in."""
    if found:
        searched = ("record", "document", "name", "first_epoch", "stop_epoch", "show")
        order = command_line(ctx, without=searched)
        place = ("--step", found[0].step, "--row", found[0].row)
        next_step(*order, *place, "--show", why="the first of these rows")


def _check(
    dataset: tuple[str, ...],
    name: str | None,
    record: int | None,
    first_epoch: int,
    stop_epoch: int | None,
) -> None:
    """Refuses options that do not go together."""
    from gristmill.dataset.base.errors import InputError

    if name is not None:
        check_mixture(dataset, "--of")
    mixture = mixture_of(dataset)
    if record is not None and name is None and mixture is not None:
        raise InputError(
            "record numbers are those of a dataset of the mixture",
            expected=f"--of with one of {', '.join(mixture)}",
            cure="give --of NAME",
        )
    if stop_epoch is not None and stop_epoch <= first_epoch:
        raise InputError(
            "there is no epoch to search",
            expected="--stop-epoch above --first-epoch: the epoch of its number is not "
            "searched",
            got=f"--first-epoch {first_epoch} --stop-epoch {stop_epoch}",
            cure=f"give --stop-epoch {first_epoch + 1} or more",
        )


def _print_record(dataset: Dataset, number: int, *, as_json: bool) -> None:
    from gristmill.pipelines.text.packed_rows import (
        packed_format,
        shown_json,
        shown_text,
    )

    shards, _ = dataset.find([number])
    part, _ = dataset.part_of(int(shards[0]))
    row_format = packed_format(part.committed)
    (record,) = dataset.read([number])
    click.echo((shown_json if as_json else shown_text)(number, record, row_format))


def _print_sightings(found: list[Sighting], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([sighting._asdict() for sighting in found]))
        return
    if not found:
        from gristmill.pipelines.text.location import NOT_SEEN

        click.echo(NOT_SEEN)
    for epoch, step, row in found:
        click.echo(f"step {step:,}, row {row:,}: epoch {epoch:,}")
