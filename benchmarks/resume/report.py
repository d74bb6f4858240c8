"""The page about resuming, made of the results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.resume.environments import LOADERS
from benchmarks.resume.promises import never_promised, reasons, source_of
from benchmarks.resume.trial import CASES

_Found = Mapping[str, Any]


def is_exact(cases):
    """Returns whether nothing was lost, repeated or moved, and other data refused."""
    wanted = {case: "refused" if case == "other" else "exact" for case in CASES}
    return {case: found["outcome"] for case, found in cases.items()} == wanted


def _cell(loader, case, found):
    """Returns a cell of the table: lost, repeated, moved."""
    mark = "†" if never_promised(loader, case) else ""
    said = " (warns)" if found.get("said") else ""
    outcome = found["outcome"]
    if outcome == "exact":
        return f"exact{mark}{said}"
    if outcome == "differs":
        counts = (f"{found[name]:,}" for name in ("lost", "repeated", "moved"))
        return f"**{' / '.join(counts)}**{mark}{said}"
    if outcome == "accepted":
        return f"**taken**{mark}{said}"
    return outcome if outcome == "not offered" else f"{outcome}{mark}"


def _outcomes(results):
    heads = ["loader", *CASES.values()]
    lines = [f"| {' | '.join(heads)} |", "| --- |" + " --- |" * len(CASES)]
    for loader, found in results["loaders"].items():
        cells = [_cell(loader, case, found["cases"][case]) for case in CASES]
        lines.append(f"| {found['title']} | {' | '.join(cells)} |")
    return lines


def _promises(results):
    lines = []
    for loader, found in results["loaders"].items():
        parts = [
            f"{', '.join(CASES[case] for case in cases)}: {reason}"
            for reason, cases in reasons(loader).items()
        ]
        versions = ", ".join(f"{k} {v}" for k, v in found["packages"].items())
        text = "; ".join(parts) or "all cases promised"
        lines.append(
            f"- {found['title']} ({versions}; measured on {found['date']}). "
            f"{source_of(loader)}: {text}."
        )
    return lines


def _ours(results):
    if "gristmill" not in results["loaders"]:
        return "gristmill was not tried."
    cases = results["loaders"]["gristmill"]["cases"]
    if is_exact(cases):
        return (
            "gristmill has no failure in these cases: no record is lost, repeated or "
            "in another batch, and the state of another dataset is refused."
        )
    failed = ", ".join(
        f"{CASES[case]} ({_cell('gristmill', case, one)})"
        for case, one in cases.items()
        if one["outcome"] != ("refused" if case == "other" else "exact")
    )
    return f"gristmill fails in: {failed}."


def parts(results):
    """Returns the parts of the page that are made of the results, by name."""
    environment = results["environment"]
    days = sorted({found["date"] for found in results["loaders"].values()})
    minutes = sum(found["minutes"] for found in results["loaders"].values())
    measured = (
        f"{results['records']:,} records. Measured on {days[-1]}; "
        f"{environment['cpu_count']} processors ({environment['cpu']}), beside other "
        f"work; all loaders took {minutes:.0f} minutes."
    )
    missing = [name for name in LOADERS if name not in results["loaders"]]
    if missing:
        measured += f" Not run at this size yet: {', '.join(missing)}."
    return {
        "measured": measured,
        "ours": _ours(results),
        "outcomes": "\n".join(_outcomes(results)),
        "promises": "\n".join(_promises(results)),
    }
