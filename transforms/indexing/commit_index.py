"""The end of an index: the indexed files become splits of a dataset."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence

import google_crc32c

from gristmill.dataset.base.columns import Gathered
from gristmill.dataset.base.errors import JobChangedError
from gristmill.dataset.commit.claim import again_if_changed
from gristmill.dataset.commit.commit import check_files, commit_dataset, write_table
from gristmill.dataset.commit.editions import last_described
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, read_manifest
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import Split
from gristmill.dataset.storage.base import changed_error
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.indexing.plan_index import IndexTask

_log = logging.getLogger(__name__)


def task_of(indexed: Gathered) -> IndexTask:
    """Returns any of the tasks that were done."""
    task: IndexTask = next(iter(indexed.notes["task"].values()))
    return task


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
    task = task_of(indexed)
    dataset, name = task.dataset, task.name
    before = read_manifest(dataset)
    made: dict[str, Split] = {}
    new = set[str]()
    for split in sorted(indexed.rows):
        reports = indexed.rows[split]
        writer_options = {o for s, o in indexed.notes["writer_options"] if s == split}
        old = None if before is None else before.splits.get(split)
        table, options = reports.reports().table, " | ".join(sorted(writer_options))
        write = functools.partial(
            write_table,
            dataset,
            name,
            table=table,
            writer_options=options,
            source={"indexed": list(inputs)},
        )
        if old is not None and _is_made_of(old, table, options, inputs):
            key = layout.edition_key(split, old.edition)
            made[key] = write(split=key)
            continue
        last = 0 if old is None else old.last_edition
        take = functools.partial(_take_number, dataset, name, split, last, write)
        key, made[key] = again_if_changed(take)
        new.add(key)

    def check_current() -> None:
        now = read_manifest(dataset)
        for split in indexed.rows:
            was, there = (m.splits.get(split) if m else None for m in (before, now))
            if was != there:
                raise JobChangedError(
                    "another command has changed the split while this one ran",
                    where=f"{dataset}, split {split}",
                    expected=f"edition {was.edition:,}" if was else "no such split",
                    got=f"edition {there.edition:,}" if there else "no such split",
                    cure="look at the split, and index the files again if they are to "
                    "replace it",
                )

    check = functools.partial(check_files, dataset, made, check_current=check_current)
    manifest = commit_dataset(
        dataset,
        name,
        {key: made[key] for key in new},
        replaces=new,
        keep_replaced=keep_replaced,
        check=check,
    )
    parts = [
        f"split {key}: {split.records:,} records in {split.shards:,} shards"
        for key, split in made.items()
    ]
    _log.info("%s: committed; %s", dataset, "; ".join(parts))
    return manifest


def _take_number(
    dataset: str, name: str, split: str, last: int, write: Callable[..., Split]
) -> tuple[str, Split]:
    """Writes a table under a number that no other command has; returns its key too.

    Others describe their work under the number before they begin, and look for a table
    then. So of two that take a number at the same moment, one at least sees the other.

    Raises:
        StorageChangedError: Another command has taken the number at this moment.
    """
    storage = storage_for(dataset)
    number = max(last, last_described(dataset, name, split)) + 1
    key = layout.edition_key(split, number)
    made = write(split=key)
    own = layout.join(dataset, made.table)
    paths = (layout.join(dataset, path) for path in layout.split_paths(name, key))
    found = [info.path for info in storage.stat_all([*paths]) if info is not None]
    if found != [own] or last_described(dataset, name, split) > number:
        storage.delete(own)
        raise changed_error(own, expected="the only file of its edition", got="others")
    return key, made


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
