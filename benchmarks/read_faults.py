"""Reads by the loader from a bucket that fails.

    python -m benchmarks.read_faults --markdown docs/performance/faults.md

Every row reads the same records in random order, with the default options, from the
server of the tests, which fails in one way. The records are compared with those of the
local files. The table is written between two marks in the document.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.contest import write_between
from gristmill import loader
from gristmill.dataset import GristmillError
from gristmill.dataset.storage.lookup import storage_for
from tests.support.datasets import convert
from tests.support.gcs_process import GcsProcess
from tests.support.records import text_records

_MARKS = ("<!-- loading: begin -->", "<!-- loading: end -->")
_PATH = "gs://bucket/c4"
_SHARD = "c4/d-train.array_record-00001-of-00004"
_BATCH, _BATCHES = 1000, 4
_ALWAYS = 10**9
_PAGE = (520, "text/html", "<!DOCTYPE html>\n<p>Web server is returning an error")


class Scenario(NamedTuple):
    """A way to fail.

    Attributes:
        name: What happens, for the table.
        faults: Of the server; see `tests.support.gcs_server.Fault`.
        change: What happens to the dataset meanwhile.
    """

    name: str
    faults: tuple[dict[str, Any], ...] = ()
    change: Callable[[], None] = lambda: None


def _fault(kind: str, times: int, **more: Any) -> tuple[dict[str, Any], ...]:
    return ({"kind": kind, "operation": "media", "times": times, **more},)


def _replace() -> None:
    data = storage_for(_PATH).read(f"gs://bucket/{_SHARD}")
    storage_for(_PATH).write(f"gs://bucket/{_SHARD}", data)


def _delete() -> None:
    storage_for(_PATH).delete(f"gs://bucket/{_SHARD}")


SCENARIOS = (
    Scenario("nothing"),
    Scenario("500 answers are 503", _fault("503", 500)),
    Scenario("500 answers are 429", _fault("429", 500)),
    Scenario("20 answers are 520, with a page", _fault("other", 20, answer=_PAGE)),
    Scenario("20 answers are 404", _fault("404", 20)),
    Scenario("20 answers are 401", _fault("401", 20)),
    Scenario("20 connections are reset", _fault("reset", 20)),
    Scenario("20 bodies are cut short, then the connection ends", _fault("cut", 20)),
    Scenario("20 bodies are short, with a length to match", _fault("short", 20)),
    Scenario("one bit is flipped in 20 bodies", _fault("flip", 20)),
    Scenario("5 bodies stop in the middle", _fault("stall", 5)),
    Scenario("5 bodies arrive at a byte a second", _fault("drip", 5)),
    Scenario("one answer in 200 takes 2 s more", _fault("slow", 20, seconds=2.0)),
    Scenario("every answer is 401", _fault("401", _ALWAYS, message="Invalid token")),
    Scenario("every answer is 403", _fault("403", _ALWAYS, message="No access")),
    Scenario("every body is short", _fault("short", _ALWAYS)),
    Scenario("one bit is flipped in every body", _fault("flip", _ALWAYS)),
    Scenario("every answer is 503, for good", _fault("503", _ALWAYS)),
    Scenario("a shard is written again", change=_replace),
    Scenario("a shard is deleted", change=_delete),
)


def run(scenario: Scenario, server: GcsProcess, local: str) -> dict[str, Any]:
    """Reads with a fault; returns the outcome."""
    with tempfile.TemporaryDirectory() as cache_dir:
        expected = loader.open(local)
        remote = loader.open(_PATH, cache_dir=cache_dir)
        chance = np.random.default_rng(0)
        remote.read(np.arange(0, len(remote), 7))
        for _ in range(3):
            remote.read(chance.integers(0, len(remote), _BATCH))
        before = remote.request_counts
        server.control(fail=_spread_out(scenario))
        scenario.change()
        begin, error, wrong = time.monotonic(), "", 0
        try:
            for _ in range(_BATCHES):
                order = chance.integers(0, len(remote), _BATCH)
                pairs = zip(remote.read(order), expected.read(order), strict=True)
                wrong += sum(a != b for a, b in pairs)
        except GristmillError as e:
            error = str(e)
        seconds = time.monotonic() - begin
        server.control(clear=True)
    after = remote.request_counts
    again = after.retries + after.hedges - before.retries - before.hedges
    return {
        "name": scenario.name,
        "seconds": seconds,
        "requests": after.requests - before.requests,
        "again": again,
        "wrong": wrong,
        "error": error,
    }


def _spread_out(scenario: Scenario) -> list[dict[str, Any]]:
    """Returns the faults; slow answers are spread over all requests."""
    found = []
    for fault in scenario.faults:
        if fault["kind"] == "slow":
            found += [
                fault | {"times": 1, "skip": 200 * number}
                for number in range(fault["times"])
            ]
        else:
            found.append(fault)
    return found


def render_table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the table as Markdown."""
    lines = [
        "| what happens | what the user sees | seconds | requests | of them again | "
        "wrong records |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        seen = _headline(row["error"]) if row["error"] else "the records"
        lines.append(
            f"| {row['name']} | {seen} | {row['seconds']:.1f} | {row['requests']:,} | "
            f"{row['again']:,} | {row['wrong']:,} |"
        )
    return "\n".join(lines)


def _headline(message: str) -> str:
    """Returns the fault, and the result, in one line."""
    first, *rest = message.splitlines()
    got = [re.sub(r"^ *got: *", "", line) for line in rest if " got:" in line]
    return ": ".join([first, *got]).replace("|", "/")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs all scenarios; ends with 1 if a record was wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.read_faults")
    parser.add_argument("--markdown", type=pathlib.Path)
    args = parser.parse_args(argv)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        files = [text_records(4_000, seed=seed) for seed in range(4)]
        local = convert(pathlib.Path(folder), files)
        for scenario in SCENARIOS:
            with GcsProcess("bucket") as server:
                os.environ["STORAGE_EMULATOR_HOST"] = server.url
                for path in pathlib.Path(local).rglob("*"):
                    if path.is_file():
                        name = path.relative_to(local).as_posix()
                        storage_for(_PATH).write(f"{_PATH}/{name}", path.read_bytes())
                server.control(set={"latency_seconds": 0.02})
                rows.append(run(scenario, server, local))
            print(rows[-1], file=sys.stderr, flush=True)
    table = render_table(rows)
    if args.markdown:
        write_between(args.markdown, _MARKS, table)
    else:
        print(table)
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
