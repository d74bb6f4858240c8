"""Names: the kinds of files of a dataset, and where each of them is.

docs/reference/format.md shows a directory, and the table of the kinds.
"""

from __future__ import annotations

import functools
import os
import posixpath
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gristmill.dataset.base.errors import InputError, InvalidDatasetError, some_of
from gristmill.dataset.storage.paths import is_file_name

# Names that TFDS, file systems and shells accept. POSIX extended regular
# expressions, which Python's `re` reads alike.
NAME_PATTERN = "[A-Za-z0-9_][A-Za-z0-9_.+]*(-[A-Za-z0-9_.+]+)*"
SPLIT_PATTERN = "[A-Za-z0-9_]+(-[A-Za-z0-9_]+)*"

_PARTS = {
    "NAME": NAME_PATTERN,
    "SPLIT": SPLIT_PATTERN,
    "INDEX": "[0-9]{5,}",
    "COUNT": "[0-9]{5,}",
    "PART": "[0-9]{5,}",
    "ATTEMPT": "[0-9]{4,}",
    "LIST": "inputs|removed|part-[0-9]{5,}-of-[0-9]{5,}",
    "SHARD": "[^/]+",
    "COLUMN": "[A-Za-z0-9_]+",
    "WRITE": "[0-9a-f]{16}",
    "KEY": "[0-9a-f]{16}",
}
_WORD = re.compile("|".join(_PARTS))
_TOKEN = re.compile(f"{_WORD.pattern}|.")
_OPTIONAL = re.compile(r"\[(.*?)\]")

# How TFDS names shards. A table of shards can have others, of files that were there.
SHARD_NAME = "NAME-SPLIT.array_record-[WRITE-]INDEX-of-COUNT"
PART_SHARD_NAME = "NAME-SPLIT.array_record-WRITE-PART-ATTEMPT-INDEX"


class Kind(NamedTuple):
    """A kind of files.

    Attributes:
        pattern: The pattern of their paths; with a slash at the end, a directory of any
        files.
        what: A description.
        holds: The parts of records that they can hold: `records`, `values` of columns,
            or "".
    """

    pattern: str
    what: str
    holds: str = ""

    @property
    def directory(self) -> str:
        """The directory that they are in, "" for the dataset's own."""
        return self.pattern.rpartition("/")[0]

    @property
    def suffix(self) -> str:
        """The end of all their paths, whatever the parts."""
        return re.split(r"[A-Z]+\]?", self.pattern)[-1]

    def path(self, **parts: str) -> str:
        """Returns the path that has these parts."""
        return filled(self.pattern, **parts)

    def prefix(self, **parts: str) -> str:
        """Returns the beginning of the paths that have these parts."""
        return filled(self.pattern.partition("[")[0], **parts)

    def of_shard(self, shard: str) -> str:
        """Returns the path of the file that belongs to a shard."""
        return self.pattern.replace("SHARD", shard)

    def parse(self, path: str, **known: str) -> Mapping[str, str] | None:
        """Returns the parts of a path, None if it is of another kind.

        Args:
            path: The path.
            known: Parts that it must have.
        """
        return parser(self.pattern, **known)(path)


def filled(pattern: str, **parts: str) -> str:
    """Returns a pattern filled with parts, up to the first that is missing.

    >>> filled(SHARD_NAME, NAME="c4", SPLIT="train")
    'c4-train.array_record-'
    """
    plain = _OPTIONAL.sub(
        lambda text: text[1] if {*_WORD.findall(text[1])} <= parts.keys() else "",
        pattern,
    )
    missing = (word.start() for word in _WORD.finditer(plain) if word[0] not in parts)
    return _WORD.sub(lambda word: parts[word[0]], plain[: next(missing, None)])


@functools.lru_cache(maxsize=1024)
def parser(pattern: str, **known: str) -> Callable[[str], Mapping[str, str] | None]:
    """Returns a function that gives the parts of a path, None if it does not match.

    >>> parser(VALUES.pattern)("columns/c4.ar.score-0123456789abcdef")
    {'SHARD': 'c4.ar', 'COLUMN': 'score', 'KEY': '0123456789abcdef'}
    """

    def form(token: re.Match[str]) -> str:
        text = token[0]
        if text in _PARTS:
            part = re.escape(known[text]) if text in known else _PARTS[text]
            return f"(?P<{text}>{part})"
        return {"[": "(?:", "]": ")?"}.get(text) or re.escape(text)

    expression = re.compile(_TOKEN.sub(form, pattern))

    def parse(path: str) -> Mapping[str, str] | None:
        found = expression.fullmatch(path)
        if found is None:
            return None
        parts: dict[str, str | None] = found.groupdict()
        return {word: part for word, part in parts.items() if part is not None}

    return parse


_SPLIT = "index/NAME-SPLIT[.WRITE]"

