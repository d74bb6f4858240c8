"""`gristmill trace`: finds the record of a row, or the rows of a record."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gristmill.pipelines.commands.command import command
from gristmill.pipelines.commands.messages import (
    as_json,
    command_line,
    next_step,
    options_given,
    show,
    texts_of,
)
from gristmill.pipelines.commands.order import (
    ORDER,
    check_mixture,
    mixture_of,
    numbers_by_name,
    opened_batches,
    opened_of,
    order_given,
    usage_errors,
)
from gristmill.pipelines.commands.shared_options import (
    flag,
    option,
    text,
    tokenizer_of_rows,
)

if TYPE_CHECKING:
    from gristmill.loader.data.batches import Batches
    from gristmill.loader.data.dataset import Dataset
    from gristmill.loader.order.schedule import Sighting


@command(looks=True)
@option(
    "--step",
    type=int,
    metavar="N",
    help="Step of the row to trace, counted from 0. Needs --row.",
)
@option(
    "--row",
    type=int,
    metavar="N",
    help="Row of the global batch to trace, counted from 0. Needs --step.",
)
@option(
    "--token",
    type=int,
    metavar="N",
    show_default="all pieces",
    help="Trace only the piece of a packed row that has this token, counted from 0.",
)
@text(
    "--records",
    "N,A:B,...",
    "Find the steps and rows of these records instead, counted from 0; A:B is all from "
    "A to before B. Without --batch-size and --state, only their sources. With "
    "--state, --edition is the one in which they have these numbers.",
    None,
)
@text(
    "--document",
    "FILE@PLACE",
    "Find the steps and rows of a document of packed rows instead, by its source: "
    "PLACE is a byte offset, or the number of a row or record, or line:N. Without "
    "--batch-size and --state, only the records or rows made of it.",
    None,
)
@text("--of", "NAME", "Dataset of a mixture that --records or --document is in.", None)
@option(
    "--first-epoch",
    type=int,
    metavar="N",
    default=0,
    help="First epoch to search for --records or --document, counted from 0.",
)
@option(
    "--stop-epoch",
    type=int,
    metavar="N",
    show_default="one after --first-epoch",
    help="Stop the search before this epoch.",
)
@tokenizer_of_rows("--show shows tokens as text.")
@ORDER
@flag("--show", "Also show the record.")
def trace(**given: Any) -> None:
    """Find the record of a training step's row, and its source.

    For a packed row, the document of each piece is found; for a --token of a
    conversation, also its message. DATASET is a path, or NAME=PATH for each dataset of
    a mixture; several paths, also of one NAME, are joined. Give the same arguments as
    to gristmill.loader.global_batches, or the --state of a feed.
    """
    from gristmill.dataset.base.errors import InputError

    options = types.SimpleNamespace(**given)
    step, row, document = options.step, options.row, options.document
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
    _check(options)
    records = _numbers(options.records)
    with usage_errors():
        epochs = options_given(("first_epoch", "stop_epoch", "state"))
        if step is None and not (order_given() or epochs):
            _trace_sources(records, options)
            return
        of_edition = None
        if records and options.state and (options.edition or "").isdecimal():
            # The state says which editions were open.
            of_edition, options.edition = int(options.edition), None
        batches = opened_batches(options)
        if step is not None:
            _trace_row(batches, options)
        elif records:
            _trace_records(batches, records, of_edition, options)
        else:
            _trace_document(batches, options)


def _epochs(options: Any) -> dict[str, int]:
    """Returns the epochs to search, as arguments of a search."""
    first, stop = options.first_epoch, options.stop_epoch
    return {"first_epoch": first, "stop_epoch": first + 1 if stop is None else stop}


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
    batches: Batches, records: Sequence[int], edition: int | None, options: Any
) -> None:
    """Prints the steps and rows that see records."""
    from gristmill.pipelines.text.places import sightings_text

    found: list[Sighting] = []
    for record in records:
        seen = batches.find(record, options.of, edition=edition, **_epochs(options))
        if len(records) > 1 and not as_json():
            click.echo(f"record {record:,}")
        show(seen, "\n".join(sightings_text(seen)))
        if options.show:
            from gristmill.loader.data.batches import dataset_numbers

            of_it = batches.datasets[dataset_numbers(batches, options.of)[0]]
            of_it = of_it if edition is None else of_it.as_of(edition)
            _print_record(of_it, record, options)
        found += seen
    _next_row(found)


def _trace_sources(records: Sequence[int], options: Any) -> None:
    """Prints records or those of a document, and their sources, whatever the order."""
    from gristmill.dataset.base.errors import InputError
    from gristmill.loader.provenance.find_document import find_records
    from gristmill.loader.provenance.locate import locate_record
    from gristmill.pipelines.text.places import located, place_text

    opened = opened_of(options)
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
    at: tuple[str, int] | None = None
    if options.document is not None:
        at = _place(options.document, [opened])
        records = find_records(opened, *at)
        if not records:
            show([], "in no row: it has no token, or is not among the selected")
            return
    for record in records:
        found = located(locate_record(opened, record, name=name), [opened])
        if at is not None and "pieces" in found:
            found["pieces"] = [one for one in found["pieces"] if _is_at(one, at)]
        del found["epoch"]
        show(found, place_text(found))
        if options.show:
            _print_record(opened, record, options)
    again = (*command_line(without=("show",)), "--batch-size", "N")
    next_step(*again, why="the steps that it is seen in")


def _trace_row(batches: Batches, options: Any) -> None:
    """Prints the content of a row."""
    from gristmill.loader.data.batches import row_at
    from gristmill.loader.provenance.locate import locate
    from gristmill.pipelines.text.places import located, place_text

    step, row = options.step, options.row
    found = located(locate(batches, step, row, options.token), batches.datasets)
    epoch = found["epoch"]
    text = f"step {step:,}, row {row:,}: epoch {epoch:,}\n"
    text += place_text(found, options.token)
    show({"step": step, "row": row, **found}, text)
    if not options.show:
        next_step(*command_line(), "--show", why="what is in it")
        return
    seen = row_at(batches, step, row)
    _print_record(seen.dataset, seen.record, options)
    again = command_line(without=("step", "row", "token"))
    of = ("--of", found["dataset"]) if batches.names else ()
    where = ("--records", found["record"], *of)
    next_step(*again, *where, why="where it is seen again")


def _trace_document(batches: Batches, options: Any) -> None:
    """Prints where a document is."""
    from gristmill.loader.provenance.find_document import find_document
    from gristmill.pipelines.text.places import document_text

    path, number = _place(options.document, batches.datasets)
    found = find_document(batches, path, number, options.of, **_epochs(options))
    show(found, "\n".join(map(document_text, found)))
    pieces = (piece for one in found for piece in one.pieces)
    _next_row([seen for piece in pieces for seen in piece.sightings])


def _place(document: str, datasets: Sequence[Dataset]) -> tuple[str, int]:
    """Returns the file and the place there that `--document` names."""
    from gristmill.dataset.base.errors import InputError
    from gristmill.pipelines.text.places import FilePlace, listed_sources

    place = FilePlace.parse(document)
    if place is None:
        raise InputError(
            "not a place of a file",
            expected="FILE@PLACE, with a byte offset, the number of a row or record, "
            "or line:N",
            got=document,
            cure="give the file as it was given to the conversion, @, and the place",
        )
    number = place.in_files(listed_sources(datasets, place.path))
    if number is None:
        raise InputError(
            "there is no such line",
            where=place.path,
            expected="a line, counted from 1, of a file of lines that was converted",
            got=f"line {place.number:,}",
            cure="give FILE as trace shows it, with a byte offset or such a line",
        )
    return place.path, number


def _is_at(piece: Mapping[str, Any], at: tuple[str, int]) -> bool:
    """Returns whether a piece was made of a place of a file."""
    places = piece["source_offset_bytes"], piece["source_record"]
    return piece["source_path"] == at[0] and at[1] in places


def _next_row(found: Sequence[Sighting]) -> None:
    """Says how to trace the first row that a record was found in."""
    if found:
        searched = ("records", "document", "of", "first_epoch", "stop_epoch", "show")
        order = command_line(without=searched)
        place = ("--step", found[0].step, "--row", found[0].row)
        next_step(*order, *place, "--show", why="the first of these rows")


def _check(options: Any) -> None:
    """Refuses options that do not go together."""
    from gristmill.dataset.base.errors import InputError

    if options.of is not None:
        check_mixture(options.dataset, "--of")
    mixture = mixture_of(options.dataset)
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


def _print_record(dataset: Dataset, number: int, options: Any) -> None:
    from gristmill.pipelines.text.records import shown_record

    show(shown_record(dataset, number, texts_of(options.tokenizer)))
