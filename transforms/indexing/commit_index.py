"""The job of an index: existing files become splits of a dataset."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
from collections.abc import Sequence

import google_crc32c

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.commit.commit import check_files, commit_dataset, write_table
from gristmill.dataset.commit.write import Write, next_write
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, read_manifest
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.transforms.indexing.index_shard import index_shard
from gristmill.transforms.indexing.plan_index import IndexTask, plan_index
from gristmill.transforms.jobs.job import Begun

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class IndexJob:
    """The job; attributes are as for `plan_index` and `commit_index`."""

    files: tuple[str, ...]
    name: str | None = None
    split: str | None = None
    overwrite: bool = False
    keep_replaced: bool = False

    step = staticmethod(index_shard)

    def begin(self) -> Begun[IndexTask]:
        """Finds the files."""
        tasks = plan_index(
            self.files, name=self.name, split=self.split, overwrite=self.overwrite
        )
        files, size = len(tasks), tasks.file_bytes
        _log.info("%s: %d files listed, %d bytes", tasks.dataset, files, size)
        return Begun(
            label="indexing",
            noun="files",
            tasks=tasks,
            parts=files,
            stored_bytes=size,
            sources=self.files,
            sink=tasks.dataset,
        )

    def commit(self, indexed: Gathered) -> Manifest:
        """Makes the directory a dataset."""
        return commit_index(
            indexed, inputs=self.files, keep_replaced=self.keep_replaced
        )


def commit_index(
    indexed: Gathered, *, inputs: Sequence[str], keep_replaced: bool = False
) -> Manifest:
    """Makes the directory a dataset.

    A split that is there with the very same files stays as it is.

    Args:
        indexed: All files that were planned.
        inputs: The patterns, for the record.
        keep_replaced: Whether splits that are replaced are kept, to go back to.

    Raises:
        DataLossError: An index is not there any more.
        JobChangedError: Another command has changed one of the splits meanwhile.
    """
    if not indexed.rows:
        raise ValueError("no file was indexed")
    task: IndexTask = next(iter(indexed.notes["task"].values()))
    dataset, name = task.dataset, task.name
    before = read_manifest(dataset)
    made: dict[str, Split] = {}
    writes: dict[str, Write] = {}
    for split in sorted(indexed.rows):
        reports = indexed.rows[split]
        writer_options = {o for s, o in indexed.notes["writer_options"] if s == split}
        old = None if before is None else before.splits.get(split)
        table, options = reports.table(), " | ".join(sorted(writer_options))
        if old is not None and _is_made_of(old, table, options, inputs):
            made[layout.write_key(split, old.write)] = old
            continue
        text = json.dumps([table.shards_digest, options, list(inputs)])
        write = next_write(
            *(dataset, name, split, hashlib.sha256(text.encode()).hexdigest()),
            manifest=before,
            replaces=True,
            plain=False,
        )
        writes[write.key] = write
        made[write.key] = write_table(
            dataset,
            name,
            write.key,
            table,
            check_current=write.check_current,
            writer_options=options,
            source={"indexed": list(inputs), "job": write.id},
        )
    manifest = commit_dataset(
        dataset,
        name,
        {key: made[key] for key in writes},
        based_on={key: write.base for key, write in writes.items()},
        replaces=[key for key, write in writes.items() if write.replaces],
        keep_replaced=keep_replaced,
        check=functools.partial(check_files, dataset, made),
    )
    parts = [
        f"split {key}: {split.records:,} records in {split.shards:,} shards"
        for key, split in made.items()
    ]
    _log.info("%s: committed; %s", dataset, "; ".join(parts))
    return manifest


def _is_made_of(
    split: Split, table: ShardTable, writer_options: str, inputs: Sequence[str]
) -> bool:
    """Returns whether a split is the result of an index of the same files."""
    encoded = table.encode()
    return (
        len(split.parts) == 1
        and (split.table_bytes, split.table_crc32c)
        == (len(encoded), google_crc32c.value(encoded))
        and split.writer_options == writer_options
        and split.source.get("indexed") == list(inputs)
    )
