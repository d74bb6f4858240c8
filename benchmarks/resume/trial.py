"""All cases with one loader, in the environment of the loader.

    python -m benchmarks.resume.trial LOADER FOLDER SHARD_RECORDS WORKERS MORE TIMEOUT

prints the results as JSON. A case has an uninterrupted run, from whose middle the state
is, and a run that resumes from it. Cases share uninterrupted runs. This imports nothing
of gristmill itself.
"""

import collections
import dataclasses
import functools
import importlib
import importlib.metadata
import json
import os
import pathlib
import random
import re
import sys

from benchmarks.resume.host import fork, load, variables
from benchmarks.resume.protocol import PACKED_TOKENS, SEED, Job
from benchmarks.resume.records import SHARDS, write_all

# Cases, with their titles on the page.
CASES = {
    "stopped": "stopped",
    "hosts": "other hosts",
    "workers": "other workers",
    "mixture": "mixture",
    "packing": "packing",
    "killed": "killed",
    "added": "records added",
    "other": "other data",
}
_BATCH = 40
_MEAN_TOKENS = 32
# A resumed run that is not compared is read for so many steps.
_FEW_STEPS = 5
_ABOUT_STATES = re.compile("state|resum|checkpoint|restor|edition|elastic", re.I)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """How the hosts of a run read."""

    data: str = "plain"
    hosts: int = 2
    workers: int = 0


def cases(workers, more, *, readers_stay):
    """Returns the uninterrupted run of each case, and the one that resumes.

    Args:
        workers: Worker processes before the stop, where there are some.
        more: Those after it.
        readers_stay: Whether the loader's documentation asks for the same product of
            hosts and workers.
    """
    two, working = Run(), Run(hosts=1, workers=workers)
    before, after = (Run(workers=2), 1) if readers_stay else (two, 0)
    return {
        "stopped": (two, two),
        "hosts": (before, Run(hosts=4, workers=after)),
        "workers": (working, Run(hosts=1, workers=more)),
        "mixture": (Run(data="mixture"), Run(data="mixture")),
        "packing": (Run(data="packing"), Run(data="packing")),
        "killed": (working, working),
        "other": (two, Run(data="other")),
        # Last, as it changes the data.
        "added": (two, two),
    }