DATASET = Kind("dataset.json", "what the dataset is, written last")
TFDS_INFO = Kind("dataset_info.json", "how TFDS reads it, only where TFDS can")
TFDS_FEATURES = Kind("features.json", "the features of TFDS data, for TFDS")
SHARD = Kind("SHARD", "a shard", "records")
INDEX = Kind("index/SHARD.index", "the index of a shard")
SEGMENTS = Kind("index/SHARD.segments", "the documents of a shard of packed rows")
TABLE = Kind(f"{_SPLIT}.shards.npz", "the table of shards of an edition")
JOB = Kind(f"{_SPLIT}.job.json", "what is, or was, written")
LIST = Kind(
    f"{_SPLIT}.LIST.npz", "a write's list: inputs, removed, or part-PART-of-COUNT"
)
COLUMN = Kind(f"{_SPLIT}.COLUMN-KEY.columns.npz", "the table of a column")
RESULT = Kind("index/.result-NAME-SPLIT-KEY", "the result of a run, until it is read")
VALUES = Kind("columns/SHARD.COLUMN-KEY", "the values of a shard's records", "values")
ERRORS = Kind("errors/SHARD.jsonl", "what is left out of a shard's damaged inputs")
TEMPORARY = Kind("tmp-NAME-SPLIT[.WRITE]/", "shards that are being written", "records")
UNFINISHED = Kind(".KEY.tmp", "a file being written, in any directory", "records")

KINDS = (
    *(DATASET, TFDS_INFO, TFDS_FEATURES, SHARD, INDEX, SEGMENTS, TABLE, JOB, LIST),
    *(COLUMN, RESULT, VALUES, ERRORS, TEMPORARY, UNFINISHED),
)
OF_SHARDS = tuple(kind for kind in KINDS if "SHARD" in kind.pattern)
# Files of a write that do not depend on the names of its shards.
DESCRIBING = (TABLE, JOB, LIST)
DIRECTORIES = tuple(
    dict.fromkeys(kind.directory for kind in KINDS if not kind.pattern.endswith("/"))
)


DATASET_JSON = DATASET.pattern
TFDS_INFO_JSON = TFDS_INFO.pattern
INDEX_DIR = INDEX.directory
ERRORS_DIR = ERRORS.directory


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


def write_key(split: str, mark: str) -> str:
    """Returns the key of a write, which is part of the names of its files.

    Functions of this module that take a split take such a key as well.

    Args:
        split: The split.
        mark: The id of the write, 16 hex digits; "" where its shards have the names
            that TFDS gives to those of a split.

    >>> write_key("train", ""), write_key("train", "0123456789abcdef")
    ('train', 'train.0123456789abcdef')
    """
    return f"{split}.{mark}" if mark else split


def parse_write_key(key: str) -> tuple[str, str]:
    """Returns the split and the mark of a write's key.

    Raises InputError if it is not such a key.

    >>> parse_write_key("train.0123456789abcdef")
    ('train', '0123456789abcdef')
    """
    split, dot, mark = key.partition(".")
    check_split(split)
    if dot and not re.fullmatch("[0-9a-f]{16}", mark):
        check_split(key)  # Raises, as no split has a "." in its name.
    return split, mark


def parts_of(name: str, key: str) -> dict[str, str]:
    """Returns the parts of paths that a dataset's name and a write's key give."""
    split, _, mark = key.partition(".")
    parts = {"NAME": name, "SPLIT": split}
    return {**parts, "WRITE": mark} if mark else parts


def key_in(parts: Mapping[str, str]) -> str:
    """Returns the write's key that such parts name."""
    return write_key(parts["SPLIT"], parts.get("WRITE", ""))


def shard_name(name: str, split: str, index: int, count: int) -> str:
    """Returns the file name of one shard.

    Globs that match the shards of a split match those of all its writes.

    >>> shard_name("c4", "train", 3, 64)
    'c4-train.array_record-00003-of-00064'
    >>> shard_name("c4", "train", 3, 123_456)
    'c4-train.array_record-000003-of-123456'
    >>> shard_name("c4", "train.0123456789abcdef", 3, 64)
    'c4-train.array_record-0123456789abcdef-00003-of-00064'
    """
    digits = max(5, len(str(count)))
    return f"{shard_prefix(name, split)}{index:0{digits}d}-of-{count:0{digits}d}"


@functools.lru_cache(maxsize=64)
def shard_prefix(name: str, split: str) -> str:
    """Returns the prefix of a split's shard names, whatever their number.

    >>> shard_prefix("c4", "train")
    'c4-train.array_record-'
    >>> shard_prefix("c4", "train.0123456789abcdef")
    'c4-train.array_record-0123456789abcdef-'
    """
    return filled(SHARD_NAME, **parts_of(name, split))


def shard_glob(name: str, split: str) -> str:
    """Returns a glob that matches the shards of one write, and of no other.

    >>> shard_glob("c4", "train")
    'c4-train.array_record-?????-of-*'
    """
    return shard_prefix(name, split) + ("*" if "." in split else "?????-of-*")


