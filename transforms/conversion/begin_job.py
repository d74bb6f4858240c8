"""Beginning a conversion: its shards are planned, and its output is taken."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.arrayrecord.writing.versions import (
    check_versions,
    settled,
    with_versions,
)
from gristmill.dataset.commit.exchange import finish_exchange
from gristmill.dataset.commit.leftovers import delete_leftovers
from gristmill.dataset.commit.ownership import (
    check_dataset_name,
    check_inputs_stay,
    check_no_strangers,
    check_removal,
)
from gristmill.dataset.commit.split_check import check_split
from gristmill.dataset.commit.split_files import (
    committed_shards,
    is_readable,
    remove_split,
)
from gristmill.dataset.errors import JobChangedError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.read_manifest import (
    read_replaced_manifest,
    read_versioned_manifest,
)
from gristmill.dataset.metadata.splits import Split
from gristmill.transforms.conversion.begin_aside import take_aside
from gristmill.transforms.conversion.convert_shard import finished_shard
from gristmill.transforms.conversion.count_records import count_files, needs_count
from gristmill.transforms.conversion.job_inputs import (
    check_shards_apart,
    list_inputs,
)
from gristmill.transforms.conversion.same_inputs import (
    CompareShards,
    check_same_inputs,
)
from gristmill.transforms.conversion.try_function import TRIED_FILES, try_function
from gristmill.transforms.jobs.appended_job import check_features
from gristmill.transforms.jobs.conversion_job import ConversionJob, ShardNames
from gristmill.transforms.jobs.empty_claim import (
    delete_shards,
    replaced_note,
    replaced_shards,
)
from gristmill.transforms.jobs.prepared_job import PreparedJob, described_shards
from gristmill.transforms.jobs.settle_writer import begun_job
from gristmill.transforms.named_function import code_digest
from gristmill.transforms.planning.record_plan import RecordCounts, plan_by_records
from gristmill.transforms.planning.shard_plan import plan_by_bytes
from gristmill.transforms.sources.formats import FORMATS
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.shards.source_split import with_lineage
from gristmill.transforms.tokens.packed_documents import with_tokenizer

CountFiles = Callable[[ConversionJob, InputFiles], RecordCounts]
TryMap = Callable[[ConversionJob, Sequence[InputFile]], None]
Overwrite = bool | Literal["changed"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TakenOutput:
    """A job that owns its output, and whether it has been done already.

    Attributes:
        prepared: The job.
        committed: The dataset, if it holds the finished split; nothing is to do then.
        notes: Remarks for the user.
        aside: Whether the job is done in a directory of its own in the output, and
            replaces a split when it is committed.
    """

    prepared: PreparedJob
    committed: Manifest | None
    notes: tuple[str, ...] = ()
    aside: bool = False


def plan_job(
    job: ConversionJob,
    files: InputFiles,
    counts: RecordCounts | None = None,
    *,
    overwrite: Overwrite = False,
) -> PreparedJob:
    """Plans the shards of a job.

    Args:
        job: The job.
        files: Its input files.
        counts: Of their records, for a plan by records.
        overwrite: Whether it starts over, whatever was begun before.
    """
    if counts is not None:
        plan = plan_by_records(
            job.plan.value or 1, files.sizes, files.splittable, counts
        )
    else:
        plan = plan_by_bytes(
            job.plan,
            files.sizes,
            files.splittable,
            cut_files=FORMATS[files.spec.format].cut,
        )
    if job.map is not None:
        job = dataclasses.replace(job, map_code_digest=code_digest(job.map))
    if job.pack is not None:
        job = dataclasses.replace(job, pack=with_tokenizer(job.pack, files.spec))
    files = with_lineage(files)
    prepared = _with_writer(
        PreparedJob(job=job, files=files, plan=plan), with_versions(job.writer)
    )
    if overwrite is not True and (begun := begun_job(job)) is not None:
        same = _with_writer(prepared, settled(job.writer, begun.writer))
        prepared = same if same.fingerprint == begun.fingerprint else prepared
    prepared.check_shard_names()
    check_shards_apart(prepared)
    return prepared


def _with_writer(prepared: PreparedJob, writer: WriterOptions) -> PreparedJob:
    job = dataclasses.replace(prepared.job, writer=writer)
    return dataclasses.replace(prepared, job=job)


def begin_job(
    job: ConversionJob,
    *,
    overwrite: bool = False,
    exchanged: Collection[str] = (),
    count_files: CountFiles = count_files,
    compare_shards: CompareShards | None = None,
    try_map: TryMap = try_function,
) -> TakenOutput:
    """Lists the inputs of a job, plans its shards, and takes possession of its output.

    Args:
        job: The job.
        overwrite: Whether to replace the split's existing files.
        exchanged: As for `take_output`.
        count_files: Counts the records of all files, for a plan by records; by
            default one after the other.
        compare_shards: As for `take_output`.
        try_map: Tries the job's function and tokenizer, by default in this process.

    Raises:
        InputError: Inputs or options cannot be used.
        UserFunctionError: The job's function fails at the first records.
        JobChangedError: The output belongs to another job.
    """
    exchanged = {*exchanged, *finish_exchange(job.output, or_give_up=bool(overwrite))}
    files = list_inputs(job)
    if job.map is not None or job.pack is not None:
        try_map(job, files.first(TRIED_FILES))
    counts = count_files(job, files) if needs_count(job) else None
    return take_output(
        plan_job(job, files, counts, overwrite=overwrite),
        overwrite=overwrite,
        exchanged=exchanged,
        compare_shards=compare_shards,
    )


def take_output(
    prepared: PreparedJob,
    *,
    overwrite: Overwrite = False,
    exchanged: Collection[str] = (),
    compare_shards: CompareShards | None = None,
) -> TakenOutput:
    """Compares a prepared job with what its output holds, and describes it there.

    Args:
        prepared: The job.
        overwrite: Whether to replace the split's existing files; `changed` to do so
            only if an earlier job with the same kind of names wrote all of them.
        exchanged: Splits that `finish_exchange` has just finished: they are not
            replaced by the very job that made them.
        compare_shards: Compares finished shards with inputs that may have changed; see
            `check_same_inputs`.

    Raises:
        InputError: The output holds files of unknown origin, or the job's own inputs.
        JobChangedError: The output belongs to another job.
    """
    job = prepared.job
    where = job.output, job.name, job.split
    exchanged = {*exchanged, *finish_exchange(job.output, or_give_up=bool(overwrite))}
    if overwrite == "changed":
        try:
            return take_output(prepared, compare_shards=compare_shards)
        except JobChangedError:
            old = PreparedJob.load(*where)
            if old is None or _kind(old.job.names) != _kind(job.names):
                raise
            _check_no_strangers(prepared, old=old)
            anew = dataclasses.replace(job.writer, versions="")
            prepared = _with_writer(prepared, with_versions(anew))
            return take_output(prepared, overwrite=True, compare_shards=compare_shards)
    manifest, version = _read_manifest(prepared, overwrite=overwrite)
    there = None if manifest is None else manifest.editions.get(job.split)
    if there is not None and job.split in exchanged and _is_done(prepared, there):
        delete_leftovers(job.output, job.name, [job.split])
        return TakenOutput(prepared=prepared, committed=manifest)
    shards = set(map(prepared.shard_path, range(prepared.plan.shards)))
    if manifest is not None and layout.parse_edition_key(job.split)[1] > 1:
        if there is None:
            check_features(prepared, manifest)
        else:
            # What was appended is not replaced.
            overwrite = False
            _check_own_edition(prepared, there)
    if overwrite:
        shards |= described_shards(*where)
        shards |= committed_shards(job.output, manifest, job.split)
    check_inputs_stay(*where, inputs=prepared.files.paths, shards=shards)
    if overwrite:
        check_removal(*where, manifest=manifest, shards=shards)
        if is_readable(*where, manifest=manifest, shards=shards):
            own = take_aside(prepared, replaced=there, compare_shards=compare_shards)
            return TakenOutput(prepared=own, committed=None, aside=True)
        manifest = remove_split(
            *where, manifest=manifest, version=version, shards=shards
        )
    found, seen = PreparedJob.load_versioned(*where, own=prepared)
    stale: set[str] = set()
    notes: tuple[str, ...] = ()
    if seen.job and (found is None or found.fingerprint != prepared.fingerprint):
        stale = replaced_shards(prepared, manifest, found)
        check_inputs_stay(*where, inputs=prepared.files.paths, shards=stale)
        notes = (replaced_note(prepared, found),)
    noted = (
        not notes
        and found is not None
        and check_same_inputs(prepared, found, compare_shards=compare_shards)
    )
    if there is not None:
        # The description can be of another job than the committed split.
        if there.source.get("job") != prepared.fingerprint:
            raise JobChangedError(
                "the output holds this split already, from another source",
                where=f"{job.output}, split {job.split}",
                cure="choose another --split or output, or replace it with --overwrite",
            )
        if not notes and not check_split(job.output, there):
            delete_leftovers(job.output, job.name, [job.split])
            if noted:
                prepared.store(replaces=seen)
            return TakenOutput(prepared=prepared, committed=manifest)
        # What is missing by now is made again, and committed again.
    elif notes or found is None:
        _check_no_strangers(prepared, written=stale)
    check_versions(job.writer, where=f"{job.output}, split {job.split}")
    prepared.store(replaces=seen)
    delete_shards(job.output, stale)
    return TakenOutput(prepared=prepared, committed=None, notes=notes)


def _check_own_edition(prepared: PreparedJob, edition: Split) -> None:
    if edition.source.get("job") != prepared.fingerprint:
        raise JobChangedError(
            "another append has made this edition of the split, or this one with "
            "another version of its function or writer",
            where=f"{prepared.job.output}, split {prepared.job.split}",
            expected=f"job {prepared.fingerprint}",
            got=f"job {edition.source.get('job')}",
            cure="run the same command again: it appends the next edition, if its "
            "inputs are not in the dataset yet",
        )


def _is_done(prepared: PreparedJob, split: Split) -> bool:
    own = split.source.get("job") == prepared.fingerprint
    return own and not check_split(prepared.job.output, split)


def _read_manifest(
    prepared: PreparedJob, *, overwrite: bool
) -> tuple[Manifest | None, str]:
    job = prepared.job
    read = read_replaced_manifest if overwrite else read_versioned_manifest
    manifest, version = read(job.output)
    if manifest is not None:
        check_dataset_name(job.output, manifest, job.name)
    return manifest, version


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
