"""The commit: proves that nothing is missing, then makes the directory a dataset."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gristmill.dataset import layout
from gristmill.dataset.digest import RecordsDigest
from gristmill.dataset.errors import DataLossError, InputError
from gristmill.dataset.manifest import Manifest, Split, read_manifest
from gristmill.dataset.shard_report import ShardReport, SourceSpan
from gristmill.dataset.shard_table import ShardTable
from gristmill.dataset.storage import storage_for
from gristmill.dataset.version import __version__
from gristmill.transforms.conversion_job import PreparedJob
from gristmill.transforms.convert_shard import check_counts, convert_shard
from gristmill.transforms.quarantine import too_many

Convert = Callable[..., ShardReport]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Gap:
    """A place where the spans of a file do not meet.

    Attributes:
        shard: The shard whose span begins in the wrong place.
        file_index: The file.
        expected_bytes: Where the span before it stopped.
        span: The span.
    """

    shard: int
    file_index: int
    expected_bytes: int
    span: SourceSpan


def find_gap(
    prepared: PreparedJob, reports: Sequence[ShardReport], *, first_shard: int = 0
) -> _Gap | None:
    """Returns the first place where the spans of an input file do not meet.

    Args:
        prepared: The job.
        reports: Of all shards, in order.
        first_shard: A shard at whose beginning all before is known to be right.

    Returns:
        None if every file is covered exactly, from offset 0 to its end.
    """
    files = prepared.files
    reached: dict[int, tuple[int, bool]] = {}
    for report in reports:
        for span in report.spans:
            expected, _ = reached.get(span.file_index, (0, False))
            if span.start_bytes is None or span.stop_bytes is None:
                # No frame begins here: right if the frame before reaches over it.
                fits = expected >= span.end_bytes >= 0
                stop = expected
            else:
                fits, stop = span.start_bytes == expected, span.stop_bytes
            if not fits:
                return _Gap(
                    shard=report.shard_index,
                    file_index=span.file_index,
                    expected_bytes=expected,
                    span=span,
                )
            reached[span.file_index] = stop, span.whole
    for file, path in enumerate(files.paths):
        stop, whole = reached.get(file, (0, False))
        size = int(files.sizes[file])
        if not (whole if not files.splittable[file] else stop == size):
            raise DataLossError(
                "an input file was not read to its end",
                where=path,
                expected=f"{size:,} bytes",
                got=f"{stop:,}",
                cure="run the conversion again; if it repeats, please report it",
            )
    return None


def close_gaps(
    prepared: PreparedJob,
    reports: list[ShardReport],
    *,
    convert: Convert = convert_shard,
) -> int:
    """Makes shards again whose ranges were entered at a wrong offset.

    A record whose payload holds TFRecord frames can fool the search for the first
    frame of a range. The range before it tells the truth: by induction from offset 0.

    Args:
        prepared: The job.
        reports: Of all shards, in order. Those of shards made again are replaced.
        convert: Makes one shard.

    Returns:
        How many shards were made again.

    Raises:
        DataLossError: A gap stays.
    """
    again: set[int] = set()
    while (gap := find_gap(prepared, reports)) is not None:
        if gap.shard in again or gap.span != reports[gap.shard].spans[0]:
            raise DataLossError(
                "two ranges of an input file do not meet",
                where=f"{prepared.files.paths[gap.file_index]}, shard "
                f"{prepared.shard_path(gap.shard)}",
                expected=f"a range that begins at byte offset {gap.expected_bytes:,}",
                got=f"{gap.span}",
                cure="run the conversion again; if it repeats, please report it",
            )
        again.add(gap.shard)
        reports[gap.shard] = convert(
            prepared, gap.shard, exact_begin_bytes=gap.expected_bytes
        )
    return len(again)


def finish_split(
    prepared: PreparedJob, reports: Iterable[ShardReport], **options: Any
) -> tuple[Split, int]:
    """Checks all shards of a split and writes their table.

    Args:
        prepared: The job.
        reports: Of all shards, in any order; a shard may be there twice.
        **options: As `close_gaps` takes them.

    Returns:
        The split, and how many shards were made again.

    Raises:
        DataLossError: Shards are missing, or hold something else than was read.
        CorruptInputError: There was more damage than allowed.
    """
    job = prepared.job
    by_shard = {report.shard_index: report for report in reports}
    missing = sorted(set(range(prepared.plan.shards)) - by_shard.keys())
    if missing:
        raise DataLossError(
            f"{len(missing):,} of {prepared.plan.shards:,} shards were not made",
            where=f"{job.output}, " + prepared.shard_path(missing[0]),
            cure="run the same command again: finished shards are kept",
        )
    ordered = [by_shard[shard] for shard in range(prepared.plan.shards)]
    repaired = close_gaps(prepared, ordered, **options)
    for report in ordered:
        check_counts(report, mapped=job.map is not None)
    regions = sum(report.quarantined_regions for report in ordered)
    if regions > job.max_corrupt:
        raise too_many(
            regions,
            job.max_corrupt,
            where=layout.join(job.output, layout.QUARANTINE_DIR),
        )
    table = ShardTable.of(ordered)
    encoded = table.encode()
    path = layout.table_path(job.name, job.split)
    storage_for(job.output).write(layout.join(job.output, path), encoded)
    read = RecordsDigest.total(report.read for report in ordered)
    source = {
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
    return split, repaired


def commit_dataset(
    output: str,
    name: str,
    splits: Mapping[str, Split],
    *,
    features: Mapping[str, Any] | None = None,
    extra_files: Mapping[str, bytes] | None = None,
) -> Manifest:
    """Writes `dataset.json`, last of all. Splits that are there already stay.

    Args:
        output: The dataset's directory.
        name: Its name.
        splits: The finished splits, by name.
        features: The schema, where known.
        extra_files: Small files to write before it, in their order, by name.

    Raises:
        InputError: The directory holds a dataset of another name.
    """
    old = read_manifest(output)
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
    manifest = dataclasses.replace(
        old,
        splits={**old.splits, **splits},
        features=old.features if features is None else features,
        created_by=f"gristmill {__version__}",
    )
    storage = storage_for(output)
    for file, data in (extra_files or {}).items():
        storage.write(layout.join(output, file), data)
    storage.write(layout.join(output, layout.DATASET_JSON), manifest.encode())
    storage.delete_tree(layout.join(output, layout.TEMPORARY_DIR))
    return manifest
