"""`gristmill trace` and `account`: the record of a row, and what a run has seen."""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from gristmill.dataset.base.errors import InputError, StorageError
from gristmill.pipelines.commands.command import command
from gristmill.pipelines.commands.messages import (
    as_json,
    command_line,
    next_step,
    options_given,
    refuse,
    show,
    texts_of,
)
from gristmill.pipelines.commands.order import (
    ORDER,
    check_mixture,
    numbers_by_name,
    opened_batches,
    opened_of,
    order_given,
    paths_of,
    read_state,
    refuse_value,
)
from gristmill.pipelines.commands.shared_options import (
    flag,
    number,
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
def trace(given: Any) -> None:
    """Find the record of a training step's row, and its source.

    For a packed row, the document of each piece is found; for a --token of a
    conversation, also its message. DATASET is a path, or NAME=PATH for each dataset of
    a mixture; several paths, also of one NAME, are joined. Give the same arguments as
    to gristmill.loader.global_batches, or the --state of a feed.
    """
    _check(given)
    records = _numbers(given.records)
    searched = options_given(("first_epoch", "stop_epoch", "state"))
    if given.step is None and not (order_given() or searched):
        _trace_sources(records, given)
        return
    of_edition = None
    if records and given.state and (given.edition or "").isdecimal():
        # The state has the editions that were open.
        of_edition, given.edition = int(given.edition), None
    batches = opened_batches(given)
    first, stop = given.first_epoch, given.stop_epoch
    epochs = {"first_epoch": first, "stop_epoch": first + 1 if stop is None else stop}
    if given.step is not None:
        _trace_row(batches, given)
    elif records:
        _trace_records(batches, records, of_edition, given, epochs)
    else:
        _trace_document(batches, given, epochs)


def _check(given: Any) -> None:
    """Refuses options that contradict each other."""
    wanted = (given.step, given.records, given.document)
    refuse(
        (given.step is None) != (given.row is None) or wanted.count(None) != 2,
        "give --step and --row, or --records, or --document",
        cure="give --step and --row for a row, --records for records, or --document "
        "for a document",
    )
    refuse(
        given.token is not None and given.step is None,
        "--token is a token of a row",
        cure="give --step and --row with it",
    )
    mixture = paths_of(given.dataset)
    if given.of is not None:
        check_mixture(given.dataset, "--of")
    refuse(
        given.records is not None and given.of is None and "" not in mixture,
        "record numbers are those of a dataset of the mixture",
        expected=f"--of with one of {', '.join(mixture)}",
        cure="give --of NAME",
    )
    first, stop = given.first_epoch, given.stop_epoch
    refuse(
        stop is not None and stop <= first,
        "there is no epoch to search",
        expected="--stop-epoch above --first-epoch: the epoch of its number is not "
        "searched",
        got=f"--first-epoch {first} --stop-epoch {stop}",
        cure=f"give --stop-epoch {first + 1} or more",
    )


def _numbers(given: str | None) -> list[int]:
    """Returns the numbers of `--records`, none if it is not given."""
    found = numbers_by_name(given, "--records")
    expected = "N, or A:B from A to before B; the name of their dataset with --of"
    refuse_value(found.keys() - {""}, "--records", given, expected)
    return found.get("", [])


def _trace_records(
    batches: Batches,
    records: Sequence[int],
    edition: int | None,
    given: Any,
    epochs: Mapping[str, int],
) -> None:
    """Prints the steps and rows that see records."""
    from gristmill.loader.data.batches import dataset_numbers
    from gristmill.pipelines.text.places import sightings_text

    found: list[Sighting] = []
    for record in records:
        seen = batches.find(record, given.of, edition=edition, **epochs)
        if len(records) > 1 and not as_json():
            click.echo(f"record {record:,}")
        show(seen, "\n".join(sightings_text(seen)))
        if given.show:
            numbers = dataset_numbers(batches, given.of)
            named = [batches.datasets[number] for number in numbers]
            of = next(n for n in named if edition in (None, n.stored.edition))
            _print_record(of, record, given)
        found += seen
    _next_row(found)


def _trace_sources(records: Sequence[int], given: Any) -> None:
    """Prints records, or those of a document, with their sources, without an order."""
    from gristmill.loader.provenance.trace import find_records, locate_record
    from gristmill.pipelines.text.places import located, place_text

    datasets = opened_of(given)
    refuse(
        (given.of or "") not in datasets,
        "the mixture has no such dataset",
        expected=f"--of with one of {', '.join(datasets)}",
        got=given.of,
        cure="give the name of one of these",
    )
    opened = datasets[given.of or ""]
    at: tuple[str, int] | None = None
    if given.document is not None:
        at = _place(given.document, [opened])
        records = find_records(opened, *at)
        if not records:
            show([], "in no row: it has no token, or is not among the selected")
            return
    for record in records:
        found = located(locate_record(opened, record, name=given.of), [opened])
        if at is not None and "pieces" in found:
            found["pieces"] = [
                piece
                for piece in found["pieces"]
                if piece["source_path"] == at[0]
                and at[1] in (piece["source_offset_bytes"], piece["source_record"])
            ]
        del found["epoch"]
        show(found, place_text(found))
        if given.show:
            _print_record(opened, record, given)
    again = (*command_line(without=("show",)), "--batch-size", "N")
    next_step(*again, why="the steps that it is seen in")


def _trace_row(batches: Batches, given: Any) -> None:
    """Prints the content of a row."""
    from gristmill.loader.data.batches import row_at
    from gristmill.loader.provenance.trace import locate
    from gristmill.pipelines.text.places import located, place_text

    step, row = given.step, given.row
    found = located(locate(batches, step, row, given.token), batches.datasets)
    head = f"step {step:,}, row {row:,}: epoch {found['epoch']:,}\n"
    show({"step": step, "row": row, **found}, head + place_text(found, given.token))
    if not given.show:
        next_step(*command_line(), "--show", why="what is in it")
        return
    seen = row_at(batches, step, row)
    _print_record(seen.dataset, seen.record, given)
    again = command_line(without=("step", "row", "token"))
    of = ("--of", found["dataset"]) if batches.names else ()
    where = ("--records", found["record"], *of)
    next_step(*again, *where, why="where it is seen again")


def _trace_document(batches: Batches, given: Any, epochs: Mapping[str, int]) -> None:
    """Prints where a document is."""
    from gristmill.loader.provenance.trace import find_document
    from gristmill.pipelines.text.places import document_text

    path, number = _place(given.document, batches.datasets)
    found = find_document(batches, path, number, given.of, **epochs)
    show(found, "\n".join(map(document_text, found)))
    pieces = (piece for one in found for piece in one.pieces)
    _next_row([seen for piece in pieces for seen in piece.sightings])


def _place(document: str, datasets: Sequence[Dataset]) -> tuple[str, int]:
    """Returns the file and the place there that `--document` names."""
    from gristmill.pipelines.text.places import FilePlace, check_lines, listed_sources

    place, number = FilePlace.parse(document), None
    if place is not None:
        files = [*listed_sources(datasets, place.path)]
        # For a file that is not listed, any place leads to the error that says so.
        number = place.in_files(files) if files else 0
        if number is not None:
            return place.path, number
        check_lines([place], datasets)
    raise InputError(
        "--document names no place of a file"
        if place is None
        else "the file has no such line",
        expected="FILE@PLACE, with a byte offset, the number of a row or record, or "
        "line:N, a line of a file of lines, counted from 1",
        got=document,
        cure="give the file as it was given to the conversion, @, and a place as trace "
        "shows it",
    )


def _next_row(found: Sequence[Sighting]) -> None:
    """Prints how to trace the first row in which a record was found."""
    if found:
        searched = ("records", "document", "of", "first_epoch", "stop_epoch", "show")
        order = command_line(without=searched)
        place = ("--step", found[0].step, "--row", found[0].row)
        next_step(*order, *place, "--show", why="the first of these rows")


def _print_record(dataset: Dataset, number: int, given: Any) -> None:
    from gristmill.pipelines.text.records import shown_record

    show(shown_record(dataset, number, texts_of(given.tokenizer)))


@command(looks=True)
@text(
    "--by",
    "NAME",
    "What to count by: `source`, the source files; `dataset`; or an attached column, "
    "column:NAME if it has one of these names.",
    None,
    default="source",
)
@number("--steps", help="Count the first N steps.", shown="all of --state", least=0)
@text("--csv", "FILE", "Also write the parts to this file.")
@text(
    "--summary",
    "FILE",
    "Also write the fields of the EU's public summary of training content (AI Act, "
    "Article 53(1)(d)) as JSON, empty where the data lack them.",
)
@flag("--documents-only", "Count no tokens, so that no row is read.")
@ORDER
def account(given: Any) -> None:
    """Count the documents and tokens that a run has seen.

    The counts are exact, through all epochs and changes, up to --state. Records that
    are not packed rows count as documents without known tokens.
    """
    from gristmill.loader.accounting.account import Counts
    from gristmill.loader.accounting.account import account as accounted
    from gristmill.pipelines.text.printer import json_value, table_lines

    by, steps = given.by, given.steps
    refuse(
        steps is None and given.state is None,
        "the progress of the run is not given",
        cure="give the --state of its feed, or --steps",
    )
    batches = opened_batches(given)
    if steps is None:
        steps = read_state(given.state)["step"]
    parts = accounted(batches, steps, by=by, tokens=not given.documents_only)
    rows = [json_value({**part._asdict(), **part.counts._asdict()}) for part in parts]
    for row in rows:
        del row["counts"]
    counts = (part.counts for part in parts)
    total = functools.reduce(Counts.plus, counts, Counts())._asdict()
    if given.csv is not None:
        file = io.StringIO()
        writer = csv.DictWriter(file, [*rows[0]] if rows else [])
        writer.writeheader()
        writer.writerows(rows)
        _write(given.csv, file.getvalue(), "--csv")
    if given.summary is not None:
        parts_of = (one for each in batches.datasets for one in each.stored.parts)
        held = [None if p.table is None else p.table.packed_total() for p in parts_of]
        of_text = all(one is not None and one.text_bytes for one in held)
        known = total["different_tokens"] if of_text else None
        fields = training_summary(text_tokens=known, sources=rows)
        _write(given.summary, json.dumps(fields, indent=1) + "\n", "--summary")
    told = {"steps": steps, "by": by, "total": total, "parts": rows}
    last = {"dataset": "", "value": f"in {steps:,} steps", "note": None, **total}
    table = [
        {name: row[name] for name in total}
        | {"dataset": row["dataset"] if batches.names else None}
        | {by: f"({row['note']})" if row["note"] else row["value"] or row["dataset"]}
        for row in [*rows, last]
    ]
    show(told, "\n".join(table_lines(table)))


def _write(path: str, content: str, option: str) -> None:
    from gristmill.dataset.storage.paths import path_text

    try:
        with open(path_text(path, option), "w", encoding="utf-8", newline="") as file:
            file.write(content)
    except OSError as e:
        raise StorageError(
            f"the file of {option} cannot be written",
            where=path,
            got=e,
            cure="give a path that can be written to",
        ) from e


_TEXT_SIZES = (
    (10**9, "Less than 1 billion tokens"),
    (10**13 + 1, "1 billion to 10 trillion tokens"),
)
_MORE = "More than 10 trillion tokens"
_USED = "used", "modalities", "description", "additional_comments"
_FIELDS: dict[str, dict[str, tuple[str, ...]]] = {
    "1_general_information": {
        "summary": ("version", "last_update", "link_to_previous_versions"),
        "1.1_provider": (
            *("name", "contact", "representative_name", "representative_contact"),
        ),
        "1.2_model": ("versioned_names", "dependencies", "date_placed_on_market"),
        "1.3_characteristics": (
            *("latest_date_of_acquisition", "languages", "other_characteristics"),
        ),
    },
    "2_list_of_data_sources": {
        "2.1_publicly_available_datasets": (*_USED, "large_datasets"),
        "2.2.1_licensed_datasets": _USED,
        "2.2.2_private_datasets_of_third_parties": (*_USED, "publicly_known_datasets"),
        "2.3_crawled_and_scraped_data": (
            *(*_USED, "crawlers", "purposes", "behaviour", "period", "top_domains"),
        ),
        "2.4_user_data": (*_USED, "services"),
        "2.5_synthetic_data": (*_USED, "models"),
        "2.6_other_sources": _USED,
    },
    "3_data_processing": {
        "3.1_reservation_of_rights": ("code_of_practice", "measures"),
        "3.2_illegal_content": ("measures",),
        "3.3_other": ("information",),
    },
}
_MODALITIES = "text", "image", "audio", "video", "other"


def training_summary(
    *, text_tokens: int | None, sources: list[dict[str, Any]]
) -> dict[str, Any]:
    """Returns the summary, as JSON values.

    Args:
        text_tokens: Number of different tokens of text seen; None if not known.
        sources: The known fields of each source, of any kind.
    """
    found: dict[str, Any] = {
        section: {part: dict.fromkeys(names, "") for part, names in parts.items()}
        for section, parts in _FIELDS.items()
    }
    sizes: dict[str, dict[str, Any]] = {
        name: {"size": "", "types_of_content": "", "tokens": ""} for name in _MODALITIES
    }
    if text_tokens:
        fitting = (text for limit, text in _TEXT_SIZES if text_tokens < limit)
        sizes["text"] |= {"size": next(fitting, _MORE), "tokens": text_tokens}
    found["1_general_information"]["1.3_characteristics"]["modalities"] = sizes
    found["2_list_of_data_sources"]["sources_seen_by_the_run"] = sources
    return found
