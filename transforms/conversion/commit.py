"""The commit: proves that nothing is missing, then makes the directory a dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gristmill import __version__
from gristmill.dataset.errors import DataLossError, InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import (
    Manifest,
    Split,
    read_table,
    read_versioned_manifest,
)
from gristmill.dataset.metadata.report_columns import ReportCollector
from gristmill.dataset.metadata.shard_report import ShardReport, SourceSpan
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.transforms.checking.metadata import check_split
from gristmill.transforms.conversion.convert_shard import check_counts, convert_shard
from gristmill.transforms.conversion.owners import check_other_splits
from gristmill.transforms.jobs.conversion_job import PreparedJob, check_current
from gristmill.transforms.sources.quarantine import too_many

Convert = Callable[..., ShardReport]


class ExtraFiles(NamedTuple):
    """Small files that describe a dataset to others.

    Attributes:
        names: [files], in the order in which they are written.
        make: Returns the content of each for the dataset that is committed.
    """

    names: Sequence[str]
    make: Callable[[Manifest], Sequence[bytes]]


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
    reports: Iterable[ShardReport],
    *,
    convert: Convert = convert_shard,
) -> list[ShardReport]:
    """Makes shards again whose ranges were entered at a wrong offset.

    A record whose payload holds TFRecord frames can fool the search for the first
    frame of a range. The range before it tells the truth: by induction from offset 0.
    So shards are made again one after the other, in order: where the next one has to
    begin is known only then. It costs as much as their conversion did, in one process,
    and needs such a record to lie across a cut between two shards, or damage to begin
    within a few bytes of one.

    Args:
        prepared: The job.
        reports: Of all shards, in order.
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
            made = convert(prepared, shard, exact_begin_bytes=before.stop_bytes)
            again.append(made)
            gap = _follow(reached, made)
        if gap is not None:
            before = reached.get(gap.file_index, _Reached())
            raise DataLossError(
                "two ranges of an input file do not meet",
                where=f"{prepared.files.paths[gap.file_index]}, shard "
                f"{prepared.shard_path(shard)}",
                expected=f"a range that begins at byte offset {before.stop_bytes:,}",
                got=f"{gap}",
                cure="run the conversion again; if it repeats, please report it",
            )
    _check_ends(prepared, reached)
    return again


def _follow(reached: dict[int, _Reached], report: ShardReport) -> SourceSpan | None:
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
    splittable = files.splittable
    for file, size in enumerate(files.sizes.tolist()):
        stop, whole = reached.get(file, _Reached())
        if not (stop == size if splittable[file] else whole):
            raise DataLossError(
                "an input file was not read to its end",
                where=files.paths[file],
                expected=f"{size:,} bytes",
                got=f"{stop:,}",
                cure="check that nobody writes to it, then run the conversion again",
            )


def finish_split(
    prepared: PreparedJob, collected: ReportCollector, **options: Any
) -> tuple[Split, int]:
    """Checks all shards of a split and writes their table.

    Args:
        prepared: The job.
        collected: The reports of all shards.
        **options: As `close_gaps` takes them.

    Returns:
        The split, and how many shards were made again.

    Raises:
        DataLossError: Shards are missing, or hold something else than was read.
        CorruptInputError: There was more damage than allowed.
        JobChangedError: Another conversion has taken over the output.
        StorageChangedError: It has written the table meanwhile.
    """
    job = prepared.job
    reports = collected.reports()
    shards = range(prepared.plan.shards)
    if len(reports) != len(shards):
        missing = np.setdiff1d(shards, reports.shard_indices)
        raise DataLossError(
            f"{len(missing):,} of {len(shards):,} shards were not made",
            where=f"{job.output}, " + prepared.shard_path(int(missing[0])),
            cure="run the same command again: finished shards are kept",
        )
    path = layout.table_path(job.name, job.split)
    place = layout.join(job.output, path)
    seen = version_of(place)
    # Then: whoever takes over the output from here on is not written over.
    check_current(prepared)
    again = close_gaps(prepared, reports, **options)
    for made in again:
        collected.add(made)
    reports = collected.reports() if again else reports
    for report in reports:
        check_counts(report, mapped=job.map is not None)
    table = reports.table
    regions = table.total("quarantined_regions")
    allowed = job.max_corrupt if job.on_corrupt == "quarantine" else 0
    if regions > allowed:
        # Of several shards together, or of a run before this one that allowed more.
        raise too_many(
            regions,
            allowed,
            where=layout.join(job.output, layout.QUARANTINE_DIR),
        )
    encoded = table.encode()
    storage_for(job.output).write(place, encoded, replaces=seen)
    read = reports.read
    source = {
        "job": prepared.fingerprint,
        "inputs": list(job.inputs),
        "files": len(prepared.files),
        "file_bytes": int(prepared.files.sizes.sum()),
        "file_list_digest": prepared.files.digest,
        "file_list": layout.inputs_path(job.name, job.split),
        "records": read.records,
        "raw_bytes": read.raw_bytes,
        "records_digest": read.hex,
        "options": job.options(),
        "gristmill_version": __version__,
    }
    split = Split.of_table(
        table,
        encoded,
        path=path,
        writer_options=job.writer.official,
        source=source,
    )
    return split, len(again)


