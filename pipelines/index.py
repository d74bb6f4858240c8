"""Indexing of ArrayRecord files: on this machine, or on a Beam runner."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
from collections.abc import Sequence

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.local.pool import Done, run_tasks
from gristmill.pipelines.local.progress import preparing_shown
from gristmill.pipelines.options.definitions import IndexOptions
from gristmill.transforms.indexing.commit_index import commit_index
from gristmill.transforms.indexing.index_shard import IndexedShard, index_shard
from gristmill.transforms.indexing.plan_index import plan_index

_log = logging.getLogger(__name__)


def index(
    options: IndexOptions,
    *,
    workers: int | None = None,
    beam_options: Sequence[str] | None = None,
    show_progress: bool = False,
) -> tuple[Manifest, str]:
    """Makes existing ArrayRecord files a dataset, in place.

    Args:
        options: Which files, and how they are named.
        workers: Number of processes on this machine; by default its number of cores.
        beam_options: Options of the Beam pipeline, including `--runner`; None to run
            without Beam.
        show_progress: Whether to show progress on standard error; not with Beam.

    Returns:
        The dataset, and its directory.
    """
    with preparing_shown(show=show_progress):
        tasks = plan_index(
            options.files,
            name=options.name,
            split=options.split,
            overwrite=options.overwrite,
        )
    dataset = tasks.dataset
    if beam_options is not None:
        from gristmill.pipelines.beam.run_pipeline import run_pipeline
        from gristmill.transforms.beam.index_arrayrecords import IndexArrayRecords

        command = hashlib.sha256(repr(options).encode()).hexdigest()[:16]
        handed_over = layout.result_path(tasks.name, tasks[0].split, command)
        manifest = run_pipeline(
            IndexArrayRecords(**dataclasses.asdict(options)),
            beam_options,
            result_path=layout.join(dataset, handed_over),
        )
        return manifest, dataset
    made = run_tasks(
        index_shard,
        tasks,
        label="indexing",
        noun="files",
        stored_bytes=tasks.file_bytes,
        remote=storage_for(dataset).remote,
        workers=workers,
        show_progress=show_progress,
        done=_done,
    )
    gathered = Gathered()
    for indexed in made:
        gathered.add(indexed)
        records = indexed.report.read.records
        _log.info("%s: %d records indexed", indexed.report.path, records)
    manifest = commit_index(
        gathered, inputs=options.files, keep_replaced=options.keep_replaced
    )
    return manifest, dataset


def _done(indexed: IndexedShard) -> Done:
    read = indexed.report.read
    return Done(indexed.task.file_bytes, read.records, read.raw_bytes)
