"""`gristmill trace`: finds the record of a row, or the rows of a record."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import click

from gristmill.pipelines.commands.messages import command_line, next_step, texts_of
from gristmill.pipelines.commands.order import Order, opened_batches, usage_errors
from gristmill.pipelines.commands.parameters import command, options_given
from gristmill.pipelines.options.given_datasets import (
    check_mixture,
    mixture_of,
    numbers_by_name,
)
from gristmill.pipelines.options.option import flag, integer, text, tokenizer_of_rows

if TYPE_CHECKING:
    from gristmill.loader.data.batches import Batches
    from gristmill.loader.data.dataset import Dataset
    from gristmill.loader.order.step_records import Sighting
    from gristmill.loader.provenance.find_document import FoundDocument
    from gristmill.loader.provenance.locate import Location


@dataclasses.dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """Options of `gristmill trace` alone."""

    step: int | None = integer("Step of the row to trace, counted from 0. Needs --row.")
    row: int | None = integer(
        "Row of the global batch to trace, counted from 0. Needs --step."
    )
    token: int | None = integer(
        "Trace only the piece of a packed row that has this token, counted from 0.",
        shown="all pieces",
    )
    records: str | None = text(
        "Find the steps and rows of these records instead, counted from 0; A:B is all "
        "from A to before B. Without --batch-size and --state, only their sources. "
        "With --state, --edition is the one in which they have these numbers.",
        "N,A:B,...",
    )
    document: str | None = text(
        "Find the steps and rows of a document of packed rows instead, by its source: "
        "PLACE is a byte offset, or the number of a row or record, or line:N.",
        "FILE@PLACE",
    )
    of: str | None = text(
        "Dataset of a mixture that --records or --document is in.", "NAME"
    )
    first_epoch: int = integer(
        "First epoch to search for --records or --document, counted from 0.", 0
    )
    stop_epoch: int | None = integer(
        "Stop the search before this epoch.", shown="one after --first-epoch"
    )
    tokenizer: str | None = tokenizer_of_rows("--show shows tokens as text.")
    show: bool = flag("Also show the record.", last=True)

    @property
    def epochs(self) -> dict[str, int]:
        """The epochs to search, as arguments of a search."""
        first, stop = self.first_epoch, self.stop_epoch
        stop = first + 1 if stop is None else stop
        return {"first_epoch": first, "stop_epoch": stop}


@command("trace", TraceOptions, Order)
def trace(options: TraceOptions, order: Order, *, as_json: bool) -> None:
    """Find the record of a training step's row, and its source.

    For a packed row, the document of each piece is found; for a --token of a
    conversation, also its message. DATASET is a path, or NAME=PATH for each dataset of
    a mixture; several paths, also of one NAME, are joined. Give the same arguments as
    to gristmill.loader.global_batches, or the --state of a feed.
    """
    from gristmill.dataset.base.errors import InputError

    step, row = options.step, options.row
    document, show = options.document, options.show
    wanted = [one is not None for one in (step, options.records, document)]
    if (step is None) != (row is None) or sum(wanted) != 1:
        raise InputError(
            "give --step and --row, or --records, or --document",
            cure="give --step and --row for a row, --records for records, or "
            "--document for a document",
        )
    if options.token is not None and step is None:
        raise InputError(
            "--token is a token of a row", cure="give --step and --row with it"
        )
    _check(order.dataset, options)
    records = _numbers(options.records)
    with usage_errors():
        epochs = options_given(("first_epoch", "stop_epoch", "state"))
        if records and not (order.given() or epochs):
            _trace_sources(order, records, options, as_json=as_json)
            return
        of_edition = None
        if records and order.state and (order.edition or "").isdecimal():
            # The state says which editions were open.
            of_edition = int(order.edition or "")
            order = dataclasses.replace(order, edition=None)
        batches = opened_batches(order)
        if step is not None and row is not None:
            seen = _trace_row(batches, step, row, options, as_json=as_json)
            if not show:
                next_step(*command_line(), "--show", why="what is in it")
            else:
                again = command_line(without=("step", "row", "token"))
                of = ("--of", seen.dataset) if batches.names else ()
                where = ("--records", seen.record, *of)
                next_step(*again, *where, why="where it is seen again")
        elif records:
            _trace_records(batches, records, of_edition, options, as_json=as_json)
        elif document is not None:
            documents = _trace_document(batches, document, options, as_json=as_json)
            pieces = (piece for one in documents for piece in one.pieces)
            _next_row([seen for piece in pieces for seen in piece.sightings])


def _numbers(given: str | None) -> list[int]:
    """Returns the numbers of `--records`, none if it is not given."""
    from gristmill.dataset.base.errors import InputError

    found = numbers_by_name(given, "--records")
    if found.keys() - {""}:
        raise InputError(
            "--records of one dataset have no names",
            expected="N, or A:B from A to before B, with commas between",
            got=given,
            cure="give the numbers alone, and the name of the dataset with --of",
        )
    return found.get("", [])


def _trace_records(
    batches: Batches,
    records: Sequence[int],
    edition: int | None,
    options: TraceOptions,
    *,
    as_json: bool,
) -> None:
    """Prints the steps and rows that see records."""
    found: list[Sighting] = []
    for record in records:
        seen = batches.find(record, options.of, edition=edition, **options.epochs)
        if len(records) > 1 and not as_json:
            click.echo(f"record {record:,}")
        _print_sightings(seen, as_json=as_json)
        if options.show:
            of_it = batches.datasets[batches.number_of(options.of)]
            of_it = of_it if edition is None else of_it.as_of(edition)
            _print_record(of_it, record, options, as_json=as_json)
        found += seen
    _next_row(found)


def _trace_sources(
    order: Order, records: Sequence[int], options: TraceOptions, *, as_json: bool
) -> None:
    """Prints where records come from, whatever the order."""
    from gristmill.dataset.base.errors import InputError
    from gristmill.loader.provenance.locate import locate_record
    from gristmill.pipelines.text.location import location_json, location_text
    from gristmill.pipelines.text.source_details import detailed

    opened = order.opened()
    name = options.of
    if isinstance(opened, Mapping):
        if name not in opened:
            raise InputError(
                "the mixture has no such dataset",
                expected=f"--of with one of {', '.join(opened)}",
                got=name,
                cure="give the name of one of these",
            )
        opened = opened[name]
    for record in records:
        location = detailed(locate_record(opened, record, name=name), [opened])
        if as_json:
            fields = location_json(location)
            del fields["epoch"]
            click.echo(json.dumps(fields))
        else:
            click.echo(location_text(location))
        if options.show:
            _print_record(opened, record, options, as_json=as_json)
    again = (*command_line(without=("show",)), "--batch-size", "N")
    next_step(*again, why="the steps that it is seen in")


def _trace_row(
    batches: Batches, step: int, row: int, options: TraceOptions, *, as_json: bool
) -> Location:
    """Prints the content of a row, and returns the place of its record."""
    from gristmill.loader.data.batches import row_at
    from gristmill.loader.provenance.locate import locate
    from gristmill.pipelines.text.location import location_json, location_text
    from gristmill.pipelines.text.source_details import detailed

    location = detailed(locate(batches, step, row, options.token), batches.datasets)
    if as_json:
        fields = {"step": step, "row": row} | location_json(location)
        click.echo(json.dumps(fields))
    else:
        click.echo(f"step {step:,}, row {row:,}: epoch {location.found.epoch:,}")
        click.echo(location_text(location, options.token))
    if options.show:
        seen = row_at(batches, step, row)
        _print_record(seen.dataset, seen.record, options, as_json=as_json)
    return location.found


def _trace_document(
    batches: Batches, document: str, options: TraceOptions, *, as_json: bool
) -> list[FoundDocument]:
    """Prints where a document is, and returns that."""
    from gristmill.dataset.base.errors import InputError
    from gristmill.loader.provenance.find_document import find_document
    from gristmill.pipelines.text.location import FilePlace, document_text
    from gristmill.pipelines.text.source_details import line_offset, listed_sources

    place = FilePlace.parse(document)
    if place is None:
        raise InputError(
            "not a place of a file",
            expected="FILE@PLACE, with a byte offset, the number of a row or record, "
            "or line:N",
            got=document,
            cure="give the file as it was given to the conversion, @, and the place",
        )
    number: int | None = place.number
    if place.is_line:
        number = line_offset(listed_sources(batches.datasets, place.path), place.number)
    if number is None:
        raise InputError(
            "there is no such line",
            where=place.path,
            expected="a line, counted from 1, of a file of lines that was converted",
            got=f"line {place.number:,}",
            cure="give FILE as trace shows it, with a byte offset or such a line",
        )
    found = find_document(batches, place.path, number, options.of, **options.epochs)
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(one) for one in found]))
        return found
    for one in found:
        click.echo(document_text(one))
    return found


def _next_row(found: Sequence[Sighting]) -> None:
    """Says how to trace the first row that a record was found in."""
    if found:
        searched = ("records", "document", "of", "first_epoch", "stop_epoch", "show")
        order = command_line(without=searched)
        place = ("--step", found[0].step, "--row", found[0].row)
        next_step(*order, *place, "--show", why="the first of these rows")


def _check(dataset: tuple[str, ...], options: TraceOptions) -> None:
    """Refuses options that do not go together."""
    from gristmill.dataset.base.errors import InputError

    if options.of is not None:
        check_mixture(dataset, "--of")
    mixture = mixture_of(dataset)
    if options.records is not None and options.of is None and mixture is not None:
        raise InputError(
            "record numbers are those of a dataset of the mixture",
            expected=f"--of with one of {', '.join(mixture)}",
            cure="give --of NAME",
        )
    first_epoch, stop_epoch = options.first_epoch, options.stop_epoch
    if stop_epoch is not None and stop_epoch <= first_epoch:
        raise InputError(
            "there is no epoch to search",
            expected="--stop-epoch above --first-epoch: the epoch of its number is not "
            "searched",
            got=f"--first-epoch {first_epoch} --stop-epoch {stop_epoch}",
            cure=f"give --stop-epoch {first_epoch + 1} or more",
        )


def _print_record(
    dataset: Dataset, number: int, options: TraceOptions, *, as_json: bool
) -> None:
    from gristmill.pipelines.text.records import shown_record

    shown = shown_record(dataset, number, texts_of(options.tokenizer))
    click.echo(shown.json() if as_json else shown.text())


def _print_sightings(found: list[Sighting], *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([sighting._asdict() for sighting in found]))
        return
    if not found:
        from gristmill.pipelines.text.location import NOT_SEEN

        click.echo(NOT_SEEN)
    for epoch, step, row in found:
        click.echo(f"step {step:,}, row {row:,}: epoch {epoch:,}")
