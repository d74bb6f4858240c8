"""A conversion: on processes of this machine, or on a Beam runner."""

from __future__ import annotations

import dataclasses
import functools
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.storage.directory_lock import is_in_use
from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines.anywhere import result_path_of
from gristmill.pipelines.local.pool import call_apart, default_workers, run_job
from gristmill.pipelines.local.progress import shown
from gristmill.pipelines.text.conversion import Outcome, edition_notes
from gristmill.transforms.conversion.begin import (
    PlanConversion,
    input_notes,
    plan_notes,
    split_notes,
    try_function,
)
from gristmill.transforms.conversion.commit_shards import (
    ConversionResult,
    MakeShards,
)
from gristmill.transforms.conversion.take_output import TakenOutput
from gristmill.transforms.jobs.conversion_job import (
    ConversionJob,
    PreparedJob,
    check_jobs,
)
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.tokens.load_tokenizer import is_function

_log = logging.getLogger(__name__)

_SMALL_SHARD_BYTES = 64 << 20


def convert(
    jobs: Sequence[ConversionJob],
    *,
    workers: int | None = 1,
    overwrite: bool = False,
    keep_replaced: bool = False,
    features: Mapping[str, Any] | None = None,
    tfds_directory: str | None = None,
    beam_options: Sequence[str] | None = None,
    show_progress: bool = False,
) -> Outcome:
    """Converts input files, and returns when the dataset is committed.

    Args:
        jobs: One for each split, with the same output and name.
        workers: Number of processes on this machine; None for one per core, started
            only if there is enough work.
        overwrite: Whether to replace existing shards of these splits.
        keep_replaced: Whether to keep what is replaced, for a rollback.
        features: The schema, if known.
        tfds_directory: The TFDS directory of the inputs, if any.
        beam_options: Options of the Beam pipeline, including `--runner`; None to run
            without Beam.
        show_progress: Whether to show progress on standard error.

    Raises:
        GristmillError: The conversion failed. Finished shards are kept.
    """
    started = time.monotonic()
    jobs = tuple(jobs)
    check_jobs(jobs)
    apart = (workers or default_workers()) > 1 or beam_options is not None
    plan = PlanConversion(
        jobs=jobs,
        overwrite=overwrite,
        # If worker processes call the user's function, this one does not, as it may
        # take memory or a device, or crash.
        try_map=_try_apart if apart else try_function,
    )
    with shown("preparing") if show_progress else nullcontext():
        preparations = run_job(plan, workers=workers)
    begun = list(zip(jobs, preparations, strict=True))
    todo = [p for p in preparations if p.committed is None]
    _tell(preparations, show_progress=show_progress)
    notes = [
        note
        for p in preparations
        for note in (*p.notes, *input_notes(p.prepared.job, p.prepared.files))
    ]
    manifest = preparations[0].committed
    if todo:
        left = tuple(job for job, p in begun if p.committed is None)
        work = MakeShards(
            jobs=left,
            features=features,
            tfds_directory=tfds_directory,
            keep_replaced=keep_replaced,
        ).begun_by(todo)
        prepared = [p.prepared for p in todo]
        if beam_options is None:
            threads = max(map(_shards_at_once, prepared))
            result = run_job(
                dataclasses.replace(work, one_at_a_time=threads > 1),
                workers=workers,
                threads=threads,
                apart=any(map(_calls_function, left)),
                show_progress=show_progress,
            )
        else:
            with shown(work.label) if show_progress else nullcontext():
                result = _run_beam(work, prepared[0], beam_options)
        manifest = result.manifest
        for one in prepared:
            notes += edition_notes(manifest, one.job.split, one.write.id)
    assert manifest is not None  # Nothing was to do, or it is done.
    made = {_made_key(manifest, p.prepared): p for p in preparations}
    return Outcome(
        output=jobs[0].output,
        manifest=manifest,
        splits=tuple(made),
        committed_before=tuple(key for key, p in made.items() if p.committed),
        notes=tuple(notes),
        seconds=time.monotonic() - started,
    )


def _tell(preparations: Sequence[TakenOutput], *, show_progress: bool) -> None:
    """Logs and prints notes on a conversion before it starts."""
    todo = [p.prepared for p in preparations if p.committed is None]
    notes = [note for job in todo for note in plan_notes(job)]
    notes += [
        f"another process of this machine makes shards of split {p.write.key} in "
        f"{p.job.output} now. Both make all that is missing: end one of them"
        for p in todo
        if is_in_use(layout.temporary_dir(p.job.output, p.job.name, p.write.key))
    ]
    every = [p.prepared for p in preparations]
    if replaced := [p.job.split for p in every if p.write.replaces]:
        notes.append(
            f"split {', '.join(replaced)} stays until the new one is finished; "
            "meanwhile both need space"
        )
    for p in every:
        notes += split_notes(p.job, p.files)
    for note in notes:
        _log.info("note: %s", note, extra={"told": show_progress})
        if show_progress:
            print(f"note: {note}", file=sys.stderr)


def _made_key(manifest: Manifest, prepared: PreparedJob) -> str:
    """Returns the key of the split that a job made, or of the edition it appended."""
    if prepared.job.appends:
        for part in manifest.splits[prepared.job.split].parts:
            if part.source.get("job") == prepared.write.id:
                return layout.write_key(prepared.job.split, part.write)
    return prepared.job.split


def _calls_function(job: ConversionJob) -> bool:
    """Returns whether a user's function is called for each record."""
    tokenizer = job.pack and job.pack.tokenizer
    return job.map is not None or bool(tokenizer and is_function(tokenizer))


def _try_apart(job: ConversionJob, files: Sequence[InputFile]) -> None:
    if _calls_function(job):
        call_apart(functools.partial(try_function, job, files))
    else:
        try_function(job, files)


def _shards_at_once(prepared: PreparedJob) -> int:
    """Returns the number of a worker's shards in progress, of which it converts one.

    With remote storage, it publishes the previous shard and opens the next one
    meanwhile. All are on its disk. Small shards hide less of the latency of storage, so
    there are more of them.
    """
    job = prepared.job
    if not any(storage_for(path).remote for path in (*job.inputs, job.output)):
        return 1
    largest_bytes = int(np.diff(prepared.plan.cut_bytes).max(initial=0))
    return 2 if largest_bytes > _SMALL_SHARD_BYTES else 3


def _run_beam(
    work: MakeShards, first: PreparedJob, beam_options: Sequence[str]
) -> ConversionResult:
    from gristmill.pipelines.beam.run_pipeline import run_pipeline
    from gristmill.transforms.beam.job_transforms import MakePlanned

    job = first.job
    path = result_path_of(job.output, job.name, first.write.key, first.write.id)
    return run_pipeline(MakePlanned(work), beam_options, result_path=path)
