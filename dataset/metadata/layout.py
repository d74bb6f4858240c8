"""Names: where each file of a dataset is.

`kinds` has the table of them; docs/reference/format.md shows a directory.
"""

from __future__ import annotations

import functools
import os
import posixpath
import re
from collections.abc import Mapping

from gristmill.dataset.base.errors import InputError, InvalidDatasetError, some_of
from gristmill.dataset.metadata import kinds
from gristmill.dataset.metadata.kinds import NAME_PATTERN, SPLIT_PATTERN
from gristmill.dataset.storage.paths import is_file_name

DATASET_JSON = kinds.DATASET.pattern
TFDS_INFO_JSON = kinds.TFDS_INFO.pattern
INDEX_DIR = kinds.INDEX.directory
ERRORS_DIR = kinds.ERRORS.directory
COLUMNS_DIR = kinds.VALUES.directory


def join(directory: str, *parts: str) -> str:
    """Joins path parts with forward slashes, for local paths and URLs alike."""
    return posixpath.join(directory, *parts)


def base_name(directory: str) -> str:
    """Returns the last part of a directory's path, made absolute if it has none.

    >>> base_name("gs://bucket/c4")
    'c4'
    """
    if "://" not in directory:
        directory = os.path.abspath(directory)
    return directory.rstrip("/").rpartition("/")[2]


def check_name(name: str) -> str:
    """Returns a dataset's name; raises InputError if file names cannot contain it."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise InputError(
            "dataset name cannot be part of file names",
            expected="letters, digits, '_', '.', '+' and single inner '-'",
            got=repr(name),
            cure="choose another with --name",
        )
    return name


def check_split(split: str) -> str:
    """Returns a split's name; raises InputError if TFDS or file names forbid it."""
    if not re.fullmatch(SPLIT_PATTERN, split):
        raise InputError(
            "split name is not usable",
            expected="letters, digits, '_' and single inner '-'",
            got=repr(split),
            cure="choose another with --split",
        )
    return split


def edition_key(split: str, edition: int) -> str:
    """Returns the key of an edition of a split, for file names and jobs.

    The key of the first edition is the split's name. Functions of this module that take
    a split take such a key as well.

    >>> edition_key("train", 1), edition_key("train", 2)
    ('train', 'train.e00002')
    """
    return split if edition == 1 else f"{split}.e{edition:05d}"


def parse_edition_key(key: str) -> tuple[str, int]:
    """Returns the split and the number of the edition that a key stands for.

    Raises InputError if it is not such a key.

    >>> parse_edition_key("train.e00002")
    ('train', 2)
    """
    split, _, mark = key.partition(".")
    check_split(split)
    edition = int(mark[1:]) if re.fullmatch(r"e[0-9]{5,9}", mark) else 1
    if edition_key(split, edition) != key:
        check_split(key)  # Raises, as no split has a "." in its name.
    return split, edition


def edition_mark(key: str) -> str:
    """Returns the mark in shard names for the edition that a key stands for.

    >>> edition_mark("train.e00002"), edition_mark("train")
    ('e00002-', '')
    """
    _, _, mark = key.partition(".")
    return mark and f"{mark}-"


def parts_of(name: str, key: str) -> dict[str, str]:
    """Returns the parts of `kinds` that a dataset's name and an edition's key give."""
    split, _, mark = key.partition(".")
    parts = {"NAME": name, "SPLIT": split}
    return {**parts, "EDITION": mark[1:]} if mark else parts


def edition_in(parts: Mapping[str, str]) -> int:
    """Returns the edition that such parts name."""
    return int(parts.get("EDITION", 1))


def shard_name(name: str, split: str, index: int, count: int) -> str:
    """Returns the file name of one shard.

    Globs that match the shards of a split match those of its editions, and sort them
    after it.

    >>> shard_name("c4", "train", 3, 64)
    'c4-train.array_record-00003-of-00064'
    >>> shard_name("c4", "train", 3, 123_456)
    'c4-train.array_record-000003-of-123456'
    >>> shard_name("c4", "train.e00002", 3, 64)
    'c4-train.array_record-e00002-00003-of-00064'
    """
    digits = max(5, len(str(count)))
    return f"{shard_prefix(name, split)}{index:0{digits}d}-of-{count:0{digits}d}"


@functools.lru_cache(maxsize=64)
def shard_prefix(name: str, split: str) -> str:
    """Returns the prefix of a split's shard names, whatever their number.

    >>> shard_prefix("c4", "train")
    'c4-train.array_record-'
    >>> shard_prefix("c4", "train.e00002")
    'c4-train.array_record-e00002-'
    """
    return kinds.filled(kinds.SHARD_NAME, **parts_of(name, split))


def shard_glob(name: str, split: str) -> str:
    """Returns a glob that matches the shards of one edition, and of no other.

    >>> shard_glob("c4", "train"), shard_glob("c4", "train.e00002")
    ('c4-train.array_record-[0-9]*', 'c4-train.array_record-e00002-*')
    """
    marked = "." in split
    return shard_prefix(name, split) + ("*" if marked else "[0-9]*")


