"""Names: where each file of a dataset is.

```
c4/                                           the dataset's directory
  dataset.json                                written last: without it, no dataset
  c4-train.array_record-00000-of-00064        shards, named as TFDS names them
  index/
    c4-train.array_record-00000-of-00064.index
    c4-train.array_record-00000-of-00064.segments  only of packed shards
    c4-train.shards.npz                       the table of shards of a split
    c4-train.job.json                         what is, or was, being converted
    c4-train.inputs.npz                       from which files
    c4-train.e00002.shards.npz                the same files of the second edition
    c4-train.e00003.removed.npz               records that edition 3 leaves out
    c4-train.score-0123456789abcdef.columns.npz  only of columns: the table of one
    c4-train.attach-0123456789abcdef.json     while columns are being attached
  c4-train.array_record-e00002-00000-of-00003 shards of the second edition
  columns/                                    only if there are columns
    c4-train.array_record-00000-of-00064.score-0123456789abcdef
  quarantine/                                 only if bad input was set aside
  tmp-c4-train/                               only while work continues
```
"""

from __future__ import annotations

import os
import posixpath
import re

from gristmill.dataset.base.errors import InputError, InvalidDatasetError
from gristmill.dataset.storage.paths import is_file_name

DATASET_JSON = "dataset.json"
TFDS_INFO_JSON = "dataset_info.json"  # How TFDS describes a directory.
INDEX_DIR = "index"
QUARANTINE_DIR = "quarantine"
COLUMNS_DIR = "columns"
RESULT_PREFIX = "index/.result-"  # Of the files in `result_path`.

# What TFDS, file systems and shells accept in names.
# POSIX extended regular expressions, which Python's `re` reads alike.
NAME_PATTERN = "[A-Za-z0-9_][A-Za-z0-9_.+]*(-[A-Za-z0-9_.+]+)*"
SPLIT_PATTERN = "[A-Za-z0-9_]+(-[A-Za-z0-9_]+)*"


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


def described_edition(path: str, name: str, split: str) -> int | None:
    """Returns the edition of a split that a file describes, or None.

    >>> described_edition("index/c4-train.e00002.shards.npz", "c4", "train")
    2
    >>> described_edition("index/c4-train.job.json", "c4", "train")
    1
    """
    own = join(INDEX_DIR, f"{name}-{split}")
    if not path.startswith(own):
        return None
    kinds = "job[.]json|(?:inputs|shards|removed)[.]npz|write[.]json"
    found = re.fullmatch(rf"(?:[.]e([0-9]{{5,9}}))?[.](?:{kinds})", path[len(own) :])
    return int(found[1] or 1) if found else None


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


def shard_prefix(name: str, split: str) -> str:
    """Returns the prefix of a split's shard names, whatever their number.

    >>> shard_prefix("c4", "train")
    'c4-train.array_record-'
    >>> shard_prefix("c4", "train.e00002")
    'c4-train.array_record-e00002-'
    """
    return f"{name}-{split.partition('.')[0]}.array_record-{edition_mark(split)}"


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
    prefix = re.escape(shard_prefix(name, split))
    marked = re.match(f"{prefix}e([0-9]{{5,9}})-", shard_path)
    return int(marked[1]) if marked else 1


def named_edition(path: str, name: str, split: str) -> int | None:
    """Returns the edition that has a shard of this name, None if there is none.

    >>> named_edition("c4-train.array_record-00003-of-00064", "c4", "train")
    1
    >>> named_edition("c4-train.array_record-00003-of-00064.md5", "c4", "train")
    """
    prefix = re.escape(shard_prefix(name, split))
    named = re.fullmatch(f"{prefix}(?:e[0-9]{{5,9}}-)?[0-9]{{5,}}-of-[0-9]{{5,}}", path)
    return edition_of(path, name, split) if named else None


def index_path(shard_path: str) -> str:
    """Returns the path of a shard's index, both relative to the dataset.

    >>> index_path("c4-train.array_record-00003-of-00064")
    'index/c4-train.array_record-00003-of-00064.index'
    """
    return join(INDEX_DIR, f"{shard_path}.index")


