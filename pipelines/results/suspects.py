"""What `gristmill blame` says of the documents of a loss spike."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.dataset.errors import some_of
from gristmill.loader.provenance.blame import Suspect
from gristmill.loader.provenance.excess import HIGH, Excess
from gristmill.pipelines.results.location import source_lines
from gristmill.pipelines.results.source_details import Detail

_ROWS_SHOWN = 4


def suspects_text(found: Excess, suspects: Sequence[Suspect]) -> str:
    """Returns a ranking in lines for people."""
    of = "the losses of other steps" if found.outside else "all losses: there are few"
    lines = [
        f"{found.high:,} of {len(found.deviations):,} losses of these steps are high: "
        f"{HIGH:g} deviations or more above the baseline",
        f"baseline {found.baseline:.4g}, deviation {found.deviation:.4g}, of {of}",
    ]
    for number, one in enumerate(suspects, 1):
        kind = "record" if one.document is None else "document"
        of_shard = one.record if one.document is None else one.document
        rows = [f"step {step:,} row {row:,}" for step, row in one.rows]
        lines += [
            f"{number:>4}. score {one.score:.1f}, high in {one.high:,} of {one.seen:,} "
            f"losses: {some_of(rows, _ROWS_SHOWN)}",
            *(f"      {line}" for line in source_lines(one, Detail())),
            f"      {kind} {of_shard:,} of {one.shard}",
        ]
    return "\n".join(lines)
