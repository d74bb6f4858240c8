r"""The cost of planning and committing, from a thousand to four million shards.

    python -m benchmarks.plan_scale size append replace write index verify \
        --markdown docs/performance/scale.md

No data is read. What workers report of their shards is made up; files that have to be
there have the right sizes, and no content. All else is the real code, in one process.
What a runner would carry from one stage to the next passes through Beam's coder. Each
path and number of shards has a process of its own.

- total: CPU time of all steps, without that of making files to be found.
- peak memory: the largest of the process, above that of the imports alone.
- element: the largest one about one shard or file, encoded by Beam's coder.
- gathered: the largest one about many, divided by the number of shards.
- grows as n^: the exponent between the last two numbers of shards; 1 is linear.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import pathlib
import resource
import subprocess
import sys

from benchmarks.contest import describe_environment

_FEW_SHARDS = 8
SHARDS = [10**3, 10**4, 10**5, 10**6, 4 * 10**6]
_FIRST = ("total_seconds", "peak_bytes", "element_bytes", "gathered_shard_bytes")
_UNITS = {
    "seconds": ((1, "s"),),
    "bytes": ((1e9, "GB"), (1e6, "MB"), (1e3, "KB"), (1, "B")),
}


def measure(path: str, shards: int) -> dict[str, float]:
    """Runs one path in this process: `measure` of its module, `scale_PATH.py`.

    A path returns the seconds of its steps and sizes in bytes, as `Steps.found` has
    them.
    """
    module = importlib.import_module(f"benchmarks.scale_{path}")
    module.measure(_FEW_SHARDS)  # All that is imported late is imported now.
    imports_bytes = _peak_bytes()
    found: dict[str, float] = module.measure(shards)
    steps = [value for key, value in found.items() if key.endswith("_seconds")]
    return {
        "shards": shards,
        "total_seconds": sum(steps),
        "peak_bytes": _peak_bytes() - imports_bytes,
        "gathered_shard_bytes": found["gathered_bytes"] / shards,
        **found,
    }


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def markdown(runs: list[dict[str, float]]) -> str:
    """Returns the table of one path, with the growth between its last two sizes."""
    header = ["", *(f"{run['shards']:,.0f} shards" for run in runs), "grows as n^"]
    lines = [_line(header), _line(["---", *["---:"] * (len(runs) + 1)])]
    others = [key for key in runs[-1] if key not in ("shards", *_FIRST)]
    for key in (*_FIRST, *others):
        values = [run[key] for run in runs]
        lines.append(
            _line([_name(key), *(_cell(key, v) for v in values), _grows(runs, key)])
        )
    return "\n".join(lines) + "\n"


def _name(key: str) -> str:
    name, _, unit = key.rpartition("_")
    words = name.replace("_", " ") if unit in _UNITS else key
    return {"peak": "peak memory", "gathered shard": "gathered, a shard"}.get(
        words, words
    )


def _cell(key: str, value: float) -> str:
    units = _UNITS.get(key.rpartition("_")[2], ((1, ""),))
    scale, unit = next((u for u in units if value >= u[0]), units[-1])
    number = (
        f"{value / scale:,.3g}" if value < 1000 * scale else f"{value / scale:,.0f}"
    )
    return f"{number} {unit}".strip()


def _grows(runs: list[dict[str, float]], key: str) -> str:
    if len(runs) < 2 or min(run[key] for run in runs[-2:]) <= 0:
        return ""
    before, last = runs[-2:]
    steps = math.log(last["shards"] / before["shards"])
    return f"{math.log(last[key] / before[key]) / steps:.2f}"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def document(found: dict[str, list[dict[str, float]]]) -> str:
    """Returns the page: what was measured, and a table for each path."""
    lines = (__doc__ or "").splitlines()
    text = "\n".join(["# From a thousand to four million shards", *lines[1:]])
    for path, runs in found.items():
        module = importlib.import_module(f"benchmarks.scale_{path}")
        title, _, note = (module.__doc__ or "").partition("\n")
        text += (
            f"\n\n## {title.rstrip('.')}\n{note.rstrip()}\n\n{markdown(runs).rstrip()}"
        )
    return text.rstrip("\n") + "\n"


def main() -> None:
    """Measures, prints the tables, and writes them where they are wanted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("paths", nargs="+", help="such as size: benchmarks/scale_size")
    parser.add_argument("--shards", type=int, nargs="+", default=SHARDS)
    parser.add_argument(
        "--markdown",
        type=pathlib.Path,
        help="where the tables go; those of other paths that its .json has stay",
    )
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one is not None:
        print(json.dumps(measure(options.paths[0], options.one)))
        return
    found: dict[str, list[dict[str, float]]] = {}
    kept = options.markdown and options.markdown.with_suffix(".json")
    if kept and kept.exists():
        found = json.loads(kept.read_text(encoding="utf-8"))
    for path in options.paths:
        runs = []
        for shards in options.shards:
            this = [sys.executable, "-m", "benchmarks.plan_scale", path]
            command = [*this, "--one", str(shards)]
            done = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True
            )
            runs.append(json.loads(done.stdout.splitlines()[-1]))
            print(f"{path}\n\n{markdown(runs)}", flush=True)
        found[path] = runs
    if kept:
        day = describe_environment(())["date"]
        text = f"{document(found)}\nThe newest of these was measured on {day}.\n"
        options.markdown.write_text(text, encoding="utf-8")
        kept.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
