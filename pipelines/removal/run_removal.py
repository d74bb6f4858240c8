"""Removing records from a dataset: on this machine, or on a Beam runner."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

from gristmill.dataset.base.errors import InputError, some_of
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.local.pool import (
    alone_seconds,
    default_workers,
    map_unordered,
)
from gristmill.pipelines.local.progress import counter_shown
from gristmill.pipelines.removal.named_records import Asked
from gristmill.transforms.removal.begin_removal import begin_removal, tasks_of
from gristmill.transforms.removal.commit_removal import (
    GatheredCuts,
    RemovalResult,
    commit_removal,
)
from gristmill.transforms.removal.cut_shard import cut_shard

_log = logging.getLogger(__name__)


def remove(
    dataset: str,
    asked: dict[str, Any],
    *,
    erase: bool = False,
    workers: int | None = None,
    beam_options: Sequence[str] | None = None,
    show_progress: bool = False,
) -> RemovalResult:
    """Removes records from a dataset, and returns when that is committed.

    Args:
        dataset: Its directory.
        asked: What to remove, as arguments of `begin_removal`.
        erase: Whether to delete the state before, with the bytes of the records.
        workers: Number of processes on this machine; by default its number of cores.
        beam_options: Options of the Beam pipeline, including `--runner`; None to run
            without Beam.
        show_progress: Whether to show progress on standard error; not with Beam.

    Raises:
        GristmillError: It failed. Finished shards are kept.
    """
    if beam_options is not None:
        return _remove_on_beam(dataset, asked, erase, beam_options)
    begun = begin_removal(dataset, **asked)
    gathered = GatheredCuts(begun)
    if begun.removal is not None:
        tasks = list(tasks_of(begun.removal))
        stored_bytes = sum(task.file_bytes for task in tasks)
        cuts = map_unordered(
            cut_shard,
            tasks,
            workers=max(1, min(workers or default_workers(), len(tasks))),
            alone_seconds=alone_seconds(
                workers, stored_bytes, remote=storage_for(dataset).remote
            ),
        )
        with counter_shown(
            "cutting", "shards", len(tasks), stored_bytes, show=show_progress
        ) as counter:
            for cut in cuts:
                gathered.add(cut)
                written = cut.report.written
                _log.info("%s: %d records left", cut.report.path, written.records)
                counter.add(cut.task.file_bytes, written.records, written.raw_bytes)
    return commit_removal(dataset, gathered, erase=erase)


def _remove_on_beam(
    dataset: str, asked: dict[str, Any], erase: bool, beam_options: Sequence[str]
) -> RemovalResult:
    from gristmill.pipelines.beam.run_pipeline import run_pipeline
    from gristmill.transforms.beam.remove_records import RemoveRecords

    begun = begin_removal(dataset, **asked)
    command = hashlib.sha256(repr(begun.removal).encode()).hexdigest()[:16]
    handed_over = layout.result_path(begun.manifest.name, begun.split, command)
    return run_pipeline(
        RemoveRecords.asked(dataset, asked, erase=erase),
        beam_options,
        result_path=layout.join(dataset, handed_over),
    )


def check_found(asked: Asked, file: str, *, allow_missing: bool) -> None:
    """Raises InputError if lines name nothing that is there, or no line does.

    Args:
        asked: What is to be removed.
        file: Where the lines are, for messages.
        allow_missing: Whether some may name nothing.
    """
    nothing = not len(asked.arguments["records"])
    if not asked.missing or (allow_missing and not nothing):
        return
    raise InputError(
        f"{len(asked.missing):,} lines name nothing that is in the split",
        where=file,
        got=some_of(asked.missing, 20),
        cure="correct these lines; nothing was removed"
        if nothing
        else "correct these lines, or remove the others with --allow-missing; nothing "
        "was removed yet",
    )
