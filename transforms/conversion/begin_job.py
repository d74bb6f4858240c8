"""Beginning a conversion: its shards are planned, and its output is taken."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Literal

from gristmill.dataset.arrayrecord.chunk_encoder import (
    check_versions,
    settled,
    with_versions,
)
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import (
    InvalidDatasetError,
    JobChangedError,
    some_of,
)
from gristmill.dataset.commit.claim import Claim, again_if_changed
from gristmill.dataset.commit.editions import changed_split
from gristmill.dataset.commit.garbage import garbage_editions, tidy_split
from gristmill.dataset.commit.listings import check_split
from gristmill.dataset.commit.ownership import (
    check_inputs_stay,
    check_no_strangers,
    committed_shards,
)
from gristmill.dataset.formats.tfrecord.frame_layout import FRAME_OVERHEAD_BYTES
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import inputs_path, job_path
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.lookup import version_of
from gristmill.transforms.chat.template_file import with_template
from gristmill.transforms.conversion.convert_shard import finished_shard
from gristmill.transforms.conversion.job_inputs import (
    CompareShards,
    begun_job,
    check_same_inputs,
    check_shards_apart,
    current_job,
    list_inputs,
)
from gristmill.transforms.conversion.shard_output import TRIED_FILES, try_function
from gristmill.transforms.functions.user_functions import code_digest
from gristmill.transforms.jobs.appended_job import check_features
from gristmill.transforms.jobs.conversion_job import ConversionJob, ShardNames
from gristmill.transforms.jobs.empty_claim import replaced_note, replaced_shards
from gristmill.transforms.jobs.prepared_job import (
    DescriptionVersions,
    PreparedJob,
    described_shards,
)
from gristmill.transforms.planning.plan_by_bytes import plan_by_bytes
from gristmill.transforms.planning.shard_plan import ShardPlan
from gristmill.transforms.sources.find_inputs import LookAt
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.input_formats import look_at
from gristmill.transforms.sources.shards.source_split import with_sources
from gristmill.transforms.tokens.tokenizers import find_tokenizer

_log = logging.getLogger(__name__)

_MOST_NOTES = 10

TryMap = Callable[[ConversionJob, Sequence[InputFile]], None]
Overwrite = bool | Literal["changed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TakenOutput:
    """A job that owns its output, and whether it has been done already.

    Attributes:
        prepared: The job, for the edition that it makes.
        committed: The dataset, if it holds the finished split; nothing is to do then.
        notes: Remarks for the user.
        replaces: Whether the edition replaces the split when it is committed.
    """

    prepared: PreparedJob
    committed: Manifest | None
    notes: tuple[str, ...] = ()
    replaces: bool = False


def plan_job(
    job: ConversionJob, files: InputFiles, *, overwrite: Overwrite = False
) -> PreparedJob:
    """Plans the shards of a job.

    Args:
        job: The job.
        files: Its input files.
        overwrite: Whether it starts over, whatever was begun before.
    """
    plan = plan_shards(job, files)
    if job.map is not None:
        job = dataclasses.replace(job, map_code_digest=code_digest(job.map))
    if job.pack is not None:
        pack = dataclasses.replace(job.pack, found=find_tokenizer(job.pack))
        if pack.chat is not None:
            begun = None if overwrite is True else begun_job(job)
            pack = with_template(pack, date="" if begun is None else begun.date)
        job = dataclasses.replace(job, pack=pack)
    files = with_sources(files)
    prepared = _with_writer(
        PreparedJob(job=job, files=files, plan=plan), with_versions(job.writer)
    )
    if overwrite is not True and (begun := begun_job(job)) is not None:
        same = _with_writer(prepared, settled(job.writer, begun.writer))
        prepared = same if same.fingerprint == begun.fingerprint else prepared
    prepared.check_shard_names()
    check_shards_apart(prepared)
    return prepared


def plan_shards(job: ConversionJob, files: InputFiles) -> ShardPlan:
    """Returns the cuts between the shards of a job; arguments are as for `plan_job`."""
    plan = plan_by_bytes(job.plan, files.sizes, files.splittable)
    if files.spec.format == "parquet":
        plan = _with_shared_groups(job, files, plan)
    return plan


def _with_shared_groups(
    job: ConversionJob, files: InputFiles, plan: ShardPlan
) -> ShardPlan:
    from gristmill.transforms.sources.parquet.shared_groups import shared_groups

    joined, notes = shared_groups(files, plan)
    for note in notes[:_MOST_NOTES]:
        _log.warning("%s: %s", job.output, note)
    return dataclasses.replace(plan, joined=joined) if joined.any() else plan


def _with_writer(prepared: PreparedJob, writer: WriterOptions) -> PreparedJob:
    job = dataclasses.replace(prepared.job, writer=writer)
    return dataclasses.replace(prepared, job=job)


def begin_job(
    job: ConversionJob,
    *,
    overwrite: bool = False,
    look: LookAt = look_at,
    compare_shards: CompareShards | None = None,
    try_map: TryMap = try_function,
) -> TakenOutput:
    """Lists the inputs of a job, plans its shards, and takes possession of its output.

    Args:
        job: The job.
        overwrite: Whether to replace the split's existing files.
        look: Looks into the input files, by default in this process.
        compare_shards: As in `take_output`.
        try_map: Tries the job's function and tokenizer, by default in this process.

    Raises:
        InputError: Inputs or options cannot be used.
        UserFunctionError: The job's function fails at the first records.
        JobChangedError: The output belongs to another job.
    """
    files = list_inputs(job, look=look, anew=overwrite)
    if job.map is not None or job.pack is not None:
        try_map(job, files.first(TRIED_FILES))
    return take_output(
        plan_job(job, files, overwrite=overwrite),
        overwrite=overwrite,
        compare_shards=compare_shards,
    )


def take_output(
    prepared: PreparedJob,
    *,
    overwrite: Overwrite = False,
    compare_shards: CompareShards | None = None,
) -> TakenOutput:
    """Compares a prepared job with what its output holds, and describes it there.

    Args:
        prepared: The job.
        overwrite: Whether to replace the split's existing files; `changed` to do so
            only if an earlier job with the same kind of names wrote all of them.
        compare_shards: Compares finished shards with inputs that may have changed; see
            `check_same_inputs`.

    Raises:
        InputError: The output holds files of unknown origin, or the job's own inputs.
        JobChangedError: The output belongs to another job.
    """
    take = functools.partial(_take, compare_shards=compare_shards)
    if overwrite == "changed":
        try:
            return take(prepared, overwrite=False)
        except JobChangedError:
            job = current_job(prepared.job)
            old = PreparedJob.load(job.output, job.name, job.split)
            if old is None or _kind(old.job.names) != _kind(job.names):
                raise
            _check_no_strangers(prepared, old=old)
            anew = dataclasses.replace(job.writer, versions="")
            prepared = _with_writer(prepared, with_versions(anew))
    if not overwrite:
        return take(prepared, overwrite=False)
    return again_if_changed(lambda: take(prepared, overwrite=True))


def _take(
    prepared: PreparedJob, *, overwrite: bool, compare_shards: CompareShards | None
) -> TakenOutput:
    job = prepared.job
    name, appended = layout.parse_edition_key(job.split)
    claim = Claim.next(job.output, job.name, name, overwrite=overwrite)
    split, manifest = claim.there, claim.manifest
    there, key = None if split is None else split.parts[0], job.split
    if appended > 1:
        # What was appended is not replaced.
        there = None if split is None else _appended(split, appended)
        if manifest is not None and there is None:
            check_features(prepared, manifest)
    elif overwrite and not _is_committed(prepared, split):
        there, key = None, claim.key
    elif there is not None:
        key = layout.edition_key(name, there.edition)
    anew = overwrite and there is None
    prepared = prepared.of_edition(key)
    where = job.output, job.name, key
    shards = set(map(prepared.shard_path, range(prepared.plan.shards)))
    if anew:
        shards |= described_shards(*where)
    gone = shards
    if anew and appended == 1:
        gone = shards | committed_shards(job.output, manifest, name)
        where = job.output, job.name, name
        claim.check_replaceable(shards=gone)
        claim.check_space(
            int(prepared.files.sizes.sum()),
            job.options(),
            alike=("writer", "map", "map_code_digest"),
            input_before=_frames_bytes,
        )
    check_inputs_stay(*where, inputs=prepared.files.paths, shards=gone)
    found, seen = _described(prepared, overwrite=anew)
    own = found is not None and found.fingerprint == prepared.fingerprint
    if there is not None and there.source.get("job") != prepared.fingerprint:
        same = found is not None and there.source.get("job") == found.fingerprint
        if same and appended == 1:
            replaced_shards(prepared, manifest, found)  # Raises with what differs.
        raise _not_own(prepared, there, appended=appended > 1)
    noted = False
    if found is not None and own:
        try:
            noted = check_same_inputs(prepared, found, compare_shards=compare_shards)
        except JobChangedError:
            if not anew:
                raise
            own = False
    # What is missing by now is made again, and committed again.
    if there is not None and manifest and not check_split(job.output, there):
        tidy_split(job.output, manifest, name)
        if noted:
            prepared.store(replaces=seen)
        return TakenOutput(prepared=prepared, committed=manifest)
    stale: set[str] = set()
    notes: tuple[str, ...] = ()
    if anew:
        if split is not None and _lost_records(prepared, split):
            notes = (
                f"split {name} gets back the records that were removed from it: the "
                "inputs hold them",
            )
        names = {
            name for part in (split.parts if split else ()) for name in part.columns
        }
        if names:
            notes += (
                f"the columns {some_of(sorted(names))} of split {name} go with the "
                "records that are replaced",
            )
        # What was begun of a split that is not there, or appended, is begun again.
        own = own and appended == 1 and claim.edition > 1
        stale = set() if own else shards
    elif seen.job and not own and there is None:
        stale = replaced_shards(prepared, manifest, found)
        check_inputs_stay(*where, inputs=prepared.files.paths, shards=stale)
        notes = (replaced_note(prepared, found),)
    claim = dataclasses.replace(claim, edition=layout.parse_edition_key(key)[1])
    if there is None and not own and not anew:
        cure = "choose another --split or output, or replace the split with --overwrite"
        claim.check_no_parts(cure=cure)
        _check_no_strangers(prepared, written=stale)
    check_versions(job.writer, where=f"{job.output}, split {job.split}")
    described = {
        layout.job_path(job.name, key): seen.job,
        layout.inputs_path(job.name, key): seen.inputs,
    }
    if own or there is not None or not (seen.job or anew):
        prepared.store(replaces=seen)
        if there is None:
            claim.settle(described, own=own)
    else:
        claim.take(
            lambda: prepared.store_job(replaces=seen.job),
            described=described,
            shards=stale,
        )
        prepared.store_inputs(replaces=seen.inputs)
    fresh = there is None and not own and not stale
    return TakenOutput(
        prepared=dataclasses.replace(prepared, fresh=fresh),
        committed=None,
        notes=notes,
        replaces=anew and appended == 1 and claim.edition > 1,
    )


def _frames_bytes(split: Split) -> int:
    """Returns the size of the TFRecord files that hold what a split was made of.

    Compressed inputs hold more than their size: it is the least that a split takes.
    """
    records: int = split.source["records"]
    return int(split.source["raw_bytes"]) + FRAME_OVERHEAD_BYTES * records


def _appended(split: Split, edition: int) -> Split | None:
    """Returns an edition, None if it is the next; raises if it is replaced by now."""
    if edition > split.last_edition:
        return None
    if edition not in split.numbers:
        raise changed_split(split, edition)
    return split.known[edition]


def _lost_records(prepared: PreparedJob, split: Split) -> bool:
    """Returns whether records were removed that the inputs of a job hold."""
    return any(_has_lost(prepared, part) for part in split.parts)


def _has_lost(prepared: PreparedJob, edition: Split) -> bool:
    digest = edition.source.get("file_list_digest")
    return edition.removed is not None and digest == prepared.files.digest


def _is_committed(prepared: PreparedJob, split: Split | None) -> bool:
    """Returns whether a run of this job was killed after it replaced a split.

    What it replaced is left to delete then.
    """
    job = prepared.job
    if (
        split is None
        or split.editions
        or split.source.get("job") != prepared.fingerprint
    ):
        return False
    manifest = Manifest(name=job.name, splits={job.split: split})
    left = garbage_editions(job.output, manifest, job.split).editions
    return bool(left) and not check_split(job.output, split)


def _described(
    prepared: PreparedJob, *, overwrite: bool
) -> tuple[PreparedJob | None, DescriptionVersions]:
    """Reads the description of the edition; one that cannot be read can be replaced."""
    job = prepared.job
    where = job.output, job.name, job.split
    try:
        return PreparedJob.load_versioned(*where, own=prepared)
    except InvalidDatasetError:
        if not overwrite:
            raise
        paths = (path(job.name, job.split) for path in (job_path, inputs_path))
        found = (version_of(layout.join(job.output, path)) for path in paths)
        return None, DescriptionVersions(*found)


def _not_own(
    prepared: PreparedJob, edition: Split, *, appended: bool
) -> JobChangedError:
    """Returns the error for an edition that was not made by this job."""
    job = prepared.job
    if _has_lost(prepared, edition) and edition.source["options"] == job.options():
        return JobChangedError(
            "records were removed from the split since it was converted",
            where=f"{job.output}, split {layout.parse_edition_key(job.split)[0]}",
            got=f"edition {edition.edition:,}, made by gristmill remove",
            cure="nothing is left to do; to have the removed records back, go to an "
            "edition that gristmill inspect shows with gristmill rollback, or convert "
            "with --overwrite",
        )
    if appended:
        return JobChangedError(
            "another append has made this edition of the split, or this one with "
            "another version of its function or writer",
            where=f"{job.output}, split {job.split}",
            expected=f"job {prepared.fingerprint}",
            got=f"job {edition.source.get('job')}",
            cure="run the same command again: it appends the next edition, if its "
            "inputs are not in the dataset yet",
        )
    return JobChangedError(
        "the output holds this split already, from another source",
        where=f"{job.output}, split {layout.parse_edition_key(job.split)[0]}",
        # Files that were indexed are not ours to delete.
        cure="choose another --split or output"
        if "indexed" in edition.source
        else "choose another --split or output, or replace it with --overwrite",
    )


def log_plan(taken: TakenOutput) -> None:
    """Logs how many shards a job makes, or that it has been done already."""
    prepared = taken.prepared
    where = prepared.job.output, prepared.job.split
    if taken.committed is not None:
        _log.info("%s: split %s is committed already; nothing to do", *where)
        return
    _log.info(
        "%s: split %s: %d files become %d shards, job %s",
        *(*where, len(prepared.files), prepared.plan.shards, prepared.fingerprint),
    )


def _kind(names: ShardNames) -> tuple[str, str]:
    return names.kind, names.prefix


def _check_no_strangers(
    prepared: PreparedJob,
    *,
    old: PreparedJob | None = None,
    written: Iterable[str] = (),
) -> None:
    """Refuses to write among shards that no job of ours is known to have written.

    Args:
        prepared: The job.
        old: One whose shards are to go, as far as it wrote what has their names.
        written: Shards that are to go in any case.
    """
    job = prepared.job
    shards = {prepared.shard_path(shard) for shard in range(prepared.plan.shards)}
    written = set(written)
    if old is not None:
        numbers = range(old.plan.shards)
        shards.update(map(old.shard_path, numbers))
        # Waiting, not computing, as in `find_inputs`.
        with concurrent.futures.ThreadPoolExecutor(64) as pool:
            reports = pool.map(functools.partial(finished_shard, old), numbers)
            written |= {report.path for report in reports if report is not None}
    check_no_strangers(job.output, job.name, job.split, shards=shards, written=written)
