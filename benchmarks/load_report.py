"""The results of `benchmarks.load`: ratios, targets and tables.

Contestants are compared within a round, and the median of the rounds is given with its
smallest and largest value. CPU time is of all threads and processes of a contestant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.contest import describe_machine
from benchmarks.convert_report import Target, show_table
from benchmarks.figures import images
from benchmarks.rounds import Run, Spread

Results = Mapping[str, Any]

_DATASETS = {
    "text_g1": "text, 2.2 KB, one record a chunk",
    "text_g16": "text, 2.2 KB, sixteen records a chunk",
    "binary_g1": "binary, 100 KB, one record a chunk",
    "binary_g16": "binary, 100 KB, sixteen records a chunk",
}


def _runs(results: Results, contestant: str, dataset: str) -> dict[int, Run]:
    """Returns the runs of a contestant on a dataset by round."""
    if not _group_size_matters(results, contestant):
        dataset = dataset.partition("_")[0] + "_g1"
    return {
        run["round"]: run
        for run in results["runs"]
        if (run["contestant"], run["dataset"]) == (contestant, dataset)
    }


def _group_size_matters(results: Results, contestant: str) -> bool:
    return any(
        run["contestant"] == contestant and run["dataset"].endswith("_g16")
        for run in results["runs"]
    )


def _per_second(run: Run) -> float:
    return float(run["records"] / run["wall_seconds"])


def _cpu_us(run: Run) -> float:
    return float(run["cpu_seconds"] / run["records"] * 1e6)


def _per_cpu_second(run: Run) -> float:
    return float(run["records"] / run["cpu_seconds"])


def ratio(
    results: Results,
    ours: str,
    peer: str,
    dataset: str,
    *,
    value: Callable[[Run], float],
) -> Spread | None:
    """Returns how many times a peer's value one contestant has, round by round.

    Args:
      results: of the benchmark.
      ours: a contestant.
      peer: another.
      dataset: that both read.
      value: of a run.

    Returns:
      None where no round has both.
    """
    mine, theirs = _runs(results, ours, dataset), _runs(results, peer, dataset)
    ratios = [value(mine[n]) / value(theirs[n]) for n in sorted(mine) if n in theirs]
    return Spread.of(ratios) if ratios else None


def list_targets(results: Results) -> list[Target]:
    """Returns the targets for which there are measurements."""
    read, official, floor = "gristmill_read", "official_read", "decompression"
    plain = [
        (
            f"plain files: CPU time over the official batch read's; {name}",
            1.1,
            False,
            ratio(results, "plain_read", official, dataset, value=_cpu_us),
        )
        for dataset, name in _DATASETS.items()
    ]
    compared: list[tuple[str, float, bool, Spread | None]] = [
        (
            "records per CPU second over the official batch read's",
            2.0,
            True,
            ratio(results, read, official, "text_g1", value=_per_cpu_second),
        ),
        (
            "CPU time over that of decompression alone",
            1.7,
            False,
            ratio(results, read, floor, "text_g1", value=_cpu_us),
        ),
        (
            "records/s of the feed over Grain's default pipeline's, one process each",
            20.0,
            True,
            ratio(results, "feed_0", "guide_grain_0", "text_g1", value=_per_second),
        ),
        (
            "bytes of index a record",
            8.5,
            False,
            _index_bytes(results, "text_g1"),
        ),
        *plain,
    ]
    return [
        Target(name=name, bound=bound, at_least=at_least, measured=measured)
        for name, bound, at_least, measured in compared
        if measured is not None
    ]


def _index_runs(results: Results, dataset: str) -> list[Run]:
    return [
        run
        for run in results["runs"]
        if run["dataset"] == dataset and run["index"]["processes"]
    ]


def _index_bytes(results: Results, dataset: str) -> Spread | None:
    """Returns the size of indexes by record, of which all processes map one copy."""
    records = results["datasets"].get(dataset, {}).get("records")
    found = [r["index"]["file_bytes"] / records for r in _index_runs(results, dataset)]
    return Spread.of(found) if found else None


def _dataset_table(results: Results, dataset: str) -> str:
    about = results["datasets"][dataset]
    rows = []
    for key, entry in results["contestants"].items():
        runs = list(_runs(results, key, dataset).values())
        if not runs:
            if entry["status"] != "ok":
                rows.append([entry["label"], f"**{entry['status']}**", "", "", "", ""])
            continue
        cpu = ratio(results, key, "gristmill_read", dataset, value=_cpu_us)
        rows.append(
            [
                entry["label"],
                Spread.of([_per_second(run) for run in runs]).show(0),
                f"{_median(runs, _per_second) * about['record_bytes'] / 1e6:,.0f}",
                Spread.of([_cpu_us(run) for run in runs]).show(1),
                cpu.show(2) if cpu else "",
                f"{_median(runs, lambda run: run['first_seconds']):.2f}",
            ]
        )
    header = [
        *("", "records/s", "MB/s", "CPU us a record"),
        *("CPU over gristmill's read", "s to the first batch"),
    ]
    return (
        f"## {_DATASETS.get(dataset, dataset)}\n\n"
        f"{about['records']:,} records of {about['record_bytes']:,.0f} bytes in "
        f"{about['shards']} shards of {about['shard_bytes'] / 1e6:,.0f} MB in all, "
        f"batches of {about['batch_size']:,}.\n\n" + show_table(header, rows)
    )


def _median(runs: list[Run], value: Callable[[Run], float]) -> float:
    return Spread.of([value(run) for run in runs]).median


def _index_table(results: Results) -> str | None:
    """Says what indexes take in the memory of processes that share them."""
    rows = []
    for dataset, about in results["datasets"].items():
        for key, entry in results["contestants"].items():
            runs = [
                run
                for run in _index_runs(results, dataset)
                if run["contestant"] == key and key in ("gristmill_read", "feed_2")
            ]
            if not runs:
                continue
            index = runs[0]["index"]
            rows.append(
                [
                    f"{dataset}, {entry['label']}",
                    f"{index['file_bytes'] / about['records']:.2f}",
                    f"{index['file_bytes'] / 1e3:,.0f}",
                    str(index["processes"]),
                    f"{index['rss_bytes'] / 1e3:,.0f}",
                    f"{index['pss_bytes'] / 1e3:,.0f}",
                    f"{index['private_dirty_bytes'] / 1e3:,.0f}",
                ]
            )
    if not rows:
        return None
    header = [
        *("", "bytes a record", "KB of files", "processes"),
        *("KB mapped, sum", "KB of memory (PSS), sum", "KB of one process alone"),
    ]
    return (
        "## Memory of the index\n\nWhat `/proc/*/smaps` says of the maps of index "
        "files, over the process and its workers: the pages of one file are in memory "
        "once, however many processes map them.\n\n" + show_table(header, rows)
    )


def name_of(_: Results) -> str:
    """Returns the name of the report."""
    return "load"


def render_markdown(results: Results) -> str:
    """Returns the report."""
    settings = results["settings"]
    parts = [
        "# Reading in random order: what it costs",
        describe_machine(results["environment"]),
        f"Shards on a local disk, in the page cache; zstd:3. "
        f"{settings['rounds']} alternating rounds of {settings['seconds']:g} s, "
        f"{settings['worker_rounds']} for those with workers; medians, and "
        "(lowest..highest). CPU is that of all threads and processes. gristmill "
        "compares the checksum of every record, or of plain files the hash of every "
        "chunk.",
        *images("load", results),
    ]
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
        header = ["text, one record a chunk, if not said", "target", "measured", "met"]
        parts += ["## Targets", show_table(header, rows)]
    parts += [_dataset_table(results, dataset) for dataset in results["datasets"]]
    index = _index_table(results)
    if index:
        parts.append(index)
    for entry in results["contestants"].values():
        if entry["status"] == "failed":
            parts.append(f"## Failed: {entry['label']}\n\n```\n{entry['error']}\n```")
        elif entry["status"] != "ok":
            parts.append(f"{entry['label']}: {entry['status']} ({entry['error']}).")
    return "\n\n".join(parts) + "\n"
