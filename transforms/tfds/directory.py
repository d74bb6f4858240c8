"""TFDS directories as input: what their metadata says.

A TFDS directory holds the files of its splits, `dataset_info.json` (which splits there
are, how their files are named, how many examples each file holds) and `features.json`
(how to decode an example). Both are read as plain JSON. Sources: naming.py, splits.py,
dataset_info.py and proto/dataset_info.proto in tensorflow_datasets/core.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from gristmill.dataset.errors import GristmillError, InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import TFDS_INFO_JSON
from gristmill.dataset.storage.lookup import storage_for

FEATURES_JSON = "features.json"

FILEPATH_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_INFORMATION = re.compile(r"LICENSE|.+\.(?:json|txt|subwords|tokens)")
_OWN = (TFDS_INFO_JSON, layout.DATASET_JSON)
_MAX_INFORMATION_BYTES = 64 << 20  # 64 MiB; vocabularies stay far below.


@dataclasses.dataclass(frozen=True, kw_only=True)
class TfdsSplit:
    """One split, as `dataset_info.json` describes it.

    Attributes:
        name: Its name.
        files: Paths of its TFRecord files, in order.
        file_records: Records in each file.
        pattern: A glob pattern that matches these files.
        relatives: A regular expression for the paths, relative to the directory, of
            files that TFDS would name so, whatever their number.
    """

    name: str
    files: tuple[str, ...]
    file_records: tuple[int, ...]
    pattern: str
    relatives: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class TfdsDirectory:
    """The metadata of a TFDS directory.

    Attributes:
        path: The directory.
        info: The content of `dataset_info.json`.
        splits: All splits, by name.
        files: Files beside it that readers need (`features.json`, names of labels,
            vocabularies), by name.
    """

    path: str
    info: Mapping[str, Any]
    splits: Mapping[str, TfdsSplit]
    files: Mapping[str, bytes]

    @functools.cached_property
    def features(self) -> dict[str, Any]:
        """The content of `features.json`."""
        return _parse(self.files[FEATURES_JSON], layout.join(self.path, FEATURES_JSON))


def is_tfds_directory(path: str) -> bool:
    """Tells whether a path is a directory with metadata of TFDS."""
    return storage_for(path).stat(layout.join(path, TFDS_INFO_JSON)) is not None


def read_tfds_directory(path: str) -> TfdsDirectory:
    """Reads the metadata of a TFDS directory of TFRecord files.

    Args:
        path: The directory.

    Raises:
        InputError: It is not one, or its metadata cannot be used.
    """
    path = path.rstrip("/") or "/"
    storage = storage_for(path)
    place = layout.join(path, TFDS_INFO_JSON)
    there = {info.path.rpartition("/")[2]: info for info in storage.list(path)}
    missing = [name for name in (TFDS_INFO_JSON, FEATURES_JSON) if name not in there]
    if missing:
        raise InputError(
            "not a whole TFDS directory",
            where=path,
            expected=f"{TFDS_INFO_JSON} and {FEATURES_JSON}",
            got=f"no {' and no '.join(missing)}",
            cure="copy the missing file from where the dataset was made, or give the "
            "TFRecord files themselves as input",
        )
    files = {
        name: info
        for name, info in there.items()
        if _INFORMATION.fullmatch(name) and name not in _OWN
    }
    for name, file in files.items():
        if file.size_bytes > _MAX_INFORMATION_BYTES:
            raise InputError(
                f"too large to be copied as metadata of the dataset: {name}",
                where=file.path,
                expected=f"at most {_MAX_INFORMATION_BYTES:,} bytes",
                got=f"{file.size_bytes:,}",
                cure="move the file elsewhere if it is no part of the dataset",
            )
    info = _parse(storage.read(place), place)
    try:
        _check_format(info, place)
        found = [_parse_split(path, info["name"], fields) for fields in info["splits"]]
    except GristmillError:
        raise
    except (KeyError, TypeError, ValueError) as e:
        raise _unusable(place, f"{type(e).__name__}: {e}") from e
    directory = TfdsDirectory(
        path=path,
        info=info,
        splits={split.name: split for split in found},
        files={name: storage.read(file.path) for name, file in files.items()},
    )
    if len(directory.splits) != len(found):
        raise _unusable(place, "two splits of the same name")
    # Now, and not at the end of the conversion.
    _ = directory.features
    return directory


def _unusable(place: str, got: str) -> InputError:
    return InputError(
        f"{place.rpartition('/')[2]} cannot be used",
        where=place,
        expected="what TFDS writes: a JSON object with name, fileFormat and splits"
        if place.endswith(TFDS_INFO_JSON)
        else "a JSON object, as TFDS writes it",
        got=got,
        cure="copy it again from where the dataset was made, or give the TFRecord "
        "files themselves as input",
    )


def _parse(data: bytes, place: str) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError as e:
        raise _unusable(place, str(e)) from e
    if not isinstance(document, dict):
        raise _unusable(place, f"a JSON {type(document).__name__}")
    return document


def _check_format(info: Mapping[str, Any], place: str) -> None:
    # Directories older than the field hold TFRecords.
    own = info.get("fileFormat") or "tfrecord"
    if own == "tfrecord" or "tfrecord" in info.get("alternativeFileFormats", ()):
        return
    raise InputError(
        "the TFDS directory does not hold TFRecord files",
        where=place,
        expected="fileFormat tfrecord",
        got=own,
        cure="it is what a conversion would make: index it in place with `gristmill "
        "index`"
        if own == "array_record"
        else "make the dataset with TFDS's default file format, or convert it first "
        "with `tfds convert_format --out_file_format=tfrecord`",
    )


def _parse_split(path: str, dataset: str, fields: Mapping[str, Any]) -> TfdsSplit:
    name = layout.check_split(fields["name"])
    records = tuple(int(length) for length in fields.get("shardLengths", ()))
    if any(length < 0 for length in records):
        raise ValueError(f"split {name} has a negative shard length")
    template = fields.get("filepathTemplate") or FILEPATH_TEMPLATE
    digits = max(5, len(str(len(records))))
    total = f"{len(records):0{digits}d}"

    def expand(index: str, count: str, escape: Callable[[str], str] = str) -> str:
        values = {
            "DATASET": escape(dataset),
            "SPLIT": escape(name),
            "FILEFORMAT": "tfrecord",
            "SHARD_INDEX": index,
            "NUM_SHARDS": count,
            "SHARD_X_OF_Y": f"{index}-of-{count}",
        }
        # Texts at even places, names of variables at odd ones.
        parts = re.split(r"\{(\w+)\}", template)
        parts[::2] = map(escape, parts[::2])
        parts[1::2] = [values[variable] for variable in parts[1::2]]
        return "".join(parts)

    relative = [expand(f"{i:0{digits}d}", total) for i in range(len(records))]
    if len(set(relative)) != len(relative):
        raise ValueError(f"split {name} names several files alike: {template}")
    for file in relative[:1]:
        layout.check_relative(file, where=layout.join(path, TFDS_INFO_JSON))
    return TfdsSplit(
        name=name,
        files=tuple(layout.join(path, file) for file in relative),
        file_records=records,
        pattern=layout.join(
            glob.escape(path), expand("?" * digits, total, glob.escape)
        ),
        relatives=expand(r"\d{5,}", r"\d{5,}", re.escape),
    )
