"""TFDS directories as input: one job per split, and the metadata of the output.

A TFDS directory holds the files of its splits, `dataset_info.json` (which splits there
are, how their files are named, how many examples each file holds) and `features.json`
(how to decode an example).
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from gristmill.dataset.base.errors import DataLossError, InputError, some_of
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.layout import TFDS_INFO_JSON
from gristmill.dataset.metadata.manifest import chosen_split
from gristmill.dataset.metadata.shard_table import ShardTable
from gristmill.dataset.metadata.tfds import (
    INFORMATION,
    TfdsSplit,
    format_of_info,
    parse_info,
    parse_object,
    path_template,
)
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.sources.find_inputs import check_not_hugging_face

FEATURES_JSON = "features.json"

_OWN = (TFDS_INFO_JSON, layout.DATASET_JSON)
_MAX_INFORMATION_BYTES = 64 << 20  # 64 MiB; vocabularies stay far below.


_unusable = functools.partial(
    InputError,
    cure="copy it again from where the dataset was made, or give the files "
    "themselves as input",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TfdsDirectory:
    """The metadata of a TFDS directory.

    Attributes:
        path: The directory.
        info: The content of `dataset_info.json`.
        splits: All splits, by name.
        files: Files beside it that readers need (`features.json`, names of labels,
            vocabularies), by name.
        features: The content of `features.json`.
    """

    path: str
    info: Mapping[str, Any]
    splits: Mapping[str, TfdsSplit]
    files: Mapping[str, bytes]
    features: dict[str, Any]


def read_tfds_directory(path: str) -> TfdsDirectory:
    """Reads the metadata of a TFDS directory of TFRecord or ArrayRecord files.

    Raises:
        InputError: It is not one, or its metadata cannot be used.
    """
    path = path.rstrip("/") or "/"
    storage = storage_for(path)
    place = layout.join(path, TFDS_INFO_JSON)
    there = {info.path.rpartition("/")[2]: info for info in storage.list(path)}
    missing = [name for name in (TFDS_INFO_JSON, FEATURES_JSON) if name not in there]
    if missing:
        check_not_hugging_face(path, there)  # It has a dataset_info.json as well.
        raise InputError(
            "not a whole TFDS directory",
            where=path,
            expected=f"{TFDS_INFO_JSON} and {FEATURES_JSON}",
            got=f"no {' and no '.join(missing)}",
            cure="copy the missing file from where the dataset was made, or give the "
            "files themselves as input",
        )
    files = {
        name: info
        for name, info in there.items()
        if INFORMATION.fullmatch(name) and name not in _OWN
    }
    for name, file in files.items():
        if file.size_bytes > _MAX_INFORMATION_BYTES:
            raise InputError(
                f"too large to be copied as metadata of the dataset: {name}",
                where=file.path,
                expected=f"at most {_MAX_INFORMATION_BYTES:,} bytes",
                got=f"{file.size_bytes:,}",
                cure="move the file elsewhere if it is not part of the dataset",
            )
    data = storage.read(place)
    file_format = format_of_info(data, place, _unusable)
    info, splits = parse_info(data, place, file_format, _unusable)
    content = {name: storage.read(file.path) for name, file in files.items()}
    features = content[FEATURES_JSON], layout.join(path, FEATURES_JSON)
    return TfdsDirectory(
        path=path,
        info=info,
        splits=splits,
        files=content,
        features=parse_object(*features, _unusable),
    )


class TfdsConversion(NamedTuple):
    """How to convert a TFDS directory.

    Attributes:
        jobs: A job for each split that has files.
        features: The schema: the content of `features.json`.
    """

    jobs: tuple[ConversionJob, ...]
    features: dict[str, Any]


def tfds_jobs(
    directory: str,
    output: str,
    *,
    name: str | None = None,
    splits: Sequence[str] | None = None,
    like: ConversionJob | None = None,
) -> TfdsConversion:
    """Plans the conversion of a TFDS directory, a job for each split.

    Args:
        directory: The TFDS directory.
        output: The dataset's directory.
        name: The dataset's name; by default that of the TFDS dataset.
        splits: The splits to convert; by default all.
        like: A job with all other options. `features.json` has to fit the results of
            its function `map`.

    Raises:
        InputError: The directory cannot be used, or files are missing.
    """
    source = read_tfds_directory(directory)
    if _same_directory(source.path, output):
        raise InputError(
            "the output is the TFDS directory itself",
            where=output,
            expected="another directory: the metadata describes one format only",
            cure="choose another output; it can replace the input afterwards",
        )
    for asked in splits or ():
        chosen_split(asked, source.splits, source.path)
    for split in source.splits.values():
        _check_files(source.path, split)
    wanted = [
        split
        for split in source.splits.values()
        if split.files and (splits is None or split.name in splits)
    ]
    if not wanted:
        raise InputError(
            "the TFDS directory has no files to convert",
            where=source.path,
            expected="a split with shardLengths",
            got=f"the splits {some_of(splits or source.splits) or '(none)'}",
            cure="choose a split that has records, or let TFDS prepare them again",
        )
    own = name or source.info["name"]
    template = like or ConversionJob(inputs=(directory,), output=output, name=own)
    jobs = tuple(
        dataclasses.replace(
            template,
            inputs=(layout.join(glob.escape(source.path), split.pattern),),
            output=output,
            name=own,
            split=split.name,
            allow_empty_files=0 in split.file_records,
        )
        for split in wanted
    )
    return TfdsConversion(jobs, source.features)


def _check_files(path: str, split: TfdsSplit) -> None:
    """Raises InputError unless the directory has exactly the files of a split."""
    named = re.compile(re.escape(layout.join(path, "")) + split.named_alike)
    files = [layout.join(path, file) for file in split.files]
    folders = {file.rpartition("/")[0] for file in files} or {path}
    sizes = {
        info.path: info.size_bytes
        for folder in sorted(folders)
        for info in storage_for(path).list(folder)
        if named.fullmatch(info.path)
    }
    missing = [file for file in files if file not in sizes]
    surplus = sorted(sizes.keys() - set(files))
    if missing or surplus:
        what, odd = ("missing", missing) if missing else ("not among them", surplus)
        raise InputError(
            f"the files of split {split.name} are not those that {TFDS_INFO_JSON} "
            "lists",
            where=f"{path}, {what}: "
            + some_of(file.rpartition("/")[2] for file in odd),
            expected=f"{len(files):,} files",
            got=f"{len(sizes):,} files, {len(missing):,} missing, {len(surplus):,} "
            "more than listed",
            cure="copy the missing files from where the dataset was made"
            if missing
            else "move files of another version of the dataset elsewhere",
        )
    for file, records in zip(files, split.file_records, strict=True):
        if records and not sizes[file]:
            raise InputError(
                f"a file of split {split.name} is empty",
                where=file,
                expected=f"{records:,} records, as {TFDS_INFO_JSON} says",
                got="0 bytes, as after an interrupted copy",
                cure="copy it again from where the dataset was made",
            )


def _same_directory(first: str, second: str) -> bool:
    if "://" in first or "://" in second:
        return first.rstrip("/") == second.rstrip("/")
    return os.path.realpath(first) == os.path.realpath(second)


def check_records_read(split: TfdsSplit, table: ShardTable, *, where: str) -> None:
    """Compares the records read from each file with `shardLengths`.

    Records are counted before a user's function drops or adds some. Files with skipped
    damage are not compared, since the number of lost records is unknown.

    Raises:
        DataLossError: They differ.
    """
    expected = np.array(split.file_records, np.int64)
    files = table.columns["span_file"]
    got = np.zeros(max(len(expected), int(files.max(initial=-1)) + 1), np.int64)
    np.add.at(got, files, table.columns["span_records"])
    expected = np.pad(expected, (0, len(got) - len(expected)))
    spans = np.diff(table.columns["span_ends"], prepend=0)
    damaged = np.repeat(table.columns["skipped_regions"] > 0, spans)
    differs = got != expected
    differs[files[damaged]] = False
    if not differs.any():
        return
    file = int(np.flatnonzero(differs)[0])
    path = split.files[file] if file < len(split.files) else "a file that came later"
    raise DataLossError(
        f"split {split.name} does not hold the records that {TFDS_INFO_JSON} says",
        where=f"{where}, {int(differs.sum()):,} of {len(got):,} files, such as {path}",
        expected=f"{int(expected.sum()):,} records, {expected[file]:,} in this file",
        got=f"{int(got.sum()):,} records, {got[file]:,} in this file",
        cure="copy the dataset again from where it was made. If the files are right, "
        f"correct shardLengths in {TFDS_INFO_JSON}; finished shards are kept",
    )


def tfds_metadata(
    source: TfdsDirectory, *, name: str, tables: Mapping[str, ShardTable]
) -> dict[str, bytes]:
    """Returns the files by which TFDS reads the converted dataset.

    `tfds.builder_from_directory(output).as_data_source()` needs no more than these.
    Fields of `dataset_info.json` that do not concern files are kept. A split is omitted
    if it is not in the output, if its shards do not have TFDS's names, or if it has no
    records, as TFDS would then fail to open any split.

    Args:
        source: The input's metadata.
        name: The output's name.
        tables: The shards of the output's splits with a single edition, by its
            `layout.write_key`.

    Returns:
        The content of each file by name, `dataset_info.json` last: TFDS considers a
        directory without it unfinished.
    """
    splits = []
    keys = {layout.parse_write_key(key)[0]: key for key in tables}
    for old in source.info["splits"]:
        key = keys.get(old["name"])
        if key is None or not (table := tables[key]).total("records"):
            continue
        names = (
            layout.shard_name(name, key, shard, len(table))
            for shard in range(len(table))
        )
        if any(path != wanted for path, wanted in zip(table.paths, names, strict=True)):
            continue
        # Protocol buffers write 64-bit integers as text. The size is that of the
        # examples, as the writers of TFDS count it.
        fields = {
            "filepathTemplate": path_template(key),
            "shardLengths": [str(records) for records in table.records.tolist()],
            "numBytes": str(table.total("raw_bytes")),
        }
        splits.append(old | fields)
    info = {**source.info, "name": name, "fileFormat": "array_record", "splits": splits}
    # The other formats are not in the output.
    info.pop("alternativeFileFormats", None)
    text = json.dumps(info, indent=2) + "\n"
    return {**source.files, TFDS_INFO_JSON: text.encode()}
