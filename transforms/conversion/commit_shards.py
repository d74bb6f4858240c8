"""The end of a conversion: its shards are checked, and its splits committed."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import DataLossError
from gristmill.dataset.commit.commit import ExtraFiles, check_files, commit_dataset
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import TFDS_INFO_JSON
from gristmill.dataset.metadata.manifest import Manifest, read_table
from gristmill.dataset.metadata.splits import Split
from gristmill.transforms.conversion.finish_split import finish_split
from gristmill.transforms.conversion.shard_tasks import ShardResult
from gristmill.transforms.directories.tfds_directory import (
    TfdsDirectory,
    check_records_read,
    read_tfds_directory,
    tfds_metadata,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.prepared_job import PreparedJob, check_current
from gristmill.transforms.sources.shards.source_split import SourceSplit

_log = logging.getLogger(__name__)


class ConversionResult(NamedTuple):
    """What a conversion did.

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
    made = {layout.parse_edition_key(k)[0]: k for k in (*results.rows, *committed)}
    keys = {j.split: made.get(layout.parse_edition_key(j.split)[0]) for j in jobs}
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
        replaces=[key for split, key in keys.items() if key and key != split],
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
        name, _ = layout.parse_edition_key(key)
        if key not in of_dataset:
            table = read_table(output, split)
            check_records_read(source.splits[name], table, where=source.path)

    def make(manifest: Manifest) -> list[bytes]:
        tables = {
            layout.edition_key(name, split.edition): read_table(output, split)
            for name, split in manifest.splits.items()
            if name in source.splits and not split.editions
        }
        return list(tfds_metadata(source, name=manifest.name, tables=tables).values())

    return ExtraFiles((*source.files, TFDS_INFO_JSON), make)
