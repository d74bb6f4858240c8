"""`gristmill account`: documents that a run has seen."""

from __future__ import annotations

import csv
import functools
import io
import json
from typing import Any

from gristmill.dataset.base.errors import StorageError
from gristmill.dataset.storage.paths import path_text
from gristmill.pipelines.commands.command import command
from gristmill.pipelines.commands.messages import refuse, show
from gristmill.pipelines.commands.order import (
    ORDER,
    opened_batches,
    read_state,
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
def account(given: Any) -> None:
    """Count the documents and tokens that a run has seen.

    The counts are exact, through all epochs and changes, up to --state. Records that
    are not packed rows count as documents without known tokens.
    """
    from gristmill.loader.accounting.account import Counts
    from gristmill.loader.accounting.account import account as accounted
    from gristmill.pipelines.text.facts import table_lines
    from gristmill.pipelines.text.printer import json_value

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