def edition_of(shard_path: str, name: str, split: str) -> int:
    """Returns the edition of a shard, by its name; 1 without a mark.

    >>> edition_of("c4-train.array_record-e00002-00003-of-00064", "c4", "train")
    2
    """
    return named_edition(shard_path, name, split) or 1


def named_edition(path: str, name: str, split: str) -> int | None:
    """Returns the edition that has a shard of this name, None if there is none.

    >>> named_edition("c4-train.array_record-00003-of-00064", "c4", "train")
    1
    >>> named_edition("c4-train.array_record-00003-of-00064.md5", "c4", "train")
    """
    found = kinds.parser(kinds.SHARD_NAME, NAME=name, SPLIT=split)(path)
    return None if found is None else edition_in(found)


def index_path(shard_path: str) -> str:
    """Returns the path of a shard's index, both relative to the dataset.

    >>> index_path("c4-train.array_record-00003-of-00064")
    'index/c4-train.array_record-00003-of-00064.index'
    """
    return kinds.INDEX.of_shard(shard_path)


def segments_path(shard_path: str) -> str:
    """Returns the path of a packed shard's segment index."""
    return kinds.SEGMENTS.of_shard(shard_path)


def temporary_dir(dataset: str, name: str, split: str) -> str:
    """Returns the directory of a split's unfinished files."""
    place = kinds.PARTS.path(**parts_of(name, split)).rstrip("/")
    return join(dataset, place)


def errors_path(shard_path: str) -> str:
    """Returns the path of the list of what is left out of a shard's inputs.

    >>> errors_path("c4-train.array_record-00003-of-00064")
    'errors/c4-train.array_record-00003-of-00064.jsonl'
    """
    return kinds.ERRORS.of_shard(shard_path)


def table_path(name: str, split: str) -> str:
    """Returns the path of a split's table of shards, relative to the dataset."""
    return kinds.TABLE.path(**parts_of(name, split))


def job_path(name: str, split: str) -> str:
    """Returns the path of a conversion's description, relative to the dataset."""
    return kinds.JOB.path(**parts_of(name, split))


def inputs_path(name: str, split: str) -> str:
    """Returns the path of the list of input files, relative to the dataset."""
    return kinds.INPUTS.path(**parts_of(name, split))


def write_path(name: str, split: str) -> str:
    """Returns the path of the description of an unfinished write of records."""
    return kinds.WRITE.path(**parts_of(name, split))


def removed_path(name: str, split: str) -> str:
    """Returns the path of the list of records that an edition leaves out."""
    return kinds.REMOVED.path(**parts_of(name, split))


def result_path(name: str, split: str, job: str) -> str:
    """Returns the path where workers leave a note until the commit.

    A Beam runner hands over the result of a command this way.

    Args:
        name: The dataset's name.
        split: The first split that the command is about.
        job: 16 digits that identify the command or the job.
    """
    return kinds.RESULT.path(NAME=name, SPLIT=split, KEY=job)


def split_paths(name: str, split: str) -> list[str]:
    """Returns the paths of the files that describe a split, relative to the dataset."""
    paths = (job_path, inputs_path, table_path, write_path)
    return [path(name, split) for path in paths]


def column_path(shard_path: str, column: str, attachment: str) -> str:
    """Returns the path of the values of a shard, relative to the dataset.

    Args:
        shard_path: The shard.
        column: The column's name.
        attachment: 16 digits that identify what attached it.

    >>> column_path("c4-train.array_record-00000-of-00064", "score", "0" * 16)
    'columns/c4-train.array_record-00000-of-00064.score-0000000000000000'
    """
    return kinds.VALUES.path(SHARD=shard_path, COLUMN=column, KEY=attachment)


def column_table_path(name: str, split: str, column: str, attachment: str) -> str:
    """Returns the path of the table of a column's files, relative to the dataset."""
    parts = parts_of(name, split)
    return kinds.COLUMN.path(**parts, COLUMN=column, KEY=attachment)


def attachment_path(name: str, split: str, attachment: str) -> str:
    """Returns the path of the description of columns that are being attached."""
    return kinds.ATTACHMENT.path(NAME=name, SPLIT=split, KEY=attachment)


def check_shard(file: str, *, where: str) -> str:
    """Returns a file name; raises InputError if no shard can have it.

    Otherwise no reader would open such a file, or the dataset has a file of that name.
    """
    taken = {DATASET_JSON, *kinds.DIRECTORIES}
    if re.search(r"[/\\\0]", file) or file in taken | {".", ".."}:
        raise InputError(
            "file name cannot be the name of a shard",
            where=where,
            expected="a name without / and \\, not " + some_of(sorted(taken - {""})),
            got=repr(file),
            cure="rename the input, or choose another prefix or suffix",
        )
    return file


def check_relative(path: str, *, where: str) -> str:
    """Returns a path that a dataset names, if it stays inside the dataset.

    Raises InvalidDatasetError if it is absolute, a URL, or climbs out.
    """
    parts = path.split("/")
    if (
        not path
        or not is_file_name(path)
        or "\\" in path
        or "://" in path
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise InvalidDatasetError(
            "dataset names a file outside of its own directory, or one that cannot be",
            where=where,
            expected="a relative path without '..'",
            got=ascii(path),
            cure="do not read this dataset unless you trust where it came from",
        )
    return path
