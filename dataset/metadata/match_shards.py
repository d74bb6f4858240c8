"""The ArrayRecord files that a pattern or a directory stands for."""

from __future__ import annotations

from collections.abc import Sequence

from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.tfds_info import INFORMATION
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for

_METADATA = (layout.DATASET_JSON, layout.TFDS_INFO_JSON, "features.json")


def match_shards(pattern: str) -> list[FileInfo]:
    """Lists the files that a pattern matches, except those that describe a dataset.

    They are beside the shards: a pattern that matched all files before these were
    indexed matches `dataset.json` as well afterwards.
    """
    found = [] if pattern.endswith("/") else storage_for(pattern).match(pattern)
    if [info.path for info in found] == [pattern]:
        return found
    return _shards(found)


def list_shard_files(directory: str) -> list[FileInfo]:
    """Lists the files directly in a directory whose names can be those of shards.

    Hidden files, markers such as `_SUCCESS` and files that describe a dataset cannot.
    """
    found = storage_for(directory).list(directory.rstrip("/") or "/")
    tfds = any(_name(info) == layout.TFDS_INFO_JSON for info in found)
    return [
        info
        for info in _shards(found)
        if not _name(info).startswith((".", "_"))
        and not (tfds and INFORMATION.fullmatch(_name(info)))
    ]


def _shards(found: Sequence[FileInfo]) -> list[FileInfo]:
    # Names are split again and again: those of millions of files take gigabytes.
    datasets = {_parent(info) for info in found if _name(info) == layout.DATASET_JSON}
    own = {
        layout.join(dataset, folder)
        for dataset in datasets
        for folder in (layout.INDEX_DIR, layout.QUARANTINE_DIR)
    }
    return [
        info
        for info in found
        if _name(info) not in _METADATA and _parent(info) not in own
    ]


def _name(info: FileInfo) -> str:
    return info.path.rpartition("/")[2]


def _parent(info: FileInfo) -> str:
    return info.path.rpartition("/")[0]
