"""The pages of docs/performance, made of the runs that are kept.

    python -m benchmarks.report

A page has a bar chart, and a table for each case. Contestants are compared within a
round; tables have the median of the rounds with the lowest and the highest.
"""

import json
import math
import pathlib
import statistics

import numpy as np

ROOT = pathlib.Path(__file__).parents[1]
_RESULTS = ROOT / "benchmarks" / "results"
_PAGES = ROOT / "docs" / "performance"
_COLOURS = {"ours": "#0072b2", "peer": "#e08a00", "bound": "#a7b1bd"}
_LEGEND = {"ours": "gristmill", "peer": "others", "bound": "does less work"}
_TIMES = "\N{MULTIPLICATION SIGN}"


def spread(values, unit=""):
    """Returns "median (lowest..highest)", or the one value there is."""
    middle, low, high = statistics.median(values), min(values), max(values)
    digits = 0 if middle >= 100 else 1 if middle >= 10 else 2
    text = f"{middle:,.{digits}f}{unit}"
    if low == high:
        return text
    return f"{text} ({low:,.{digits}f}..{high:,.{digits}f})"


def _runs(results, case, key):
    return [
        run
        for run in results["runs"]
        if (run["case"], run["contestant"]) == (case, key)
    ]


def speeds(results, case, key, per):
    """Returns the work of a contestant for a second of a kind, by round."""
    return {
        run["round"]: run["work"] / run[f"{per}_seconds"]
        for run in _runs(results, case, key)
    }


def times(ours, theirs):
    """Returns how many times the second speed the first is, in rounds with both."""
    return [ours[number] / theirs[number] for number in ours if number in theirs]


def table(header, rows, texts=1):
    """Returns a Markdown table: some columns of text, then numbers."""
    ends = ["---"] * texts + ["---:"] * (len(header) - texts)
    return "\n".join(f"| {' | '.join(line)} |" for line in [header, ends, *rows])


def _conditions(results):
    about = results["environment"]
    packages = ", ".join(f"{k} {v}" for k, v in about["packages"].items())
    return (
        f"By `python -m benchmarks.{results['name']}` on {about['date']}; "
        f"{about['cpu_count']} processors ({about['cpu']}); Python {about['python']}; "
        f"{packages}. {results['rounds']} rounds."
    )


def _cases(results):
    return [*dict.fromkeys(run["case"] for run in results["runs"])]


def _reference(results, case):
    """Returns the first of the contestants to compare with that ran in a case."""
    ran = (key for key in results["reference"] if _runs(results, case, key))
    return next(ran, "")


def _rows(results, case):
    reference = _reference(results, case)
    for key, each in results["contestants"].items():
        own = _runs(results, case, key)
        if not own:
            continue
        cells = [f"{each['label']}{' *' if each['bound'] else ''}"]
        by = {per: speeds(results, case, key, per) for per in ("cpu", "wall")}
        cells += [spread([*by[per].values()]) for per in by]
        for per in by:
            ratios = times(by[per], speeds(results, case, reference, per))
            cells.append(spread(ratios, _TIMES) if ratios and key != reference else "")
        peaks = [run["peak_bytes"] / 1e6 for run in own if run.get("peak_bytes")]
        cells.append(f"{statistics.median(peaks):,.0f}" if peaks else "")
        for name in results["columns"]:
            values = [run[name] for run in own if run.get(name) is not None]
            cells.append(spread([statistics.median(values)]) if values else "")
        yield cells


def _case_table(results, case):
    unit = results["unit"]
    reference = results["contestants"].get(_reference(results, case), {})
    beside = reference.get("label", "")
    header = ["", f"{unit} per CPU s", f"{unit} per s", f"beside {beside}, by CPU time"]
    header += ["by wall time", "peak memory, MB", *results["columns"].values()]
    rows = [*_rows(results, case)]
    kept = [0, *(n for n in range(1, len(header)) if any(row[n] for row in rows))]
    return table([header[n] for n in kept], [[row[n] for n in kept] for row in rows])


def page(results):
    """Returns the page of a contest."""
    parts = [f"# {results['title']}", results["about"], _conditions(results)]
    parts.append(f"![{results['title']}]({results['name']}.svg)")
    for case in _cases(results):
        parts += [f"## {case[:1].upper()}{case[1:]}"] if case else []
        parts.append(_case_table(results, case))
    if any(each["bound"] for each in results["contestants"].values()):
        parts.append("\\* does less work than the others: a bound, no alternative.")
    parts += [f"{key} failed:\n\n```\n{e}\n```" for key, e in results["failed"].items()]
    return "\n\n".join(parts) + "\n"


