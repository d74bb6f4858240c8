"""`gristmill account`: documents that a run has seen."""

from __future__ import annotations

import csv as csv_files
import functools
import io
import json
import types
from typing import Any

from gristmill.dataset.base.errors import InputError, StorageError
from gristmill.dataset.storage.paths import path_text
from gristmill.pipelines.commands.command import command
from gristmill.pipelines.commands.messages import show
from gristmill.pipelines.commands.order import (
    ORDER,
    opened_batches,
    read_state,
    usage_errors,
)
from gristmill.pipelines.commands.shared_options import flag, number, text


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
def account(
    by: str,
    steps: int | None,
    csv: str | None,
    summary: str | None,
    documents_only: bool,
    **given: Any,
) -> None:
    """Count the documents and tokens that a run has seen.

    The counts are exact, through all epochs and changes, up to --state. Records that
    are not packed rows count as documents without known tokens.
    """
    from gristmill.loader.accounting.account import Counts
    from gristmill.loader.accounting.account import account as accounted
    from gristmill.pipelines.text.printer import json_value, table_lines
    from gristmill.pipelines.text.training_summary import training_summary

    order = types.SimpleNamespace(**given)
    if steps is None and order.state is None:
        raise InputError(
            "the progress of the run is not given",
            cure="give the --state of its feed, or --steps",
        )
    with usage_errors():
        batches = opened_batches(order)
        if steps is None:
            steps = read_state(order.state or "")["step"]
        tokens = not documents_only
        parts = accounted(batches, steps, by=by, tokens=tokens)
    rows = [json_value({**part._asdict(), **part.counts._asdict()}) for part in parts]
    for row in rows:
        del row["counts"]
    counts = (part.counts for part in parts)
    total = functools.reduce(Counts.plus, counts, Counts())._asdict()
    if csv is not None:
        file = io.StringIO()
        writer = csv_files.DictWriter(file, [*rows[0]] if rows else [])
        writer.writeheader()
        writer.writerows(rows)
        _write(csv, file.getvalue(), "--csv")
    if summary is not None:
        held = [one.packed_counts() for each in batches.datasets for one in each.parts]
        of_text = all(one is not None and one.text_bytes for one in held)
        known = total["different_tokens"] if of_text else None
        fields = training_summary(text_tokens=known, sources=rows)
        _write(summary, json.dumps(fields, indent=1) + "\n", "--summary")
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