def shard_mark(path: str, name: str, split: str) -> str | None:
    """Returns the mark in a shard's name, None if it is not one of the split.

    >>> shard_mark("c4-train.array_record-00003-of-00064", "c4", "train")
    ''
    >>> shard_mark("c4-train.array_record-00003-of-00064.md5", "c4", "train")
    """
    for pattern in (SHARD_NAME, PART_SHARD_NAME):
        found = parser(pattern, NAME=name, SPLIT=split)(path)
        if found is not None:
            return found.get("WRITE", "")
    return None


def part_prefix(name: str, key: str, part: int) -> str:
    """Returns the prefix of the names of the shards of a part."""
    return f"{shard_prefix(name, key)}{part:05d}-"


def part_shard_name(name: str, key: str, part: int, attempt: int, index: int) -> str:
    """Returns the file name of a shard that a `Writer` makes.

    Args:
        name: The dataset's name.
        key: The `write_key` of the write.
        part: Number of the part.
        attempt: How often the part was begun anew before.
        index: Number of the shard in the part.

    >>> part_shard_name("c4", "train.0123456789abcdef", 1, 0, 7)
    'c4-train.array_record-0123456789abcdef-00001-0000-00007'
    """
    return f"{part_prefix(name, key, part)}{attempt:04d}-{index:05d}"


def part_path(name: str, key: str, part: int, parts: int) -> str:
    """Returns the path of the file that describes a part of an unfinished write."""
    return LIST.path(**parts_of(name, key), LIST=f"part-{part:05d}-of-{parts:05d}")


def index_path(shard_path: str) -> str:
    """Returns the path of a shard's index, both relative to the dataset.

    >>> index_path("c4-train.array_record-00003-of-00064")
    'index/c4-train.array_record-00003-of-00064.index'
    """
    return INDEX.of_shard(shard_path)


def segments_path(shard_path: str) -> str:
    """Returns the path of a packed shard's segment index."""
    return SEGMENTS.of_shard(shard_path)


def temporary_dir(dataset: str, name: str, split: str) -> str:
    """Returns the directory of a split's unfinished files."""
    place = TEMPORARY.path(**parts_of(name, split)).rstrip("/")
    return join(dataset, place)


def errors_path(shard_path: str) -> str:
    """Returns the path of the list of regions that were left out of a shard's inputs.

    >>> errors_path("c4-train.array_record-00003-of-00064")
    'errors/c4-train.array_record-00003-of-00064.jsonl'
    """
    return ERRORS.of_shard(shard_path)


def table_path(name: str, split: str) -> str:
    """Returns the path of a split's table of shards, relative to the dataset."""
    return TABLE.path(**parts_of(name, split))


def job_path(name: str, split: str) -> str:
    """Returns the path of a write's description, relative to the dataset."""
    return JOB.path(**parts_of(name, split))


def inputs_path(name: str, split: str) -> str:
    """Returns the path of the list of input files, relative to the dataset."""
    return LIST.path(**parts_of(name, split), LIST="inputs")


def removed_path(name: str, split: str) -> str:
    """Returns the path of the list of records that an edition leaves out."""
    return LIST.path(**parts_of(name, split), LIST="removed")


def result_path(name: str, split: str, job: str) -> str:
    """Returns the path of a note that workers leave until the commit.

    A Beam runner hands over the result of a command this way.

    Args:
        name: The dataset's name.
        split: The first split that the command is about.
        job: 16 digits that identify the command or the job.
    """
    return RESULT.path(NAME=name, SPLIT=split, KEY=job)


def split_paths(name: str, split: str) -> list[str]:
    """Returns the paths of the files that describe a split, relative to the dataset."""
    paths = (job_path, inputs_path, table_path)
    return [path(name, split) for path in paths]


def column_path(shard_path: str, column: str, attachment: str) -> str:
    """Returns the path of the values of a shard, relative to the dataset.

    Args:
        shard_path: The shard.
        column: The column's name.
        attachment: The id of the write that attached it.

    >>> column_path("c4-train.array_record-00000-of-00064", "score", "0" * 16)
    'columns/c4-train.array_record-00000-of-00064.score-0000000000000000'
    """
    return VALUES.path(SHARD=shard_path, COLUMN=column, KEY=attachment)


def column_table_path(name: str, split: str, column: str, attachment: str) -> str:
    """Returns the path of the table of a column's files, relative to the dataset."""
    parts = parts_of(name, split)
    return COLUMN.path(**parts, COLUMN=column, KEY=attachment)


def check_shard(file: str, *, where: str) -> str:
    """Returns a file name; raises InputError if no shard can have it.

    Otherwise no reader would open such a file, or the dataset has a file of that name.
    """
    taken = {DATASET_JSON, *DIRECTORIES}
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
