"""The results of `benchmarks.convert`: ratios, targets and tables.

MB is 10^6 bytes of input. Contestants are compared within a round, and the median
of the rounds is given with its smallest and largest value.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.contest import describe_machine
from benchmarks.figures import images
from benchmarks.rounds import Run, Spread

Results = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """What gristmill should reach.

    Attributes:
      name: what is measured.
      bound: the value to reach.
      at_least: whether more is better.
      measured: over the rounds.
    """

    name: str
    bound: float
    at_least: bool
    measured: Spread

    @property
    def met(self) -> bool:
        """Whether the median reaches the bound."""
        compare = operator.ge if self.at_least else operator.le
        return bool(compare(self.measured.median, self.bound))


def _runs(results: Results, contestant: str, kind: str) -> dict[int, Run]:
    """Returns the runs of a contestant on one kind of input by round."""
    return {
        run["round"]: run
        for run in results["runs"]
        if run["contestant"] == contestant and run["kind"] == kind
    }


def _net(results: Results, contestant: str, field: str) -> dict[int, float]:
    """Returns seconds by round of the main run less those of the start-up run."""
    startup = _runs(results, contestant, "startup")
    return {
        number: run[field] - startup[number][field]
        for number, run in _runs(results, contestant, "main").items()
        if number in startup
    }


def _whole(results: Results, contestant: str, field: str) -> dict[int, float]:
    """Returns seconds by round of the main run, start-up and all."""
    return {n: run[field] for n, run in _runs(results, contestant, "main").items()}


Seconds = Callable[[Results, str, str], dict[int, float]]


def speed_ratio(
    results: Results, ours: str, peer: str, field: str, *, seconds: Seconds
) -> Spread | None:
    """Returns how many times as fast as a peer, round by round.

    Args:
      results: of the benchmark.
      ours: a contestant.
      peer: another.
      field: "wall_seconds" or "cpu_seconds".
      seconds: `_whole` or `_net`.

    Returns:
      The peer's seconds over ours, or None where no round has both.
    """
    mine, theirs = seconds(results, ours, field), seconds(results, peer, field)
    ratios = [
        theirs[n] / mine[n] for n in sorted(mine) if theirs.get(n, 0) > 0 < mine[n]
    ]
    return Spread.of(ratios) if ratios else None


def list_targets(results: Results) -> list[Target]:
    """Returns the targets for which there are measurements."""
    peer, bare, pool = "array_record_beam", "bare", "bare_pool"
    one, two = "gristmill_1", "gristmill_2"
    wall, cpu = "wall_seconds", "cpu_seconds"
    fast = "wall throughput over"
    lean = "MB per CPU second over"
    loop = f"{lean} the bare loop's, start-up aside"
    compared: list[tuple[str, float, str, str, str, Seconds]] = [
        (f"{fast} array_record.beam's, 2 workers", 3.5, two, peer, wall, _whole),
        (f"{lean} array_record.beam's, 2 workers", 2.3, two, peer, cpu, _whole),
        (loop, 0.82, one, bare, cpu, _net),
        (f"{fast} the bare pool's, 2 workers", 0.9, two, pool, wall, _whole),
        (f"{fast} the bare pool's, start-up aside", 0.9, two, pool, wall, _net),
    ]
    targets = []
    for name, bound, ours, theirs, field, seconds in compared:
        ratio = speed_ratio(results, ours, theirs, field, seconds=seconds)
        if ratio:
            targets.append(
                Target(name=name, bound=bound, at_least=True, measured=ratio)
            )
    for key in (one, two):
        small = list(_runs(results, key, "small").values())
        if small:
            targets.append(
                Target(
                    name=f"{key}: seconds for {small[0]['input_bytes'] / 1e6:,.0f} MB, "
                    "start to finish",
                    bound=8.0,
                    at_least=False,
                    measured=Spread.of([run["wall_seconds"] for run in small]),
                )
            )
        for run in _memory_runs(results, key):
            targets.append(
                Target(
                    name=f"{key}: MB of the largest process above bare imports, "
                    f"{run['input_bytes'] / 1e6:,.0f} MB of input",
                    bound=300.0,
                    at_least=False,
                    measured=Spread.of([_above_imports(results, run) / 1e6]),
                )
            )
    return targets


def _memory_runs(results: Results, contestant: str) -> list[Run]:
    """Returns the runs made for their memory, the smallest input first."""
    return sorted(
        (
            run
            for run in results["runs"]
            if run["contestant"] == contestant and run["kind"] == "memory"
        ),
        key=operator.itemgetter("input_bytes"),
    )


def _above_imports(results: Results, run: Run) -> int:
    entry = results["contestants"][run["contestant"]]
    return int(run["peak_process_bytes"] - entry["imports_rss_bytes"])


def show_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a markdown table, its first column to the left."""
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _contestant_rows(results: Results) -> list[list[str]]:
    rows = []
    for key, entry in results["contestants"].items():
        runs = list(_runs(results, key, "main").values())
        if entry["status"] != "ok":
            rows.append([entry["label"], f"**{entry['status']}**"] + [""] * 9)
        if not runs:
            continue
        mb = runs[0]["input_bytes"] / 1e6
        net_cpu = [s for s in _net(results, key, "cpu_seconds").values() if s > 0]
        startup = list(_runs(results, key, "startup").values())

        def spread(field: str, runs: Sequence[Run] = runs, scale: float = 1) -> Spread:
            return Spread.of([run[field] / scale for run in runs])

        rows.append(
            [
                entry["label"],
                spread("wall_seconds").show(1),
                Spread.of([mb / run["wall_seconds"] for run in runs]).show(1),
                spread("cpu_seconds").show(1),
                Spread.of([mb / run["cpu_seconds"] for run in runs]).show(1),
                Spread.of([mb / s for s in net_cpu]).show(1) if net_cpu else "",
                spread("wall_seconds", startup).show(1) if startup else "",
                spread("cpu_seconds", startup).show(1) if startup else "",
                spread("peak_tree_bytes", scale=1e6).show(0),
                spread("peak_process_bytes", scale=1e6).show(0)
                + f" / {entry['imports_rss_bytes'] / 1e6:,.0f}",
                f"{runs[0]['output_bytes'] / runs[0]['input_bytes']:.3f}",
            ]
        )
    return rows


