"""The end of a conversion: its shards are checked, and its splits committed."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import time
from collections.abc import (
    Callable,
    Collection,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import DataLossError
from gristmill.dataset.commit.commit import (
    ExtraFiles,
    check_files,
    commit_dataset,
    write_table,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import TFDS_INFO_JSON
from gristmill.dataset.metadata.manifest import Manifest, read_table
from gristmill.dataset.metadata.report_columns import ReportCollector
from gristmill.dataset.metadata.shard_report import ShardReport, SourceSpan
from gristmill.dataset.metadata.splits import Split
from gristmill.transforms.conversion.carried_columns import carried_columns
from gristmill.transforms.conversion.convert_shard import check_counts, convert_shard
from gristmill.transforms.conversion.shard_tasks import (
    ShardResult,
    ShardTask,
    make_shards,
    shard_tasks,
)
from gristmill.transforms.conversion.span_check import spans_join
from gristmill.transforms.directories.tfds_directory import (
    TfdsDirectory,
    check_records_read,
    read_tfds_directory,
    tfds_metadata,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.job import Begun
from gristmill.transforms.jobs.prepared_job import PreparedJob, check_current
from gristmill.transforms.sources.quarantine import nothing_read, too_much_damage
from gristmill.transforms.sources.record_source import source_of
from gristmill.transforms.sources.shards.source_split import SourceSplit
from gristmill.transforms.tokens.describe_rows import described_rows, row_features


class WithSpans(Protocol):
    """What tells where the records of a shard came from."""

    @property
    def spans(self) -> Sequence[SourceSpan]:
        """These places, in order."""


Read = TypeVar("Read", bound=WithSpans)


class _Reached(NamedTuple):
    """How far the spans of one file have come.

    Attributes:
        stop_bytes: Where the last of them stopped.
        whole: Whether that was the end of the file, for compressed files.
    """

    stop_bytes: int = 0
    whole: bool = False


def close_gaps(
    prepared: PreparedJob,
    reports: Iterable[Read],
    *,
    convert: Callable[..., Read],
) -> list[Read]:
    """Makes shards again whose ranges were entered at a wrong offset.

    A record whose payload holds TFRecord frames can mislead the search for the first
    frame of a range. The end of the range before it is certain, by induction from
    offset 0. So these shards are made again in order, one after the other, each from
    where the range before it ends. One process takes as long as their conversion did.
    It happens only if such a record lies across a cut between two shards, or if damage
    begins within a few bytes of a cut.

    Args:
        prepared: The job.
        reports: Reports of all shards, in order.
        convert: Makes one shard.

    Returns:
        The reports of shards that were made again.

    Raises:
        DataLossError: A gap stays, or a file was not read to its end.
    """
    reached: dict[int, _Reached] = {}
    again = []
    for shard, report in enumerate(reports):
        gap = _follow(reached, report)
        # Only a shard's first range can begin within a file.
        if gap is not None and gap is report.spans[0]:
            before = reached.get(gap.file_index, _Reached())
            made = convert(prepared, shard, first_place=before.stop_bytes)
            again.append(made)
            gap = _follow(reached, made)
        if gap is not None:
            before = reached.get(gap.file_index, _Reached())
            raise DataLossError(
                "two ranges of an input file do not meet",
                where=f"{prepared.files.paths[gap.file_index]}, shard "
                f"{prepared.shard_path(shard)}",
                expected=f"a range that begins at "
                f"{source_of(prepared.files.spec).place_text(before.stop_bytes)}",
                got=f"{gap}",
                cure="run the conversion again; if it repeats, please report it",
            )
    _check_ends(prepared, reached)
    return again


def _follow(reached: dict[int, _Reached], report: WithSpans) -> SourceSpan | None:
    """Follows the spans of one shard; returns the first that does not fit."""
    for span in report.spans:
        before = reached.get(span.file_index, _Reached())
        if span.start_bytes is None or span.stop_bytes is None:
            # No frame begins here: right if the frame before reaches over it.
            if not before.stop_bytes >= span.end_bytes >= 0:
                return span
            continue
        if span.start_bytes != before.stop_bytes:
            return span
        reached[span.file_index] = _Reached(span.stop_bytes, span.whole)
    return None


def _check_ends(prepared: PreparedJob, reached: Mapping[int, _Reached]) -> None:
    files = prepared.files
    sized = files.sized
    for file, size in enumerate(files.sizes.tolist()):
        stop, whole = reached.get(file, _Reached())
        if not (stop == size if sized[file] else whole or not size):
            raise DataLossError(
                "an input file was not read to its end",
                where=files.paths[file],
                expected=f"{size:,} bytes",
                got=f"{source_of(files.spec).place_text(stop)}",
                cure="make sure that no process writes to it, then convert again",
            )


def finish_split(
    prepared: PreparedJob, collected: ReportCollector
) -> tuple[Split, int]:
    """Checks all shards of a split and writes their table.

    Returns:
        The split, and how many shards were made again.

    Raises:
        DataLossError: Shards are missing, or hold something else than was read.
        CorruptInputError: There was more damage than allowed.
        JobChangedError: Another conversion has taken over the output.
        StorageChangedError: It has written the table meanwhile.
    """
    job = prepared.job
    again: list[ShardReport] = []
    reports = collected.reports()
    shards = range(prepared.plan.shards)
    if len(reports) != len(shards):
        missing = np.setdiff1d(shards, reports.shard_indices)
        raise DataLossError(
            f"{len(missing):,} of {len(shards):,} shards were not made",
            where=f"{job.output}, " + prepared.shard_path(int(missing[0])),
            cure="run the same command again: finished shards are kept",
        )
    if not spans_join(reports.table, prepared.files):
        again = close_gaps(prepared, reports, convert=convert_shard)
        for made in again:
            collected.add(made)
        reports = collected.reports()
    mapped = job.map is not None
    # Where records are selected, each shard was compared when it was made.
    selects = bool(job.records.select)
    for row in reports.miscounted(mapped=mapped or selects):
        check_counts(reports[row], mapped=mapped or selects)
    table = reports.table
    regions = table.total("quarantined_regions")
    allowed = job.max_corrupt if job.on_corrupt == "quarantine" else 0
    if regions > allowed:
        # Of several shards together, or of an earlier run that allowed more.
        raise too_much_damage(
            regions,
            allowed,
            where=layout.join(job.output, layout.QUARANTINE_DIR),
        )
    made_by, read = source_of(prepared.files.spec), reports.read
    if regions and not read.records:
        raise nothing_read(layout.join(job.output, layout.QUARANTINE_DIR))
    if (source := SourceSplit.of_spec(prepared.files.spec)) is not None:
        source.check_read(read, quarantined_regions=regions)
    changed: dict[str, Any] = {}
    if mapped:
        changed = {"changed_records": reports.changed_records}
    if job.records.nulls == "skip":
        changed["null_rows"] = reports.null_rows
    if selects:
        changed["selected"] = job.records.select
    split = write_table(
        job.output,
        job.name,
        job.split,
        table,
        check_current=functools.partial(check_current, prepared),
        writer_options=job.writer.described,
        source={
            "job": prepared.fingerprint,
            "content": prepared.content,
            "inputs": list(job.inputs),
            "files": len(prepared.files),
            "file_bytes": int(prepared.files.sizes.sum()),
            "file_list_digest": prepared.files.digest,
            "file_list": layout.inputs_path(job.name, job.split),
            "records": read.records,
            "raw_bytes": read.raw_bytes,
            "records_digest": read.hex,
            **changed,
            **made_by.described(),
            "options": job.options(),
        },
    )
    split = dataclasses.replace(split, columns=carried_columns(prepared, table))
    if job.pack is not None and (counts := table.packed_total()) is not None:
        split = dataclasses.replace(
            split,
            packed=described_rows(job.pack, counts),
            features=row_features(job.pack, counts),
        )
    elif not (mapped and (reports.changed_records or split.added_records)):
        # What the user's function makes may hold anything else.
        split = dataclasses.replace(split, features=made_by.features())
    return split, len(again)


_log = logging.getLogger(__name__)


class ConversionResult(NamedTuple):
    """The result of a conversion.

    Attributes:
        manifest: The committed dataset.
        repaired_shards: Shards made again because their range began elsewhere.
        committed_before: Splits for which there was nothing to do.
    """

    manifest: Manifest
    repaired_shards: int
    committed_before: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CommitOptions:
    """What a conversion commits besides its shards, and what becomes of old ones.

    Attributes:
        features: The schema, where known.
        tfds_directory: The TFDS directory that the jobs come from, if any: its
            metadata is compared with what was read, and written for the output.
        keep_replaced: Whether what is replaced is kept, to go back to.
        delete: As for `commit`.
    """

    features: Mapping[str, Any] | None = None
    tfds_directory: str | None = None
    keep_replaced: bool = False
    delete: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class MakeShards:
    """The job of a conversion whose shards are planned.

    Attributes:
        jobs: One for each split.
        options: What else is committed.
        prepared: Jobs that were prepared in this process.
        progress_dir: A directory of this machine for progress files, or None.
        one_at_a_time: As for `make_shard`.
    """

    jobs: Sequence[ConversionJob]
    options: CommitOptions
    prepared: Sequence[PreparedJob] = ()
    progress_dir: str | None = None
    one_at_a_time: bool = False

    def begin(self) -> Begun[ShardTask]:
        """Lists the passes over the inputs."""
        plans = [job.plan for job in self.prepared]
        return Begun(
            label="converting",
            tasks=itertools.chain.from_iterable(map(shard_tasks, self.prepared)),
            parts=sum(len(plan.pass_begins) for plan in plans),
            stored_bytes=sum(int(plan.sizes.sum()) for plan in plans),
            sources=tuple(path for job in self.jobs for path in job.inputs),
            sink=self.jobs[0].output,
        )

    @property
    def step(self) -> Callable[[ShardTask], Iterator[ShardResult]]:
        """`make_shards`: worker processes import no more for it."""
        return functools.partial(
            make_shards,
            progress_dir=self.progress_dir,
            one_at_a_time=self.one_at_a_time,
        )

    def commit(self, results: Gathered) -> ConversionResult:
        """Commits the dataset."""
        prepared = {job.job.split: job for job in self.prepared}
        return commit_shards(self.jobs, results, self.options, prepared=prepared)


def commit_shards(
    jobs: Iterable[ConversionJob],
    results: Gathered | Iterable[ShardResult],
    options: CommitOptions | None = None,
    *,
    prepared: Mapping[str, PreparedJob] | None = None,
) -> ConversionResult:
    """Commits the dataset from the results of all shards of all jobs.

    Args:
        jobs: The jobs, all of one dataset, with its directory as output.
        results: A result for every shard; None as report where a split was there.
        options: What else is committed.
        prepared: Jobs that were prepared in this process, by the edition they make.

    Raises:
        DataLossError: Shards are missing or do not hold what was read, or a split that
            was there is gone.
    """
    options = options or CommitOptions()
    jobs, features = list(jobs), options.features
    output, name = jobs[0].output, jobs[0].name
    if not isinstance(results, Gathered):
        results = Gathered.of(results)
    begun = time.monotonic()  # All shards are there by now.
    committed = results.notes["committed"].keys()
    made = {layout.parse_write_key(k)[0]: k for k in (*results.rows, *committed)}
    keys = {j.split: made.get(layout.parse_write_key(j.split)[0]) for j in jobs}
    before = tuple(split for split, key in keys.items() if key in committed)
    splits, repaired = {}, 0
    owners: dict[str, PreparedJob] = {}
    for job in jobs:
        key = keys[job.split]
        if job.split in before:
            continue
        if key is None:
            raise DataLossError(
                "no shard of a split was made",
                where=f"{job.output}, split {job.split}",
                cure="run the same command again: finished shards are kept",
            )
        own = (prepared or {}).get(key) or results.notes["task"][key].prepared
        splits[key], again = finish_split(own, results.rows[key])
        owners[key] = own
        repaired += again
    extra_files = None
    if options.tfds_directory is not None:
        source = read_tfds_directory(options.tfds_directory)
        features = source.features if features is None else features
        # A split of a dataset was compared with the dataset.
        of_dataset = {
            split
            for split, own in owners.items()
            if SourceSplit.of_spec(own.files.spec) is not None
        }
        extra_files = _tfds_files(source, output, splits, of_dataset)

    def check() -> None:
        # Hours may have passed since the first split was finished.
        for split, own in owners.items():
            current = functools.partial(check_current, own)
            check_files(output, {split: splits[split]}, check_current=current)

    manifest = commit_dataset(
        output,
        name,
        splits,
        based_on={key: own.base for key, own in owners.items()},
        replaces=[key for key, own in owners.items() if own.replaces],
        keep_replaced=options.keep_replaced,
        keeps=committed,
        features=features,
        extra_files=extra_files,
        check=check,
        delete=options.delete,
    )
    parts = [
        f"split {job.split}: {split.records:,} records in {split.shards:,} shards, "
        f"{split.file_bytes:,} bytes, {split.quarantined_regions:,} damaged regions"
        + ", committed before"
        * (job.split in before)
        for job in jobs
        if (split := manifest.find(job.split)) is not None
    ]
    _log.info(
        "%s: committed in %.1f s, %d shards made again; %s",
        *(output, time.monotonic() - begun, repaired, "; ".join(parts)),
    )
    return ConversionResult(manifest, repaired, before)


def _tfds_files(
    source: TfdsDirectory,
    output: str,
    splits: Mapping[str, Split],
    of_dataset: Collection[str],
) -> ExtraFiles:
    """Checks new splits against TFDS metadata, of which it makes the output's.

    Those in `of_dataset` need not be checked.
    """
    for key, split in splits.items():
        name, _ = layout.parse_write_key(key)
        if key not in of_dataset:
            table = read_table(output, split)
            check_records_read(source.splits[name], table, where=source.path)

    def make(manifest: Manifest) -> list[bytes]:
        tables = {
            layout.write_key(name, split.write): read_table(output, split)
            for name, split in manifest.splits.items()
            if name in source.splits and not split.editions
        }
        return list(tfds_metadata(source, name=manifest.name, tables=tables).values())

    return ExtraFiles((*source.files, TFDS_INFO_JSON), make)
