"""All cases with one loader."""

from __future__ import annotations

import dataclasses
import pathlib
import random
import re
from collections.abc import Callable
from typing import Any

from benchmarks.resume.cases import CASES, Case, Run, cases
from benchmarks.resume.compare import compare
from benchmarks.resume.protocol import PACKED_TOKENS, SEED, Job
from benchmarks.resume.records import SHARDS
from benchmarks.resume.run import Came, Runner

BATCH = 40
_MEAN_TOKENS = 32
# A resumed run that is not compared is read for so many steps.
_FEW_STEPS = 5
_ABOUT_STATES = re.compile("state|resum|checkpoint|restor|edition|buffer|elastic", re.I)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Size:
    """How much is read.

    Attributes:
        shard_records: Records in each of the 16 shards.
        workers: Worker processes before and after the stop, where there are some.
        timeout_seconds: After which a run has failed.
    """

    shard_records: int
    workers: tuple[int, int]
    timeout_seconds: float

    @property
    def records(self) -> int:
        """Records of the dataset."""
        return SHARDS * self.shard_records


class Trial:
    """Tries one loader.

    Args:
        runner: Runs its hosts.
        size: How much is read.
        readers_stay: See `cases`.
        packs_other_data: Whether the loader packs data of a kind of its own.
        folder: Where its datasets are.
    """

    def __init__(
        self,
        runner: Runner,
        size: Size,
        *,
        readers_stay: bool,
        packs_other_data: bool,
        folder: str,
    ):
        self._runner, self._size, self._folder = runner, size, folder
        self._packs_other_data = packs_other_data
        self._cases = cases(size.workers, readers_stay=readers_stay)
        self._whole: dict[Run, tuple[int, Came]] = {}

    def run(self, say: Callable[[str], None]) -> dict[str, Any]:
        """Returns the result of each case."""
        self._runner.write(self._size.shard_records)
        found: dict[str, Any] = {}
        for name, case in self._cases.items():
            if name == "added":
                # The uninterrupted run is one without the added records.
                self._uninterrupted(case.before)
                self._runner.write(self._size.shard_records, append=True)
            found[name] = self._try(name, case)
            say(f"{name}: {found[name]}")
        return {"cases": {name: found[name] for name in CASES}}

    def _jobs(self, run: Run) -> list[Job]:
        folders, weights = (run.data,), (1.0,)
        if run.data == "mixture":
            folders, weights = ("first", "second"), (0.75, 0.25)
        if run.data == "packing":
            folders = ("packed",) if self._packs_other_data else ("plain",)
        return [
            Job(
                folders=tuple(f"{self._folder}/{folder}" for folder in folders),
                weights=weights,
                batch=BATCH,
                host=host,
                hosts=run.hosts,
                workers=run.workers,
                packing=run.data == "packing",
                epoch_steps=self._size.records // BATCH,
            )
            for host in range(run.hosts)
        ]

    def _stop_of(self, run: Run) -> int:
        """Returns the step after which a run is stopped: any, of its middle."""
        steps = self._size.records // BATCH
        if run.data == "packing":
            steps = steps * _MEAN_TOKENS // PACKED_TOKENS
        return random.Random(f"{run} {SEED}").randrange(steps // 5, steps * 7 // 10)

    def _uninterrupted(self, run: Run) -> tuple[int, Came]:
        if run not in self._whole:
            stop = self._stop_of(run)
            came = self._runner.load(self._jobs(run), save_at=[stop])
            self._whole[run] = stop, came
        return self._whole[run]

    def _try(self, name: str, case: Case) -> dict[str, Any]:
        stop, whole = self._uninterrupted(case.before)
        if not whole.offered:
            return {"outcome": "not offered", "error": whole.error}
        states = whole.states.get(stop)
        if whole.error or states is None:
            return {"outcome": "failed", "error": whole.error or "no state"}
        head = whole.steps[:stop]
        if name == "killed":
            killed = self._runner.load(
                self._jobs(case.before), save_at=[stop], kill=True
            )
            if killed.error or stop not in killed.states:
                return {"outcome": "failed", "error": killed.error}
            states, head = killed.states[stop], killed.steps[:stop]
        came = self._runner.load(
            self._jobs(case.after),
            states=states,
            stop=_FEW_STEPS if name == "other" else None,
        )
        result: dict[str, Any] = {
            "stopped_at": stop,
            "said": [line[:300] for line in came.said if _ABOUT_STATES.search(line)],
        }
        if came.error:
            return {"outcome": "refused", "error": came.error, **result}
        if name == "other":
            return {"outcome": "accepted", **result}
        counts = compare(whole.steps, [*head, *came.steps], self._size.records)
        exact = not (counts["lost"] or counts["repeated"] or counts["moved"])
        return {"outcome": "exact" if exact else "differs", **counts, **result}


def has(loader: str, name: str) -> bool:
    """Returns whether an adapter's file has a name, without importing its loader."""
    path = pathlib.Path(__file__).with_name("loaders") / f"{loader}.py"
    text = path.read_text(encoding="utf-8")
    return re.search(rf"^(def )?{name}\b", text, re.MULTILINE) is not None