def _ratio_rows(results: Results) -> list[list[str]]:
    rows = []
    keys = list(results["contestants"])
    for ours in (key for key in keys if key.startswith("gristmill")):
        for peer in (key for key in keys if not key.startswith("gristmill")):
            ratios = [
                speed_ratio(results, ours, peer, field, seconds=seconds)
                for field in ("wall_seconds", "cpu_seconds")
                for seconds in (_whole, _net)
            ]
            if any(ratios):
                shown = [ratio.show(2) if ratio else "" for ratio in ratios]
                rows.append([f"{ours} / {peer}", *shown])
    return rows


def _input_line(results: Results) -> str:
    settings = results["settings"]
    main = next((run for run in results["runs"] if run["kind"] == "main"), None)
    if main is None:
        return "No contestant finished a run."
    return (
        f"Input: {main['input_bytes'] / 1e6:,.0f} MB of "
        f"{'binary' if settings.get('binary') else 'C4-like'} TFRecords in "
        f"{settings['files']} files, {main['input_records']:,} records of "
        f"{main['input_bytes'] / main['input_records']:,.0f} bytes on average, seed "
        f"{settings['seed']}. Writer options: {settings['writer_options']}. "
        f"{settings['rounds']} alternating rounds; medians, and (lowest..highest)."
    )


def name_of(results: Results) -> str:
    """Returns the name of the report."""
    return "convert_binary" if results["settings"].get("binary") else "convert"


def render_markdown(results: Results) -> str:
    """Returns the report."""
    name = name_of(results)
    parts = [
        "# TFRecords to ArrayRecord: what a conversion costs",
        describe_machine(results["environment"]),
        _input_line(results),
        *images(name, results),
    ]
    rows = _contestant_rows(results)
    if rows:
        header = (
            "whole process|wall s|MB/s|CPU s|MB per CPU s|MB per CPU s, start-up aside|"
            "start-up wall s|start-up CPU s|peak memory of the tree, MB|"
            "largest process / bare imports, MB|output / input"
        )
        parts.append(show_table(header.split("|"), rows))
    rows = _ratio_rows(results)
    if rows:
        header = (
            "how many times as fast|wall|wall, start-up aside|per CPU second|"
            "per CPU second, start-up aside"
        )
        parts += ["## Against the peers", show_table(header.split("|"), rows)]
    targets = list_targets(results)
    if targets:
        rows = [
            [
                target.name,
                ("at least " if target.at_least else "at most ") + f"{target.bound:g}",
                target.measured.show(2),
                "yes" if target.met else "**no**",
            ]
            for target in targets
        ]
        parts += ["## Targets", show_table(["", "target", "measured", "met"], rows)]
    rows = [
        [
            results["contestants"][key]["label"],
            f"{run['input_bytes'] / 1e6:,.0f}",
            f"{run['wall_seconds']:.1f}",
            f"{run['peak_tree_bytes'] / 1e6:,.0f}",
            f"{run['peak_process_bytes'] / 1e6:,.0f}",
            f"{_above_imports(results, run) / 1e6:,.0f}",
        ]
        for key in results["contestants"]
        for run in _memory_runs(results, key)
    ]
    if rows:
        header = (
            "memory, MB|input, MB|wall s|peak of the tree|largest process|"
            "the same above bare imports"
        )
        parts += ["## Memory as the input grows", show_table(header.split("|"), rows)]
    for entry in results["contestants"].values():
        if entry["status"] == "crashed":
            parts.append(
                f"## Crashed: {entry['label']} (on the {entry['crashed_on']} input)\n\n"
                f"```\n{entry['error']}\n```"
            )
        elif entry["status"] != "ok":
            parts.append(f"{entry['label']}: {entry['status']} ({entry['error']}).")
    return "\n\n".join(parts) + "\n"