def draw(results, path):
    """Writes the bar chart of a contest: work per CPU second, a panel for each case."""
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    mpl.rcParams |= {"svg.hashsalt": "gristmill", "svg.fonttype": "none"}
    panels = []
    for case in _cases(results):
        bars = []
        for key, each in results["contestants"].items():
            found = [*speeds(results, case, key, "cpu").values()]
            if found:
                kind = "ours" if key.startswith("gristmill") else "peer"
                colour = _COLOURS["bound" if each["bound"] else kind]
                span = min(found), statistics.median(found), max(found)
                bars.append((each["label"].replace("`", ""), colour, span))
        panels.append((case, bars[::-1]))
    heights = [len(bars) + 1.5 for _, bars in panels]
    figure = Figure(figsize=(8, 0.3 * sum(heights) + 0.5), layout="constrained")
    axes = figure.subplots(len(panels), height_ratios=heights, squeeze=False)
    for (case, bars), axis in zip(panels, axes[:, 0], strict=True):
        names, colours, spans = zip(*bars, strict=True)
        lows, middles, highs = np.transpose(spans)
        errors = [middles - lows, highs - middles]
        axis.barh(names, middles, color=colours, xerr=errors, ecolor="#566375")
        if max(middles) > 20 * min(middles):
            axis.set_xscale("log")
        axis.set_title(case, loc="left", fontsize=10)
        axis.set_xlabel(f"{results['unit']} per CPU second", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    used = {colour for _, bars in panels for _, colour, _ in bars}
    shown = [kind for kind, colour in _COLOURS.items() if colour in used]
    patches = [Patch(color=_COLOURS[kind], label=_LEGEND[kind]) for kind in shown]
    figure.legend(handles=patches, loc="outside upper right", ncols=3, fontsize=9)
    figure.savefig(path, metadata={"Date": None})


def _compared(results, peer, per):
    both = (speeds(results, peer["case"], peer[key], per) for key in ("ours", "theirs"))
    return spread(times(*both), _TIMES)


def peer_rows(every, places, *, short):
    """Returns the table of peers: all of them, or those of the README."""
    rows = []
    for results in every:
        about = results["environment"]
        ran = {run["contestant"] for run in results["runs"]}
        for peer in results["peers"]:
            if not {peer["ours"], peer["theirs"]} <= ran:
                continue
            speed = [_compared(results, peer, per) for per in ("cpu", "wall")]
            link = f"[{about['date']}]({places}{results['name']}.md)"
            if not short:
                version = about["packages"].get(peer["package"], "?")
                rows.append([peer["name"], version, peer["compared"], *speed, link])
            elif peer["in_short"]:
                medians = (f"{each.split(_TIMES)[0]}{_TIMES}" for each in speed)
                rows.append([peer["name"], peer["compared"], *medians, link])
    header = ["peer", *([] if short else ["version"]), "compared"]
    more = ["speed by CPU time", "by wall time", "measured"]
    return table([*header, *more], rows, texts=len(header))


def _entry(results):
    text = f"- [{results['title']}]({results['name']}.md)"
    if results["peers"]:
        peer = results["peers"][0]
        found = _compared(results, peer, "cpu")
        text += (
            f": {peer['compared']}: {found} the {results['unit']} per CPU second of "
            f"{peer['name']}"
        )
    return f"{text}. Measured on {results['environment']['date']}."


def scale_table(found):
    """Returns a table with a line for each path."""
    rows = []
    for path, runs in found.items():
        last = runs[-1]
        steps = [key for key in last if key.endswith("_seconds") and key[:5] != "total"]
        longest = max(steps, key=lambda key: last[key])
        growth = ""
        if len(runs) > 1:
            before = runs[-2]
            ratio = math.log(last["total_seconds"] / before["total_seconds"])
            growth = f"{ratio / math.log(last['shards'] / before['shards']):.2f}"
        rows.append(
            [
                path,
                *(f"{run['total_seconds']:,.3g} s" for run in runs),
                *[""] * (max(map(len, found.values())) - len(runs)),
                growth,
                f"{longest.removesuffix('_seconds')}, {last[longest]:,.3g} s",
                f"{last['peak_bytes'] / 1e6:,.0f} MB",
                f"{last['element_bytes']:,.0f}",
                f"{last['gathered_shard_bytes']:.1f}",
            ]
        )
    shards = max(found.values(), key=len)
    header = ["", *(f"{run['shards']:,} shards" for run in shards), "grows as n^"]
    header += ["longest step", "peak memory", "bytes of an element"]
    return table([*header, "gathered, bytes a shard"], rows)


def fill(path, name, text):
    """Replaces what is between the marks of a name in a page."""
    page = path.read_text()
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    start = page.index(begin) + len(begin)
    path.write_text(f"{page[:start]}\n{text}\n{page[page.index(end, start) :]}")


def main():
    """Writes all pages."""
    from benchmarks.resume import report as resume_report

    kept = {
        path.stem: json.loads(path.read_text())
        for path in sorted(_RESULTS.glob("*.json"))
    }
    every = [results for results in kept.values() if "runs" in results]
    for results in every:
        draw(results, _PAGES / f"{results['name']}.svg")
        (_PAGES / f"{results['name']}.md").write_text(page(results))
    fill(_PAGES / "index.md", "reports", "\n".join(map(_entry, every)))
    fill(_PAGES / "peers.md", "peers", peer_rows(every, "", short=False))
    fill(ROOT / "README.md", "peers", peer_rows(every, "docs/performance/", short=True))
    fill(_PAGES / "scale.md", "scale", scale_table(kept["scale"]["paths"]))
    for name, text in resume_report.parts(kept["resume"]).items():
        fill(_PAGES / "resume.md", name, text)


if __name__ == "__main__":
    main()
