"""TFDS's two files about a dataset, read and written."""

from __future__ import annotations

import dataclasses
import glob
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from gristmill.dataset.base.errors import GristmillError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.features import DTYPES, FeatureSpec, Kind
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.lookup import storage_for

_Shape = tuple[int | None, ...]

# Numpy's names of types -> the list that holds them, and their dtype there.
_TENSORS: dict[str, tuple[Kind, str]] = {
    **{name: (kind, name) for kind, names in DTYPES.items() for name in names},
    "float64": ("float", "float32"),
    **dict.fromkeys(("string", "object"), ("bytes", "bytes")),
}


def parse_tfds_features(document: Mapping[str, Any]) -> dict[str, FeatureSpec]:
    """Returns the features of TFDS records, by their names in the records.

    Features that TFDS stores in its own way are left out: nested sequences, video,
    audio, and any unknown to this version.

    Args:
        document: The content of `features.json`.
    """
    try:
        return dict(_fields("", document["featuresDict"], ()))
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return {}  # From a version with another form.


def _fields(
    prefix: str, content: Any, outer: _Shape
) -> Iterator[tuple[str, FeatureSpec]]:
    for name, feature in content["features"].items():
        yield from _feature(prefix + name, feature, outer)


def _feature(
    name: str, feature: Mapping[str, Any], outer: _Shape
) -> Iterator[tuple[str, FeatureSpec]]:
    if "featuresDict" in feature:
        yield from _fields(f"{name}/", feature["featuresDict"], outer)
    elif "sequence" in feature:
        sequence = feature["sequence"]
        shape = (*outer, _size(sequence.get("length", "-1")))
        yield from _feature(name, sequence["feature"], shape)
    elif "translation" in feature:
        for language in feature["translation"]["languages"]:
            yield from _one(f"{name}/{language}", "string", outer, "string")
    elif "text" in feature:
        yield from _one(name, "string", outer, "string")
    elif "image" in feature:
        yield from _one(name, "string", outer, "image")
    elif "classLabel" in feature:
        yield from _one(name, "int64", outer, "class_label")
    else:
        tensor = feature.get("tensor", feature.get("boundingBox"))
        if tensor is not None:
            dtype = tensor["dtype"]
            sizes = tensor["shape"].get("dimensions", ())
            if tensor.get("encoding", "none") in ("none", ""):
                yield from _one(name, dtype, (*outer, *map(_size, sizes)), dtype)
            else:  # One value: the bytes of the array.
                yield from _one(name, "string", outer, "")


def _one(
    name: str, dtype: str, shape: _Shape, meaning: str
) -> Iterator[tuple[str, FeatureSpec]]:
    if dtype not in _TENSORS or None in shape[1:]:
        return
    kind, stored = _TENSORS[dtype]
    meaning = {"float64": "double"}.get(meaning, meaning)
    # A sequence without items is a feature without a list.
    optional = None in shape or 0 in shape
    yield (
        name,
        FeatureSpec(
            kind=kind, dtype=stored, shape=shape, optional=optional, type=meaning
        ),
    )


def _size(text: Any) -> int | None:
    """Returns a dimension, None for one that varies; 64-bit integers are texts."""
    size = int(text)
    return None if size < 0 else size


# Names of the files beside the data that describe it.
INFORMATION = re.compile(r"LICENSE|.+\.(?:json|txt|subwords|tokens)")
FILEPATH_TEMPLATE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"


def path_template(split: str) -> str:
    """Returns how TFDS names the shards of a split, or of an edition by its key."""
    mark = layout.parse_write_key(split)[1]
    mark = mark and f"{mark}-"
    return FILEPATH_TEMPLATE.replace("{SHARD_X_OF_Y}", f"{mark}{{SHARD_X_OF_Y}}")


