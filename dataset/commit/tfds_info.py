"""Removing the metadata of TFDS that describes a split which is about to go."""

from __future__ import annotations

import json

from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for


def withdraw_tfds_info(output: str, *, name: str, split: str) -> None:
    """Removes `dataset_info.json` if it describes a split that is about to be removed.

    TFDS treats a directory without it as unfinished, which is right then. A file that
    describes another dataset, or TFRecord files in the same directory, stays.

    Args:
        output: The dataset's directory.
        name: Its name.
        split: The split.
    """
    storage = storage_for(output)
    path = layout.join(output, layout.TFDS_INFO_JSON)
    if storage.stat(path) is None:
        return
    try:
        info = json.loads(storage.read(path))
        found = info["name"], info["fileFormat"]
        splits = [each["name"] for each in info["splits"]]
    except (KeyError, TypeError, ValueError):
        return
    if found == (name, "array_record") and split in splits:
        storage.delete(path)
