"""The page about resuming, made of the results."""

import collections

from benchmarks.report import table
from benchmarks.resume.promises import NEVER, SOURCES
from benchmarks.resume.trial import CASES


def _failed(cases):
    """Returns the cases with a loss, a repetition or a move, or with other data."""
    return {
        case: found
        for case, found in cases.items()
        if found["outcome"] != ("refused" if case == "other" else "exact")
    }


def is_exact(cases):
    """Returns whether nothing was lost, repeated or moved, and other data refused."""
    return {*cases} == {*CASES} and not _failed(cases)


def _cell(loader, case, found):
    """Returns a cell of the table: lost, repeated, moved."""
    mark = "†" if case in NEVER[loader] else ""
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
    rows = []
    for loader, found in results["loaders"].items():
        cells = [_cell(loader, case, found["cases"][case]) for case in CASES]
        rows.append([found["title"], *cells])
    header = ["loader", *CASES.values()]
    return table(header, rows, texts=len(header))


def _promises(results):
    lines = []
    for loader, found in results["loaders"].items():
        cases = collections.defaultdict(list)
        for case, reason in NEVER[loader].items():
            cases[reason].append(CASES[case])
        parts = [f"{', '.join(names)}: {reason}" for reason, names in cases.items()]
        versions = ", ".join(f"{k} {v}" for k, v in found["packages"].items())
        text = "; ".join(parts) or "all cases promised"
        lines.append(
            f"- {found['title']} ({versions}; measured on {found['date']}). "
            f"{SOURCES[loader]}: {text}."
        )
    return "\n".join(lines)


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
        for case, one in _failed(cases).items()
    )
    return f"gristmill fails in: {failed}."


def parts(results):
    """Returns the parts of the page that are made of the results, by name."""
    environment = results["environment"]
    day = max(found["date"] for found in results["loaders"].values())
    minutes = sum(found["minutes"] for found in results["loaders"].values())
    measured = (
        f"{results['records']:,} records. Measured on {day}; "
        f"{environment['cpu_count']} processors ({environment['cpu']}), beside other "
        f"work; all loaders took {minutes:.0f} minutes."
    )
    return {
        "measured": measured,
        "ours": _ours(results),
        "outcomes": _outcomes(results),
        "promises": _promises(results),
    }