# Called with what, where, expected, got and, if there is a better one, a cure.
UnusableError = Callable[..., GristmillError]
TfdsFormat = Literal["tfrecord", "array_record"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TfdsSplit:
    """One split, with paths relative to the directory.

    Attributes:
        name: Its name.
        files: Its files, in order.
        file_records: Records in each file.
        pattern: A glob pattern that matches these files.
        named_alike: A regular expression for all files that TFDS would name like this,
            whatever their number.
    """

    name: str
    files: tuple[str, ...]
    file_records: tuple[int, ...]
    pattern: str
    named_alike: str


def parse_object(data: bytes, place: str, error: UnusableError) -> dict[str, Any]:
    """Returns a JSON object; raises an error made by `error` if it is not one."""
    try:
        document = json.loads(data)
    except ValueError as e:
        got = str(e)
    else:
        if isinstance(document, dict):
            return document
        got = f"a JSON {type(document).__name__}"
    raise error(
        f"{layout.base_name(place)} cannot be used",
        where=place,
        expected="a JSON object, as TFDS writes it",
        got=got,
    )


def format_of_info(data: bytes, place: str, error: UnusableError) -> TfdsFormat:
    """Returns the format to use for the files of a TFDS directory.

    Args:
        data: The content of `dataset_info.json`.
        place: The file.
        error: As in `parse_info`.
    """
    info = parse_object(data, place, error)
    others = info.get("alternativeFileFormats")
    formats = [info.get("fileFormat") or "tfrecord"]
    formats += others if isinstance(others, list) else ()
    own = "array_record" in formats and "tfrecord" not in formats
    return "array_record" if own else "tfrecord"


def parse_info(
    data: bytes,
    place: str,
    file_format: TfdsFormat,
    error: UnusableError,
) -> tuple[dict[str, Any], dict[str, TfdsSplit]]:
    """Parses `dataset_info.json`, which is not trusted.

    Args:
        data: The content of the file.
        place: The file.
        file_format: The format of the files that are to be read.
        error: Creates the error for a file that cannot be used.

    Returns:
        The content, and the splits by name.
    """
    info = parse_object(data, place, error)
    try:
        # Checked first: the package datasets of Hugging Face also writes a file of this
        # name.
        splits = _parse_splits(info, file_format, place)
        # Directories older than the field hold TFRecords.
        own = info.get("fileFormat") or "tfrecord"
        if file_format not in (own, *info.get("alternativeFileFormats", ())):
            raise error(
                f"the TFDS directory does not hold files of format {file_format}",
                where=place,
                expected=f"fileFormat {file_format}",
                got=own,
                cure=_other_format(own, file_format),
            )
    except GristmillError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as e:
        raise error(
            f"{layout.TFDS_INFO_JSON} cannot be used",
            where=place,
            expected="what TFDS writes: a JSON object with name, fileFormat and splits",
            got=f"{type(e).__name__}: {e}",
        ) from e
    return info, splits


def _other_format(own: str, wanted: str) -> str:
    if wanted == "array_record":
        return "convert it with `gristmill convert`"
    return (
        "make the dataset with TFDS's default file format, or convert it first with "
        "`tfds convert_format --out_file_format=tfrecord`"
    )


def _parse_splits(
    info: Mapping[str, Any], file_format: str, place: str
) -> dict[str, TfdsSplit]:
    splits = {}
    for fields in info["splits"]:
        split = _parse_split(info["name"], fields, file_format, place)
        if split.name in splits:
            raise ValueError("two splits of the same name")
        splits[split.name] = split
    return splits


def _parse_split(
    dataset: str, fields: Mapping[str, Any], file_format: str, place: str
) -> TfdsSplit:
    name = layout.check_split(fields["name"])
    records = tuple(int(length) for length in fields.get("shardLengths", ()))
    if any(not 0 <= length < 1 << 62 for length in records):
        raise ValueError(f"split {name} has an impossible shard length")
    template = fields.get("filepathTemplate") or FILEPATH_TEMPLATE
    digits = max(5, len(str(len(records))))
    total = f"{len(records):0{digits}d}"

    def expand(index: str, count: str, escape: Callable[[str], str] = str) -> str:
        values = {
            "DATASET": escape(dataset),
            "SPLIT": escape(name),
            "FILEFORMAT": file_format,
            "SHARD_INDEX": index,
            "NUM_SHARDS": count,
            "SHARD_X_OF_Y": f"{index}-of-{count}",
        }
        # Texts at even places, names of variables at odd ones.
        parts = re.split(r"\{(\w+)\}", template)
        parts[::2] = map(escape, parts[::2])
        parts[1::2] = [values[variable] for variable in parts[1::2]]
        return "".join(parts)

    files = tuple(expand(f"{i:0{digits}d}", total) for i in range(len(records)))
    if len(set(files)) != len(files):
        raise ValueError(f"split {name} has files of the same name: {template}")
    for file in files[:1]:  # The other names differ in digits only.
        layout.check_relative(file, where=place)
    return TfdsSplit(
        name=name,
        files=files,
        file_records=records,
        pattern=expand("?" * digits, total, glob.escape),
        named_alike=expand(r"\d{5,}", r"\d{5,}", re.escape),
    )


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
    """Lists the files directly in a directory that can be shards, by their names.

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
        for folder in (layout.INDEX_DIR, layout.ERRORS_DIR)
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