def segments_path(shard_path: str) -> str:
    """Returns the path of a packed shard's segment index.

    >>> segments_path("c4-train.array_record-00003-of-00064")
    'index/c4-train.array_record-00003-of-00064.segments'
    """
    return join(INDEX_DIR, f"{shard_path}.segments")


def temporary_dir(dataset: str, name: str, split: str) -> str:
    """Returns the directory of a split's unfinished files."""
    return join(dataset, f"tmp-{name}-{split}")


def quarantine_paths(shard_path: str) -> tuple[str, str]:
    """Returns the paths of the bytes set aside for a shard and of the list of regions.

    >>> quarantine_paths("c4-train.array_record-00003-of-00064")[1]
    'quarantine/c4-train.array_record-00003-of-00064.jsonl'
    """
    base = join(QUARANTINE_DIR, shard_path)
    return f"{base}.bin", f"{base}.jsonl"


def table_path(name: str, split: str) -> str:
    """Returns the path of a split's table of shards, relative to the dataset."""
    return join(INDEX_DIR, f"{name}-{split}.shards.npz")


def job_path(name: str, split: str) -> str:
    """Returns the path of a conversion's description, relative to the dataset."""
    return join(INDEX_DIR, f"{name}-{split}.job.json")


def inputs_path(name: str, split: str) -> str:
    """Returns the path of the list of input files, relative to the dataset."""
    return join(INDEX_DIR, f"{name}-{split}.inputs.npz")


def write_path(name: str, split: str) -> str:
    """Returns the path of the description of an unfinished write of records."""
    return join(INDEX_DIR, f"{name}-{split}.write.json")


def removed_path(name: str, split: str) -> str:
    """Returns the path of the list of records that an edition leaves out."""
    return join(INDEX_DIR, f"{name}-{split}.removed.npz")


def result_path(name: str, split: str, job: str) -> str:
    """Returns the path where workers leave a note until the commit.

    A Beam runner hands over the result of a command this way.

    Args:
        name: The dataset's name.
        split: The first split that the command is about.
        job: 16 digits that identify the command or the job.
    """
    return f"{RESULT_PREFIX}{name}-{split}-{job}"


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
    return join(COLUMNS_DIR, f"{shard_path}.{column}-{attachment}")


def column_table_path(name: str, split: str, column: str, attachment: str) -> str:
    """Returns the path of the table of a column's files, relative to the dataset."""
    return join(INDEX_DIR, f"{name}-{split}.{column}-{attachment}.columns.npz")


def attachment_path(name: str, split: str, attachment: str) -> str:
    """Returns the path of the description of columns that are being attached."""
    return join(INDEX_DIR, f"{name}-{split}.attach-{attachment}.json")


def attachment_of(path: str, name: str, split: str) -> tuple[int, str] | None:
    """Returns the edition and the attachment of a table of a column, or None.

    The edition of a description of columns that are being attached is 0.

    >>> attachment_of("index/c4-train.e00002.score-0123456789abcdef.columns.npz",
    ...               "c4", "train")
    (2, '0123456789abcdef')
    """
    own = join(INDEX_DIR, f"{name}-{split}.")
    if not path.startswith(own):
        return None
    rest, digits = path[len(own) :], "-([0-9a-f]{16})"
    if begun := re.fullmatch(rf"attach{digits}[.]json", rest):
        return 0, begun[1]
    pattern = rf"(?:e([0-9]{{5,9}})[.])?[A-Za-z0-9_]+{digits}[.]columns[.]npz"
    found = re.fullmatch(pattern, rest)
    return (int(found[1] or 1), found[2]) if found else None


def check_shard(file: str, *, where: str) -> str:
    """Returns a file name; raises InputError if no shard can have it.

    Otherwise no reader would open such a file, or the dataset has a file of that name.
    """
    if re.search(r"[/\\\0]", file) or file in (
        *("", ".", ".."),
        *(DATASET_JSON, INDEX_DIR, QUARANTINE_DIR, COLUMNS_DIR),
    ):
        raise InputError(
            "file name cannot be the name of a shard",
            where=where,
            expected=f"a name without / and \\, not {DATASET_JSON}, {INDEX_DIR}, "
            f"{QUARANTINE_DIR} or {COLUMNS_DIR}",
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
