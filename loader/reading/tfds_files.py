"""Reads which ArrayRecord files a TFDS directory has, from `dataset_info.json`."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from gristmill.dataset.errors import GristmillError, InvalidDatasetError
from gristmill.dataset.metadata import layout
from gristmill.dataset.storage.lookup import storage_for

DATASET_INFO_JSON = "dataset_info.json"

_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_FORMAT = "array_record"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TfdsFiles:
    """The files of one split.

    Attributes:
        paths: Relative to the directory, in the order of shards.
        file_records: Records in each.
    """

    paths: tuple[str, ...]
    file_records: tuple[int, ...]


def read_tfds_files(directory: str) -> tuple[str, dict[str, TfdsFiles]] | None:
    """Reads which files a TFDS directory in ArrayRecord format has.

    Args:
        directory: The directory of one version of a dataset.

    Returns:
        The dataset's name and its splits; None if there is no `dataset_info.json`.

    Raises:
        InvalidDatasetError: The metadata is damaged, or of another file format.
    """
    place = layout.join(directory, DATASET_INFO_JSON)
    storage = storage_for(directory)
    if storage.stat(place) is None:
        return None
    try:
        info = json.loads(storage.read(place))
        formats = (info.get("fileFormat"), *info.get("alternativeFileFormats", ()))
        if _FORMAT not in formats:
            raise InvalidDatasetError(
                "TFDS directory is not in ArrayRecord format",
                where=place,
                expected=f"fileFormat {_FORMAT}",
                got=formats[0],
                cure="convert it with `gristmill convert`",
            )
        name = str(info["name"])
        splits = {
            str(fields["name"]): _parse_split(name, fields, place)
            for fields in info["splits"]
        }
    except GristmillError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise InvalidDatasetError(
            f"{DATASET_INFO_JSON} cannot be used",
            where=place,
            expected="what TFDS writes: a JSON object with name, fileFormat and splits",
            got=f"{type(e).__name__}: {e}",
            cure="copy it again from the original dataset, or open the files by a glob "
            "pattern",
        ) from e
    return name, splits


def _parse_split(dataset: str, fields: Mapping[str, Any], place: str) -> TfdsFiles:
    split = layout.check_split(fields["name"])
    records = tuple(int(length) for length in fields.get("shardLengths", ()))
    if any(not 0 <= length < 1 << 62 for length in records):
        raise ValueError(f"split {split} has an impossible shard length")
    template = fields.get("filepathTemplate") or _TEMPLATE
    count = len(records)
    digits = max(5, len(str(count)))
    total = f"{count:0{digits}d}"
    paths = []
    for shard in range(count):
        number = f"{shard:0{digits}d}"
        values = {
            "DATASET": dataset,
            "SPLIT": split,
            "FILEFORMAT": _FORMAT,
            "SHARD_INDEX": number,
            "NUM_SHARDS": total,
            "SHARD_X_OF_Y": f"{number}-of-{total}",
        }
        path = re.sub(r"\{(\w+)\}", lambda match, v=values: v[match[1]], template)
        paths.append(layout.check_relative(path, where=place))
    if len(set(paths)) != count:
        raise ValueError(f"split {split} has files of the same name: {template}")
    return TfdsFiles(paths=tuple(paths), file_records=records)
