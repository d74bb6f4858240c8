"""`dataset.json` and the tables of shards that it describes, read and checked."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import google_crc32c

from gristmill.dataset.base.errors import (
    InvalidDatasetError,
    ReplacedError,
    StorageError,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import EXCHANGE, Manifest
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.splits import TOTALS, Split
from gristmill.dataset.storage.lookup import storage_for, version_of
from gristmill.dataset.storage.paths import StrPath, path_text


def read_manifest(dataset: StrPath) -> Manifest | None:
    """Returns the manifest of a dataset's directory, None if there is none."""
    return read_versioned_manifest(path_text(dataset, "dataset"))[0]


def read_versioned_manifest(dataset: str) -> tuple[Manifest | None, str]:
    """Returns the manifest or None, and the version of the file or "".

    A writer names that version as the one to replace, so that changes by others are not
    lost.
    """
    path = layout.join(dataset, layout.DATASET_JSON)
    found = storage_for(dataset).load(path)
    if found is None:
        return None, ""
    return Manifest.decode(found.data, where=path), found.version


def read_replaced_manifest(dataset: str) -> tuple[Manifest | None, str]:
    """Returns the same for a writer that replaces an unreadable `dataset.json`.

    The manifest is then None.
    """
    # Asked first: if another writer comes in between, its file has another version.
    path = layout.join(dataset, layout.DATASET_JSON)
    version = version_of(path)
    try:
        return read_versioned_manifest(dataset)
    except InvalidDatasetError:
        pass
    # What an earlier release was replacing is not among the splits.
    with contextlib.suppress(ValueError, AttributeError):
        document = json.loads(storage_for(dataset).read(path))
        if document.pop(EXCHANGE, None) is not None:
            return Manifest.decode(json.dumps(document).encode(), where=path), version
    return None, version


def check_not_replaced(dataset: str, name: str, split: Split) -> None:
    """Checks that the files of a split are still those of the dataset.

    By now, there may be later editions, also with this one kept beside them.

    Raises:
        ReplacedError: Another edition has replaced it, and its files are or will be
            deleted.
    """
    manifest = read_manifest(dataset)
    only, _ = layout.parse_edition_key(name)
    found = None if manifest is None else manifest.splits.get(only)
    known = {} if found is None else found.known
    for part in split.parts:
        there = known.get(part.edition)
        if there is None or there.shards_digest != part.shards_digest:
            raise ReplacedError(
                "dataset was replaced while it was in use",
                where=f"{dataset}, split {only}",
                expected=f"edition {part.edition:,}, {part.shards_digest}",
                got=_instead(found, there),
                cure="open the dataset again: it has the new records",
            )


def _instead(found: Split | None, there: Split | None) -> str:
    """Returns the state of a split that lacks an edition, in words."""
    if found is None:
        return "no such split any more"
    if there is not None:
        return f"edition {there.edition:,}, {there.shards_digest}"
    editions = ", ".join(f"{number:,}" for number in found.numbers)
    version = found.parts[-1].source.get("gristmill_version")
    return f"edition {editions}" + (f", made by gristmill {version}" if version else "")


def read_split_table(dataset: str, manifest: Manifest, name: str) -> ShardTable:
    """Reads the table of a split of a committed dataset, and checks its paths.

    The name can be the `layout.edition_key` of one edition.

    Raises:
        InvalidDatasetError: It is damaged.
        ReplacedError: The split was replaced meanwhile.
    """
    split = {**manifest.known, **manifest.splits}[name]
    try:
        table = read_table(dataset, split)
    except (InvalidDatasetError, StorageError):
        check_not_replaced(dataset, name, split)  # That would explain it.
        raise
    table.check_paths(where=layout.join(dataset, split.table))
    return table


def read_table(dataset: StrPath, split: Split) -> ShardTable:
    """Reads the table of shards of a split and compares it with the manifest.

    If there are several editions, it has the shards of all, in order. The spans of a
    shard count the input files of its edition.

    Raises:
        InvalidDatasetError: It is not the table that the manifest describes.
    """
    tables = [_read_table(dataset, part) for part in split.parts]
    return tables[0] if len(tables) == 1 else ShardTable.joined(tables)


def _read_table(dataset: StrPath, split: Split) -> ShardTable:
    path = layout.join(path_text(dataset, "dataset"), split.table)
    data = storage_for(path).read(path)
    got = google_crc32c.value(data)
    if (len(data), got) != (split.table_bytes, split.table_crc32c):
        raise InvalidDatasetError(
            "table of shards is not the one that dataset.json describes",
            where=path,
            expected=f"{split.table_bytes:,} bytes, crc32c {split.table_crc32c:#010x}",
            got=f"{len(data):,} bytes, crc32c {got:#010x}",
            cure="restore it from a copy, or run the conversion again with --overwrite",
        )
    table = ShardTable.decode(data, where=path)
    found: dict[str, Any] = {name: table.total(name) for name in TOTALS}
    found |= {
        "shards": len(table),
        "records_digest": table.digest().hex,
        "shards_digest": table.shards_digest,
    }
    described = {name: getattr(split, name) for name in found}
    if found != described:
        wrong = [name for name in found if found[name] != described[name]]
        raise InvalidDatasetError(
            "table of shards contradicts dataset.json",
            where=path,
            expected=", ".join(f"{name} {described[name]}" for name in wrong),
            got=", ".join(f"{name} {found[name]}" for name in wrong),
            cure="restore both from a copy, or run the conversion again with "
            "--overwrite",
        )
    return table
