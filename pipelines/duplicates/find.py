"""The search for duplicates: with processes of this machine, or on a Beam runner."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Sequence

from gristmill.dataset.storage.directory_lock import scratch_directory
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.duplicates.spooled_steps import Spool
from gristmill.pipelines.local.pool import default_workers, map_unordered, run_steps
from gristmill.transforms.conversion.make_shards import ShardTask
from gristmill.transforms.duplicates.commit_certificate import (
    DuplicatesResult,
    checked_shards,
    commit_certificate,
)
from gristmill.transforms.duplicates.digest_shards import (
    digest_tasks,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob, PreparedJob
from gristmill.transforms.jobs.duplicate_comparison import Comparison
from gristmill.transforms.jobs.job import Begun

_log = logging.getLogger(__name__)


def find_duplicates(
    prepared: PreparedJob,
    by: Comparison,
    certificate: str,
    *,
    work_dir: str,
    workers: int | None = None,
    show_progress: bool = False,
) -> DuplicatesResult:
    """Finds the exact duplicates among the records of a job, and lists them in a file.

    Memory: 300 MB a process. Disk of temporary files: 32 bytes a record.

    Args:
        prepared: The job, whose inputs are listed and cut.
        by: What is compared.
        certificate: The file.
        work_dir: A directory beside it for temporary files, which is deleted.
        workers: Number of processes; by default the number of cores.
        show_progress: Whether to show progress on standard error.

    Raises:
        CorruptInputError: An input is damaged, and that is not accepted.
        InputError: A record has no text.
        DataLossError: The inputs were not read whole, or records were lost.
        StorageError: Reading or writing failed.
    """
    tasks = {task.first_shard: task for task in digest_tasks(prepared, by)}
    processes = workers or default_workers()
    with scratch_directory() as directory:
        spool = Spool(directory)
        begun = Begun(
            label="comparing",
            noun="parts",
            tasks=tasks.values(),
            parts=len(tasks),
            stored_bytes=sum(task.stored_bytes for task in tasks.values()),
            sources=(*prepared.job.inputs, prepared.job.output),
        )
        digested = run_steps(
            spool.digest, begun, workers=workers, show_progress=show_progress
        )
        shards = [shard for some in digested for shard in some.shards]
        shards = checked_shards(prepared, shards)
        spool = spool.of(shards)
        spread = functools.partial(map_unordered, workers=processes)
        few = functools.partial(map_unordered, workers=1)
        each = spread if len(spool.runs) > 1 and spool.partitions > 1 else few
        sum(each(spool.resolve, range(spool.partitions)))
        removed = sum(each(spool.join, range(len(spool.runs))))
        found = commit_certificate(
            *(certificate, prepared, by, shards, spool.removals()),
            removed=removed,
            work_dir=work_dir,
        )
    storage_for(certificate).delete_tree(work_dir)
    _log.info("%s: %d of %d records removed", certificate, *found[3:1:-1])
    return found


def find_on_beam(
    source: ConversionJob | PreparedJob,
    by: Comparison,
    certificate: str,
    *,
    work_dir: str,
    beam_options: Sequence[str],
) -> DuplicatesResult:
    """Finds duplicates with a Beam runner; arguments are as in `find_duplicates`.

    Args:
        source: A job whose inputs the workers list; or one that is described beside its
            output.
        by: As there.
        certificate: The same.
        work_dir: The same, where the workers have access.
        beam_options: Options of the pipeline, including `--runner`.
    """
    from gristmill.pipelines.beam.run_pipeline import run_pipeline
    from gristmill.transforms.beam.find_duplicates import search_of

    searched: ConversionJob | ShardTask
    searched = ShardTask.of(source, 0) if isinstance(source, PreparedJob) else source
    key = hashlib.sha256(f"{searched}{by}{certificate}".encode()).hexdigest()[:16]
    return run_pipeline(
        search_of(searched, by, certificate, work_dir=work_dir),
        beam_options,
        result_path=f"{work_dir.rstrip('/')}-result-{key}",
    )
