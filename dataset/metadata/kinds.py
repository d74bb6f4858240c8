"""Kinds: the one table of the files that a dataset can have.

Whoever looks for files of a dataset, to read, compare or delete them, asks this table;
docs/reference/format.md shows it. A pattern is a path in the dataset. Words in capitals
stand for a part of it, and brackets enclose what may be missing.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

# What TFDS, file systems and shells accept in names.
# POSIX extended regular expressions, which Python's `re` reads alike.
NAME_PATTERN = "[A-Za-z0-9_][A-Za-z0-9_.+]*(-[A-Za-z0-9_.+]+)*"
SPLIT_PATTERN = "[A-Za-z0-9_]+(-[A-Za-z0-9_]+)*"

_PARTS = {
    "NAME": NAME_PATTERN,
    "SPLIT": SPLIT_PATTERN,
    "INDEX": "[0-9]{5,}",
    "COUNT": "[0-9]{5,}",
    "PART": "[0-9]{5,}",
    "ATTEMPT": "[0-9]{4,}",
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
        pattern: Their paths. One that ends with a slash is a directory of any files.
        what: What they are.
        holds: What of a dataset's records can be in them: `records`, `values` of
            columns, or nothing.
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
        """How the paths end, whatever their parts are."""
        return re.split(r"[A-Z]+\]?", self.pattern)[-1]

    def path(self, **parts: str) -> str:
        """Returns the path that has these parts."""
        return filled(self.pattern, **parts)

    def prefix(self, **parts: str) -> str:
        """Returns how the paths begin that have these parts."""
        return filled(self.pattern.partition("[")[0], **parts)

    def of_shard(self, shard: str) -> str:
        """Returns the path of the file that belongs to a shard."""
        return self.pattern.replace("SHARD", shard)

    def parse(self, path: str, **known: str) -> Mapping[str, str] | None:
        """Returns the parts of a path, None if it is of another kind.

        Args:
            path: The path.
            known: Parts that it has to have.
        """
        return parser(self.pattern, **known)(path)


def filled(pattern: str, **parts: str) -> str:
    """Returns a pattern with its parts, up to the first that has to be given.

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
    """Returns a function that gives the parts of a path, None for one of other form.

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
INPUTS = Kind(f"{_SPLIT}.inputs.npz", "the files that were converted")
REMOVED = Kind(f"{_SPLIT}.removed.npz", "the records that an edition leaves out")
PART = Kind(f"{_SPLIT}.part-PART-of-COUNT.npz", "a part of an unfinished write")
COLUMN = Kind(f"{_SPLIT}.COLUMN-KEY.columns.npz", "the table of a column")
RESULT = Kind("index/.result-NAME-SPLIT-KEY", "the result of a run, until it is read")
VALUES = Kind("columns/SHARD.COLUMN-KEY", "the values of a shard's records", "values")
ERRORS = Kind("errors/SHARD.jsonl", "what is left out of a shard's damaged inputs")
TEMPORARY = Kind("tmp-NAME-SPLIT[.WRITE]/", "shards that are being written", "records")
UNFINISHED = Kind(".KEY.tmp", "a file being written, in any directory", "records")

KINDS = (
    *(DATASET, TFDS_INFO, TFDS_FEATURES, SHARD, INDEX, SEGMENTS, TABLE, JOB, INPUTS),
    *(REMOVED, PART, COLUMN, RESULT, VALUES, ERRORS, TEMPORARY, UNFINISHED),
)
OF_SHARDS = tuple(kind for kind in KINDS if "SHARD" in kind.pattern)
# What is there of a write, whatever its shards are called.
DESCRIBING = (TABLE, JOB, INPUTS, REMOVED, PART)
DIRECTORIES = tuple(
    dict.fromkeys(kind.directory for kind in KINDS if not kind.pattern.endswith("/"))
)
