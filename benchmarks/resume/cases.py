"""The cases of the test of resuming, and what is measured in each.

A case has an uninterrupted run, from whose middle the state is, and a run that resumes
from it. Runs are cached by what they do: cases share uninterrupted runs.
"""

from __future__ import annotations

import dataclasses

CASES = {
    "stopped": "stopped at a random step, and resumed",
    "hosts": "resumed on 4 hosts instead of 2",
    "workers": "resumed with twice as many worker processes",
    "mixture": "a mixture of two datasets, 3 to 1",
    "packing": "records packed into rows",
    "killed": "killed by SIGKILL while worker processes read",
    "added": "records were added to the dataset",
    "other": "the state of another dataset",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """How the hosts of a run read."""

    data: str = "plain"
    hosts: int = 2
    workers: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """The uninterrupted run, and the one that resumes."""

    before: Run
    after: Run


def cases(workers: tuple[int, int], *, readers_stay: bool) -> dict[str, Case]:
    """Returns the cases.

    Args:
        workers: Worker processes before and after the stop, where there are some.
        readers_stay: Whether the loader's documentation asks for the same product of
            hosts and workers.
    """
    two, working = Run(), Run(hosts=1, workers=workers[0])
    hosts = Case(before=two, after=Run(hosts=4))
    if readers_stay:
        hosts = Case(before=Run(workers=2), after=Run(hosts=4, workers=1))
    return {
        "stopped": Case(before=two, after=two),
        "hosts": hosts,
        "workers": Case(before=working, after=Run(hosts=1, workers=workers[1])),
        "mixture": Case(before=Run(data="mixture"), after=Run(data="mixture")),
        "packing": Case(before=Run(data="packing"), after=Run(data="packing")),
        "killed": Case(before=working, after=working),
        "other": Case(before=two, after=Run(data="other")),
        # Last, as it changes the data.
        "added": Case(before=two, after=two),
    }
