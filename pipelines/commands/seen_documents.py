"""`gristmill blame` and `account`: documents that a run has seen."""

from __future__ import annotations

import csv
import dataclasses
import functools
import itertools
import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from gristmill.dataset.base.errors import InputError, StorageError
from gristmill.dataset.base.whole_numbers import whole_number
from gristmill.dataset.storage.paths import path_text
from gristmill.pipelines.commands.messages import command_line, next_step, texts_of
from gristmill.pipelines.commands.order import (
    Order,
    opened_batches,
    read_state,
    usage_errors,
)
from gristmill.pipelines.commands.parameters import command
from gristmill.pipelines.options.option import (
    flag,
    integer,
    text,
    tokenizer_of_rows,
)

if TYPE_CHECKING:
    from gristmill.loader.data.batches import Batches
    from gristmill.transforms.tokens.tokenizers.token_texts import TokenTexts

_BAD = AttributeError, KeyError, OSError, RecursionError, TypeError, ValueError
_Loss = tuple[float, int, int]  # Loss, step, and row: -1 for the whole step's loss.


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlameOptions:
    """Options of `gristmill blame` alone."""

    steps: str = text(
        "Steps to look at, from A to B - 1, such as 3000:3005.", "A:B", required=True
    )
    losses: str = text(
        "CSV or JSON lines with step, loss and, if known, row.", "FILE", required=True
    )
    most: int = integer("Maximum number of documents to show.", 20, least=1)
    tokenizer: str | None = tokenizer_of_rows("shows how each document begins.")


@command("blame", BlameOptions, Order)
def blame(options: BlameOptions, order: Order, *, as_json: bool) -> None:
    """List the documents of steps, the highest losses first.

    If rows are not packed, records are listed. DATASET and the options of the order
    are those of gristmill trace.
    """
    begin, end = map(whole_number, (*options.steps.split(":", 1), "")[:2])
    if begin is None or end is None or begin >= end:
        raise InputError(
            "not a range of steps",
            expected="--steps A:B, from A to before B",
            got=options.steps,
            cure="give two steps, such as --steps 3000:3005",
        )
    with usage_errors():
        batches = opened_batches(order)
        losses = _read(path_text(options.losses, "losses"), range(begin, end))
        documents = _documents(batches, losses, texts_of(options.tokenizer))
        found = list(itertools.islice(documents, options.most))
    fields = [one for one, _ in found]
    if as_json:
        click.echo(json.dumps({"losses": len(losses), "documents": fields}))
        return
    for number, (one, lines) in enumerate(found, 1):
        seen = f"loss {one['loss']}, step {one['step']:,} row {one['row']:,}"
        click.echo(f"{number:>4}. " + "\n      ".join([seen, *lines]))
    same = command_line(without=("steps", "losses", "most"))[1:]
    worst = ("--step", fields[0]["step"], "--row", fields[0]["row"])
    next_step("trace", *same, *worst, "--show")


def _read(path: str, steps: range) -> list[_Loss]:
    """Returns the losses of some steps in a file; NaN and the highest first."""
    found: list[_Loss] = []
    first = 1
    try:
        with open(path, encoding="utf-8", newline="") as file:
            rows: Any = map(json.loads, filter(str.strip, file))
            if file.read(1) != "{":
                rows, first = csv.DictReader(file, skipinitialspace=True), 2
            file.seek(0)
            for row in rows:
                of_row = -1 if row.get("row") in (None, "") else int(row["row"])
                found.append((float(row["loss"]), int(row["step"]), of_row))
    except (
        AttributeError,
        KeyError,
        OSError,
        RecursionError,
        TypeError,
        ValueError,
    ) as e:
        raise InputError(
            "the file of losses cannot be read",
            where=f"{path}, line {first + len(found):,}",
            expected="columns step, loss and, if known, row",
            got=f"no {e}" if isinstance(e, KeyError) else str(e),
            cure="give CSV with these names in its first line, or JSON in each line",
        ) from e
    chosen = [one for one in found if one[1] in steps]
    if not chosen:
        cure = "give losses of these steps"
        raise InputError("no losses of these steps", where=path, cure=cure)
    return sorted(chosen, key=lambda one: (one[0] == one[0], -one[0]))