def check_files(output: str, splits: Mapping[str, Split]) -> None:
    """Checks that all files of splits are in the output, as their tables say.

    Raises:
        DataLossError: One is not: it was deleted or replaced after it was written.
    """
    for name, split in splits.items():
        findings = check_split(output, split)
        if findings:
            raise DataLossError(
                "a file of a finished split is not there any more",
                where=f"{output}, split {name}",
                got=f"{findings[0]}"
                + (f", and {len(findings) - 1:,} more" if len(findings) > 1 else ""),
                cure="see that nobody else writes to this output, then run the same "
                "command again: it makes what is missing",
            )


def commit_dataset(
    output: str,
    name: str,
    splits: Mapping[str, Split],
    *,
    keeps: Iterable[str] = (),
    features: Mapping[str, Any] | None = None,
    extra_files: ExtraFiles | None = None,
    check: Callable[[], None] = lambda: None,
) -> Manifest:
    """Writes `dataset.json`, last of all. Splits that are there already stay.

    Args:
        output: The dataset's directory.
        name: Its name.
        splits: The finished splits, by name.
        keeps: Splits that are there already, as far as the caller knows.
        features: The schema, where known.
        extra_files: Small files to write before it.
        check: Called when nothing is left but to write: raises if the splits are not
            to be committed after all.

    Raises:
        InputError: The directory holds a dataset of another name, or another split
            has a file of these.
        DataLossError: A split of `keeps` is not there, or there is no split at all.
        StorageChangedError: Another conversion committed at the same moment.
    """
    place = layout.join(output, layout.DATASET_JSON)
    storage = storage_for(output)
    # First: what is written from here on by another commit is not replaced.
    names = () if extra_files is None else extra_files.names
    extra = storage.stat_all([layout.join(output, name) for name in names])
    old, seen = read_versioned_manifest(output)
    there = {} if old is None else old.splits
    gone = sorted(set(keeps) - there.keys())
    if gone or not (splits or there):
        raise DataLossError(
            "a split that was there is gone" if gone else "no split to commit",
            where=", split ".join((output, *gone)),
            cure="run one conversion at a time into one output, and this one again",
        )
    if old is not None and not splits and features in (None, old.features):
        return old
    if old is None:
        old = Manifest(name=name, splits={})
    if old.name != name:
        raise InputError(
            "the output holds a dataset of another name",
            where=output,
            expected=old.name,
            got=name,
            cure=f"use --name {old.name} to add a split, or another output",
        )
    if old.splits.keys() - splits.keys():
        tables = [read_table(output, split) for split in splits.values()]
        paths = {path for table in tables for path in table.paths}
        check_other_splits(output, old, splits=splits, takes=paths.__contains__)
    check()
    manifest = dataclasses.replace(
        old,
        splits={**there, **splits},
        features=old.features if features is None else features,
        created_by=f"gristmill {__version__}",
    )
    if extra_files is not None:
        versions = [info.version if info else "" for info in extra]
        for name, data, version in zip(
            names, extra_files.make(manifest), versions, strict=True
        ):
            storage.write(layout.join(output, name), data, replaces=version)
    storage.write(place, manifest.encode(), replaces=seen)
    for split in () if storage.remote else splits:
        storage.delete_tree(layout.temporary_dir(output, manifest.name, split))
    return manifest
