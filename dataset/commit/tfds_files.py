"""`dataset_info.json` beside a split: whether TFDS reads it, and as it is now."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest
from gristmill.dataset.metadata.tfds_info import FILEPATH_TEMPLATE, path_template
from gristmill.dataset.storage.lookup import storage_for


def described_by_tfds(output: str, name: str, splits: Iterable[str]) -> str | None:
    """Returns the version of `dataset_info.json` if it describes one of some splits."""
    version, described = _load(output, name)
    return version if described.keys() & {*splits} else None


def withdraw_tfds_info(output: str, manifest: Manifest) -> None:
    """Removes `dataset_info.json` if it describes a split as it is no longer.

    TFDS treats a directory without it as unfinished, which is right then. A file that
    describes another dataset, or TFRecord files in the same directory, stays.
    """
    version, described = _load(output, manifest.name)
    for name, fields in described.items():
        split = manifest.splits.get(name)
        if split is None or any("indexed" in part.source for part in split.parts):
            continue  # Files that were indexed have the names that TFDS gave them.
        wanted = path_template(layout.edition_key(name, split.edition))
        template = fields.get("filepathTemplate") or FILEPATH_TEMPLATE
        lengths = fields["shardLengths"]
        if (
            split.editions
            or split.removed is not None
            or template != wanted
            or (len(lengths), sum(lengths)) != (split.shards, split.records)
        ):
            path = layout.join(output, layout.TFDS_INFO_JSON)
            storage_for(output).delete(path, version=version)
            return


def _load(output: str, name: str) -> tuple[str, dict[str, Any]]:
    """Returns the file's version and its splits by name; none of another dataset."""
    path = layout.join(output, layout.TFDS_INFO_JSON)
    content = storage_for(output).load(path)
    if content is None:
        return "", {}
    try:
        info = json.loads(content.data)
        splits = {each["name"]: each for each in info["splits"]}
        # Numbers, as protocol buffers write them.
        for each in splits.values():
            each["shardLengths"] = [int(n) for n in each.get("shardLengths", ())]
        own = (info["name"], info["fileFormat"]) == (name, "array_record")
    except (KeyError, TypeError, ValueError):
        return "", {}
    return (content.version, splits) if own else ("", {})
