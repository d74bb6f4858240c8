"""Which ArrayRecord files a pattern or a directory means."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.tfds_info import INFORMATION
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for

_METADATA = (layout.DATASET_JSON, layout.TFDS_INFO_JSON, "features.json")


def match_shards(pattern: str) -> list[FileInfo]:
    """Lists the files that a pattern matches, without those that describe a dataset.

    They are beside the shards: a pattern that matched all files before these were
    indexed matches `dataset.json` as well afterwards. `**` in a bucket also matches
    files that are to replace others: they are left out unless the pattern names them.
    """
    found = [] if pattern.endswith("/") else storage_for(pattern).match(pattern)
    if [info.path for info in found] == [pattern]:
        return found
    aside = f"/{layout.ASIDE_PREFIX}"
    if aside not in f"/{pattern}":
        found = [info for info in found if aside not in info.path]
    return _shards(found)


def list_shard_files(directory: str) -> list[FileInfo]:
    """Lists the files directly in a directory that can be shards, by their names.

    Hidden files, markers such as `_SUCCESS` and files that describe a dataset cannot.
    """
    found = storage_for(directory).list(directory.rstrip("/") or "/")
    names = {info.path: info.path.rpartition("/")[2] for info in found}
    tfds = layout.TFDS_INFO_JSON in names.values()
    return [
        info
        for info in _shards(found)
        if not names[info.path].startswith((".", "_"))
        and not (tfds and INFORMATION.fullmatch(names[info.path]))
    ]


def _shards(found: Sequence[FileInfo]) -> list[FileInfo]:
    split = [info.path.rpartition("/") for info in found]
    datasets = {parent for parent, _, name in split if name == layout.DATASET_JSON}
    own = {
        layout.join(dataset, folder)
        for dataset in datasets
        for folder in (layout.INDEX_DIR, layout.QUARANTINE_DIR)
    }
    return [
        info
        for info, (parent, _, name) in zip(found, split, strict=True)
        if name not in _METADATA and parent not in own
    ]