class Trial:
    """Tries one loader.

    Args:
        loader: Name of the adapter.
        folder: For its datasets and runs.
        shard_records: Records in each shard.
        timeout_seconds: After which a run has failed.
    """

    def __init__(self, loader, folder, shard_records, timeout_seconds):
        self.adapter = importlib.import_module(f"benchmarks.resume.loaders.{loader}")
        self._folder, self._shard_records = folder, shard_records
        self._timeout_seconds = timeout_seconds
        self._records = SHARDS * shard_records
        self._steps = self._records // _BATCH
        self._runs = 0
        self.uninterrupted = functools.cache(self._uninterrupted)

    def write(self, *, append=False):
        """Writes the data, or adds records to it, in another process.

        Raises:
            RuntimeError: It failed.
        """
        log = self._folder / "write.log"
        how = (self.adapter, self._folder / "data", self._shard_records, append)
        _, status = os.waitpid(
            fork(functools.partial(write_all, *how), log, variables()), 0
        )
        if status:
            raise RuntimeError(log.read_text(errors="replace")[-2000:])

    def _load(self, run, **plan):
        folders, weights = [run.data], (1.0,)
        if run.data == "mixture":
            folders, weights = ["first", "second"], (0.75, 0.25)
        if run.data == "packing":
            packs = hasattr(self.adapter, "write_packed")
            folders = ["packed" if packs else "plain"]
        jobs = [
            Job(
                folders=tuple(str(self._folder / "data" / name) for name in folders),
                weights=weights,
                batch=_BATCH,
                host=host,
                hosts=run.hosts,
                workers=run.workers,
                packing=run.data == "packing",
                epoch_steps=self._steps,
            )
            for host in range(run.hosts)
        ]
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        return load(self.adapter, jobs, folder, self._timeout_seconds, **plan)

    def _uninterrupted(self, run):
        """Returns the step after which a run is stopped, any of its middle, and all."""
        steps = self._steps
        if run.data == "packing":
            steps = steps * _MEAN_TOKENS // PACKED_TOKENS
        chance = random.Random(f"{run} {SEED}")
        stop = chance.randrange(steps // 5, steps * 7 // 10)
        return stop, self._load(run, save_at=stop)

    def result(self, name, before, after):
        """Returns the result of a case."""
        if reason := getattr(self.adapter, "NOT_OFFERED", {}).get(name):
            return {"outcome": "not offered", "error": reason}
        stop, whole = self.uninterrupted(before)
        saved = whole
        if name == "killed" and not whole.error:
            saved = self._load(before, save_at=stop, kill=True)
        if saved.error or len(saved.states) < before.hosts:
            return {"outcome": "failed", "error": saved.error or "no state"}
        few = _FEW_STEPS if name == "other" else None
        came = self._load(after, states=saved.states, stop=few)
        said = [line[:300] for line in came.said if _ABOUT_STATES.search(line)]
        result = {"stopped_at": stop, "said": said}
        if came.error:
            return {"outcome": "refused", "error": came.error, **result}
        if name == "other":
            return {"outcome": "accepted", **result}
        resumed = [*saved.steps[:stop], *came.steps]
        counts = compare(whole.steps, resumed, self._records)
        exact = not (counts["lost"] or counts["repeated"] or counts["moved"])
        return {"outcome": "exact" if exact else "differs", **counts, **result}


def compare(whole, resumed, records):
    """Returns how many records are lost, repeated, or in another batch.

    A record is counted once: lost if it, or some of its tokens, came less often than in
    the uninterrupted run, repeated if more often, else moved if it came in other
    batches.

    Args:
        whole: The numbers in each global batch of the uninterrupted run: of records, or
            of tokens, which say their record.
        resumed: Those of the run that was stopped, with what followed.
        records: How many records there were. `new` are those that came later.
    """
    was, became = _places(whole), _places(resumed)
    before, after = _totals(was), _totals(became)
    new = {number for number in after if number >= records}
    lost = {number for number in before if after[number] < before[number]}
    repeated = {number for number in after if after[number] > before[number]}
    elsewhere = {place[0] for place in was | became if was[place] != became[place]}
    moved = elsewhere - lost - repeated
    found = {"lost": lost, "repeated": repeated - new, "moved": moved, "new": new}
    return {name: len(numbers) for name, numbers in found.items()}


def _places(steps):
    """Returns how often each record came in each step."""
    return collections.Counter(
        (number, step)
        for step, numbers in enumerate(steps)
        for number in numbers.tolist()
    )


def _totals(places):
    return collections.Counter(number for number, _ in places.elements())


def main(loader, folder, shard_records, workers, more, timeout):
    """Prints the results."""
    trial = Trial(loader, pathlib.Path(folder), int(shard_records), float(timeout))
    adapter = trial.adapter
    trial.write()
    found = {}
    stay = getattr(adapter, "READERS_STAY", False)
    for name, case in cases(int(workers), int(more), readers_stay=stay).items():
        if name == "added":
            # The uninterrupted run is one without the added records.
            trial.uninterrupted(case[0])
            trial.write(append=True)
        found[name] = trial.result(name, *case)
        print(f"{loader} {name}: {found[name]}", file=sys.stderr, flush=True)
    packages = {name: importlib.metadata.version(name) for name in adapter.PACKAGES}
    results = {name: found[name] for name in CASES}
    print(json.dumps({"title": adapter.TITLE, "packages": packages, "cases": results}))


if __name__ == "__main__":
    main(*sys.argv[1:])
