"""The end of a conversion: its shards are checked, and its splits committed."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from gristmill.dataset.commit.commit import ExtraFiles, check_files, commit_dataset
from gristmill.dataset.commit.exchange import finish_exchange
from gristmill.dataset.errors import DataLossError
from gristmill.dataset.metadata.layout import TFDS_INFO_JSON
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.read_manifest import read_table
from gristmill.dataset.metadata.splits import Split
from gristmill.transforms.conversion.begin_aside import check_owner
from gristmill.transforms.conversion.finish_split import finish_split
from gristmill.transforms.conversion.shard_tasks import GatheredResults, ShardResult
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.jobs.prepared_job import PreparedJob, check_current
from gristmill.transforms.sources.shards.source_split import SourceSplit
from gristmill.transforms.tfds.directory import TfdsDirectory, read_tfds_directory
from gristmill.transforms.tfds.metadata import check_records_read, tfds_metadata


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


def commit_shards(
    jobs: Iterable[ConversionJob],
    results: GatheredResults | Iterable[ShardResult],
    *,
    features: Mapping[str, Any] | None = None,
    prepared: Mapping[str, PreparedJob] | None = None,
    tfds_directory: str | None = None,
) -> ConversionResult:
    """Commits the dataset from the results of all shards of all jobs.

    Args:
        jobs: The jobs, all of one dataset, with its directory as output.
        results: A result for every shard; None as report where a split was there.
        features: The schema, where known.
        prepared: Jobs that were prepared in this process, by split.
        tfds_directory: The TFDS directory that the jobs come from, if any: its
            metadata is compared with what was read, and written for the output.

    Raises:
        DataLossError: Shards are missing or do not hold what was read, or a split that
            was there is gone.
    """
    jobs = list(jobs)
    output, name = jobs[0].output, jobs[0].name
    if not isinstance(results, GatheredResults):
        results = GatheredResults.of(results)
    finish_exchange(output)  # Of an earlier attempt at this very commit, perhaps.
    before = tuple(job.split for job in jobs if job.split in results.committed_before)
    splits, repaired = {}, 0
    owners: dict[str, PreparedJob] = {}
    for job in jobs:
        if job.split in before:
            continue
        found = results.splits.get(job.split)
        if found is None:
            raise DataLossError(
                "no shard of a split was made",
                where=f"{job.output}, split {job.split}",
                cure="run the same command again: finished shards are kept",
            )
        own = (prepared or {}).get(job.split) or found.task.prepared
        splits[job.split], again = finish_split(own, found.reports)
        owners[job.split] = own
        repaired += again
    places = {split: own.job.output for split, own in owners.items()}
    aside = [split for split, place in places.items() if place != output]
    extra_files = None
    if tfds_directory is not None:
        source = read_tfds_directory(tfds_directory)
        features = source.features if features is None else features
        # A split of a dataset was compared with the dataset.
        of_dataset = {
            split
            for split, own in owners.items()
            if SourceSplit.of_spec(own.files.spec) is not None
        }
        extra_files = _tfds_files(source, output, splits, places, of_dataset)

    def check() -> None:
        # Hours may have passed since the first split was finished.
        for split, own in owners.items():
            check_current(own)
            if split in aside:
                check_owner(own, output)
            check_files(own.job.output, {split: splits[split]})

    manifest = commit_dataset(
        output,
        name,
        splits,
        keeps=before,
        features=features,
        extra_files=extra_files,
        aside=aside,
        check=check,
    )
    return ConversionResult(manifest, repaired, before)


def _tfds_files(
    source: TfdsDirectory,
    output: str,
    splits: Mapping[str, Split],
    places: Mapping[str, str],
    of_dataset: Collection[str],
) -> ExtraFiles:
    """Checks new splits against TFDS metadata, of which it makes the output's.

    `places` are the directories that have the tables of new splits. Those in
    `of_dataset` need not be checked.
    """
    new = {name: read_table(places[name], split) for name, split in splits.items()}
    for name, table in new.items():
        if name in of_dataset:
            continue
        check_records_read(source.splits[name], table, where=source.path)

    def make(manifest: Manifest) -> list[bytes]:
        tables = {
            name: new[name] if name in new else read_table(output, split)
            for name, split in manifest.splits.items()
            if name in source.splits
        }
        return list(tfds_metadata(source, name=manifest.name, tables=tables).values())

    return ExtraFiles((*source.files, TFDS_INFO_JSON), make)