def _documents(
    batches: Batches, losses: list[_Loss], texts: TokenTexts | None
) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yields the documents of rows, each once: as fields, and in lines for people."""
    from gristmill.loader.data.batches import row_at
    from gristmill.loader.provenance.locate import locate
    from gristmill.loader.provenance.source_fields import without_message
    from gristmill.pipelines.text.location import source_lines
    from gristmill.pipelines.text.records import shown_record
    from gristmill.pipelines.text.source_details import Detail

    seen = set()
    for value, step, of_row in losses:
        rows = range(len(batches.schedule.positions(step)))
        for row in rows if of_row < 0 else [of_row]:
            where = locate(batches, step, row)
            place, gone = where.shard, where.removed_from
            if gone is not None:
                place = f"{where.dataset} as edition {gone}, removed since"
            for one in where.pieces or [where]:
                kind = "document" if where.pieces else "record"
                number = getattr(one, kind)
                if (key := (place, number)) in seen:
                    continue
                seen.add(key)
                fields = without_message(dataclasses.asdict(one))
                fields |= {"step": step, "row": row, "dataset": where.dataset}
                fields |= {"shard": where.shard, "removed_from": gone}
                fields["loss"] = value if math.isfinite(value) else str(value)
                lines = [f"{kind:8} {number:,} of {place}"]
                if getattr(one, "removed", False):
                    lines[0] += ", removed: padding now"
                lines += source_lines(one, Detail())
                if texts is not None and "begin_token" in fields and gone is None:
                    at = row_at(batches, step, row)
                    shown = shown_record(at.dataset, at.record, texts)
                    fields["text"] = shown.piece_text(fields["begin_token"])
                    lines.append(f"text     {fields['text']}")
                yield fields, lines


@dataclasses.dataclass(frozen=True, kw_only=True)
class AccountOptions:
    """Options of `gristmill account` alone."""

    by: str = text(
        "What to count by: `source`, the source files; `dataset`; or an attached "
        "column, column:NAME if it has one of these names.",
        "NAME",
        default="source",
    )
    steps: int | None = integer(
        "Count the first N steps.", shown="those before --state", least=0
    )
    csv: str | None = text("Also write the parts to this file.", "FILE", "none")
    summary: str | None = text(
        "Also write JSON with the fields of the EU's public summary of training "
        "content (AI Act, Article 53(1)(d)): empty where the data do not have them.",
        "FILE",
        "none",
    )
    documents_only: bool = flag("Count no tokens, so that no row is read.")


@command("account", AccountOptions, Order)
def account(options: AccountOptions, order: Order, *, as_json: bool) -> None:
    """Count the documents and tokens that a run has seen.

    The counts are exact, through all epochs and changes, up to --state. Records that
    are not packed rows count as documents without known tokens. DATASET and the options
    of the order are those of gristmill trace.
    """
    from gristmill.loader.accounting.account import Counts
    from gristmill.loader.accounting.account import account as accounted
    from gristmill.pipelines.text.seen_table import csv_text, part_fields, table_lines
    from gristmill.pipelines.text.training_summary import training_summary

    steps = options.steps
    if steps is None and order.state is None:
        raise InputError(
            "the progress of the run is not given",
            cure="give the --state of its feed, or --steps",
        )
    with usage_errors():
        batches = opened_batches(order)
        if steps is None:
            steps = read_state(order.state or "")["step"]
        tokens = not options.documents_only
        parts = accounted(batches, steps, by=options.by, tokens=tokens)
    rows = [part_fields(part) for part in parts]
    counts = (part.counts for part in parts)
    total = functools.reduce(Counts.plus, counts, Counts())._asdict()
    if options.csv is not None:
        _write(options.csv, csv_text(rows, [*total]), "--csv")
    if options.summary is not None:
        held = [one.packed_counts() for each in batches.datasets for one in each.parts]
        of_text = all(one is not None and one.text_bytes for one in held)
        known = total["different_tokens"] if of_text else None
        summary = training_summary(text_tokens=known, sources=rows)
        _write(options.summary, json.dumps(summary, indent=1) + "\n", "--summary")
    if as_json:
        told = {"steps": steps, "by": options.by, "total": total, "parts": rows}
        click.echo(json.dumps(told))
        return
    last = {"dataset": "", "value": f"in {steps:,} steps", **total}
    for line in table_lines([*rows, last], options.by, mixed=bool(batches.names)):
        click.echo(line)


def _write(path: str, content: str, option: str) -> None:
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
