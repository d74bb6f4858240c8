"""The columns of a dataset that is converted: those of the records that it keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import StorageChangedError
from gristmill.dataset.columns.column_file import Values
from gristmill.dataset.commit.attached_split import made_column
from gristmill.dataset.metadata.column_table import (
    common_columns,
)
from gristmill.dataset.metadata.manifest import read_split_table
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.transforms.jobs.conversion_job import PreparedJob
from gristmill.transforms.sources.shards.source_split import SourceSplit
from gristmill.transforms.sources.shards.split_columns import (
    SplitColumns,
    selected_records,
)


def carried_columns(
    prepared: PreparedJob, table: ShardTable
) -> Mapping[str, Mapping[str, Any]]:
    """Returns the columns of a finished split, for `Split.columns`; writes their files.

    They are those that all editions of the input have alike. There are none where it is
    not known which record became which: of packed rows, and where a function of the
    user's was called or damage was left out.

    Args:
        prepared: The job.
        table: The shards that it has made.

    Raises:
        InvalidDatasetError: A column is damaged, or belongs to other records.
        StorageChangedError: The input was replaced meanwhile.
    """
    source, job = SourceSplit.of_spec(prepared.files.spec), prepared.job
    if job.map is not None or job.pack is not None or table.total("skipped_regions"):
        return {}
    dataset = source.directory.rstrip("/") or "/"
    manifest = open_manifest(dataset)
    split = manifest.splits.get(source.split)
    if split is None or not common_columns(split, dataset):
        return {}
    shards = read_split_table(dataset, manifest, source.split)
    if shards.shards_digest != source.shards_digest:
        raise StorageChangedError(
            "the dataset was changed while it was converted",
            where=f"{dataset}, split {source.split}",
            expected=source.shards_digest,
            got=shards.shards_digest,
            cure="run the same command again with --overwrite, when nothing writes to "
            "the dataset",
        )
    columns = SplitColumns.of(dataset, split, shards)
    write = prepared.as_write
    return {
        name: made_column(
            write, name, entry, table, _values(prepared, columns, name, table)
        )
        for name, entry in columns.entries.items()
    }


def _values(
    prepared: PreparedJob, columns: SplitColumns, name: str, table: ShardTable
) -> Iterator[Values]:
    """Yields the values of each shard, of the ranges that it was made of."""
    for shard in range(len(table)):
        parts = [columns.entries[name].kind.empty()]
        for span in table.spans(shard):
            if span.start_bytes is None:
                continue
            rows = slice(span.start_bytes, span.stop_bytes)  # Numbers of records.
            values = columns.values(name, span.file_index)[rows]
            taken = selected_records(prepared.files.spec, span.file_index)
            parts.append(values if taken is None else values[taken[rows]])
        yield np.concatenate(parts)
