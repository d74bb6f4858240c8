"""The checks of `gristmill doctor`: all of them run at once, each in time."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Iterable, Mapping

from gristmill.dataset.base.daemon_call import daemon_call
from gristmill.dataset.base.errors import GristmillError
from gristmill.pipelines.doctor.bucket import look_at_bucket
from gristmill.pipelines.doctor.credentials import look_at_credentials
from gristmill.pipelines.doctor.dataset_place import DatasetPlace
from gristmill.pipelines.doctor.dataset_state import look_at_group_size, look_at_jobs
from gristmill.pipelines.doctor.disks import look_at_disks
from gristmill.pipelines.doctor.finding import Finding, error, warning
from gristmill.pipelines.doctor.installation import look_at_builds, look_at_versions
from gristmill.pipelines.doctor.mounts import look_at_mount
from gristmill.pipelines.doctor.shared_memory import look_at_shared_memory

Look = Callable[[DatasetPlace | None], Iterable[Finding]]

# Name -> check that also works without a dataset.
MACHINE_CHECKS: dict[str, Look] = {
    "versions": look_at_versions,
    "builds": look_at_builds,
    "shared memory": look_at_shared_memory,
    "disk": look_at_disks,
    "credentials": look_at_credentials,
}
# Name -> check that concerns only a dataset.
DATASET_CHECKS: dict[str, Callable[[DatasetPlace], Iterable[Finding]]] = {
    "jobs": look_at_jobs,
    "group size": look_at_group_size,
    "mount": look_at_mount,
    "bucket": look_at_bucket,
}
_SECONDS = 8.0


def examine(
    dataset: str | None,
    *,
    seconds: float = _SECONDS,
    machine_checks: Mapping[str, Look] = MACHINE_CHECKS,
) -> list[Finding]:
    """Runs all checks, and returns their findings in order.

    Args:
        dataset: A dataset's directory; None to check the machine alone.
        seconds: Time limit of all of them. A check without an answer becomes a warning.
        machine_checks: The checks of the machine, by name.

    Raises:
        InputError: The dataset is not a path.
    """
    place = None if dataset is None else DatasetPlace(dataset)
    looks: dict[str, Callable[[], Iterable[Finding]]] = {
        name: functools.partial(look, place) for name, look in machine_checks.items()
    }
    if place is not None:
        for name, look in DATASET_CHECKS.items():
            looks[name] = functools.partial(look, place)
    running = {
        name: daemon_call(
            functools.partial(_all, look), thread_name=f"gristmill-doctor-{name}"
        )
        for name, look in looks.items()
    }
    deadline = time.monotonic() + seconds
    found: list[Finding] = []
    for name, call in running.items():
        try:
            here = call.result(max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            here = [_late()]
        except GristmillError as e:
            here = [_failed(e)]
        found += [dataclasses.replace(each, check=name) for each in here]
    return found


def _all(look: Callable[[], Iterable[Finding]]) -> list[Finding]:
    return list(look())


def _late() -> Finding:
    return warning(
        "not checked: no answer within seconds",
        why="a disk, a mount or a server that answers late makes the work slow",
        cure="check the network and the mounts (`findmnt`), then run the same command "
        "again",
    )


def _failed(failure: GristmillError) -> Finding:
    facts = failure.facts()
    where = f"{facts['where']}: " if "where" in facts else ""
    return error(
        where + failure.summary,
        why="commands that need it fail with this error",
        cure=facts.get("cure", "run the same command again"),
    )
