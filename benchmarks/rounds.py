"""Rounds in which contestants take turns, and how what they took is compared."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

_T = TypeVar("_T")

Run = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spread:
    """A median with the smallest and the largest value it stands for."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Returns the spread of at least one value."""
        return cls(median=statistics.median(values), low=min(values), high=max(values))

    def show(self, digits: int) -> str:
        """Returns "median (low..high)", or the one value there is."""
        text = f"{self.median:,.{digits}f}"
        if self.low == self.high:
            return text
        return f"{text} ({self.low:,.{digits}f}..{self.high:,.{digits}f})"


def take_turns(contestants: Sequence[_T], rounds: int) -> Iterator[tuple[int, _T]]:
    """Yields the number of each round, from 0 on, with each contestant.

    Every round begins with another one, so that a slow minute of the machine does not
    hit the same one each time.
    """
    for number in range(rounds):
        turn = number % len(contestants)
        for contestant in [*contestants[turn:], *contestants[:turn]]:
            yield number, contestant


def by_round(
    runs: Sequence[Run], contestant: str, value: Callable[[Run], float]
) -> dict[int, float]:
    """Returns a value of each run of a contestant by its round, in order."""
    own = [run for run in runs if run["contestant"] == contestant]
    return {run["round"]: value(run) for run in sorted(own, key=lambda r: r["round"])}


def ratios(first: Mapping[int, float], second: Mapping[int, float]) -> list[float]:
    """Returns how many times the second value the first is, in rounds with both."""
    return [first[number] / second[number] for number in first if number in second]


def run_process(
    key: str,
    command: Sequence[str],
    *,
    variables: Mapping[str, str],
    directory: pathlib.Path | None = None,
    limit_seconds: float | None = None,
) -> dict[str, Any]:
    """Runs one contestant in a process of its own.

    Args:
        key: The contestant.
        command: Prints what it measured as the last line that is a JSON object.
        variables: Added to the environment.
        directory: Where it runs, None for this one.
        limit_seconds: How long it may take, None for any time.

    Returns:
        What was measured, and the contestant.

    Raises:
        RuntimeError: It measured nothing.
        subprocess.TimeoutExpired: It took longer.
    """
    done = subprocess.run(
        command,
        env={**os.environ, **variables},
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
        timeout=limit_seconds,
    )
    measured = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not measured:
        raise RuntimeError(f"{key}: exit code {done.returncode}\n{done.stderr[-4000:]}")
    return {"contestant": key, **json.loads(measured[-1])}


def tokens_per_cpu_second(run: Run) -> float:
    """Returns millions of tokens for a second of processor time."""
    return float(run["tokens"] / run["cpu_seconds"] / 1e6)


def tokens_per_second(run: Run) -> float:
    """Returns millions of tokens for a second."""
    return float(run["tokens"] / run["wall_seconds"] / 1e6)


def token_tables(
    runs: Sequence[Run],
    labels: Mapping[str, str],
    compared: Sequence[tuple[str, str, str]],
) -> list[str]:
    """Returns the lines of two tables: speeds of contestants, and their ratios.

    Args:
        runs: With tokens, CPU and wall seconds.
        labels: Of the contestants, those without a run among them.
        compared: Pairs of contestants, and what the ratio of their speeds is called.
    """
    lines = [
        "| contestant | M tokens per CPU s | M tokens/s |",
        "| --- | ---: | ---: |",
    ]
    speeds = {key: by_round(runs, key, tokens_per_cpu_second) for key in labels}
    for key, label in labels.items():
        if speeds[key]:
            walls = by_round(runs, key, tokens_per_second)
            shown = [
                Spread.of([*each.values()]).show(2) for each in (speeds[key], walls)
            ]
            lines.append(f"| {label} | {' | '.join(shown)} |")
    lines += ["", "| by CPU time, round by round | ratio |", "| --- | ---: |"]
    for first, second, label in compared:
        if each := ratios(speeds[first], speeds[second]):
            lines.append(f"| {label} | {Spread.of(each).show(2)} |")
    return lines
