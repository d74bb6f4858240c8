"""The dataset and the split that a file name points to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gristmill.dataset.base.errors import InputError, some_of

# As TFDS names files: NAME-SPLIT.FORMAT-00000-of-00010. Names of a later edition have
# its number before their own.
_TFDS = re.compile(
    r"(.+)-(\w+)\.(?:array_record|tfrecords?)-(?:e(\d{5,})-)?\d{5,}-of-(\d{5,})"
)
# As others do: NAME-00000-of-00010, with or without an ending.
_NUMBERED = re.compile(r"(.+?)[-_.]\d{5,}-of-\d{5,}(?:\..+)?")
_SHARD = re.compile(r"\d{5,}")
_SPLITS = frozenset(
    ("train", "training", "val", "valid", "validation", "dev", "test", "eval")
)


class FileName(NamedTuple):
    """The parts of a file name; None for those that it lacks.

    Attributes:
        dataset: Name of the dataset.
        split: Name of the split.
        split_files: Number of files of the split, which only names in the style of TFDS
            have; of its edition, if the split has several.
        edition: The edition that the file belongs to.
    """

    dataset: str | None
    split: str | None
    split_files: int | None = None
    edition: int = 1


def parse_file_name(path: str) -> FileName:
    """Returns the parts of a file name, and of its directory.

    >>> parse_file_name("c4/c4-train_small.tfrecord-00003-of-00008")
    FileName(dataset='c4', split='train_small', split_files=8, edition=1)
    >>> parse_file_name("imagenet/validation-00003-of-00128.gz")
    FileName(dataset=None, split='validation', split_files=None, edition=1)
    >>> parse_file_name("texts/dev/part-7.tfrecord")
    FileName(dataset=None, split='dev', split_files=None, edition=1)
    """
    parent, _, file = path.rpartition("/")
    if named := _TFDS.fullmatch(file):
        return FileName(named[1], named[2], int(named[4]), int(named[3] or 1))
    words = re.findall("[a-z]+", file.lower())
    folder = parent.rpartition("/")[2].lower()
    found = _SPLITS.intersection(words) or _SPLITS.intersection([folder])
    # If there are several words, none names the split.
    split = next(iter(found)) if len(found) == 1 else None
    dataset = None
    if numbered := _NUMBERED.fullmatch(file):
        parts = re.split("[-_.]", numbered[1])
        dataset = "-".join(part for part in parts if part.lower() != split) or None
    return FileName(dataset, split)


class JoinedFiles(NamedTuple):
    """The splits and datasets of files, by their names, with numbers of files.

    Attributes:
        splits: The splits.
        datasets: The datasets.
    """

    splits: Counter[str]
    datasets: Counter[str]

    @classmethod
    def of(cls, paths: Iterable[str]) -> JoinedFiles:
        """Counts the files of each split and dataset."""
        joined = cls(Counter(), Counter())
        # Most of a million names differ in the number of the shard only.
        alike = Counter(_SHARD.sub("00000", path) for path in paths)
        for path, count in alike.items():
            name = parse_file_name(path)
            if name.split is not None:
                joined.splits[name.split] += count
            if name.dataset is not None:
                joined.datasets[name.dataset] += count
        return joined

    def notice(self) -> str | None:
        """Returns the splits or datasets that are joined, None for one of each."""
        for kind, counts in (("splits", self.splits), ("datasets", self.datasets)):
            if len(counts) > 1:
                return f"files of several {kind} are joined: {listed(counts)}"
        return None


def listed(counts: Counter[str]) -> str:
    """Returns names with their numbers of files, for a message.

    >>> listed(Counter(train=1200, test=1))
    'train (1,200 files), test (1 file)'
    """
    return some_of(
        f"{name} ({count:,} {'file' if count == 1 else 'files'})"
        for name, count in counts.most_common()
    )


def check_joined(patterns: Sequence[str], paths: Iterable[str]) -> str | None:
    """Checks which splits and datasets a list of files joins.

    Files of several patterns are meant to be joined.

    Returns:
        A notice for the user of what is joined, or None.

    Raises:
        InputError: A single pattern matches files of several splits.
    """
    joined = JoinedFiles.of(paths)
    splits = joined.splits
    if len(patterns) == 1 and len(splits) > 1:
        raise InputError(
            "the pattern matches files of several splits",
            where=patterns[0],
            expected="files of one split",
            got=listed(splits),
            cure="give a pattern of one split, or the directory of the dataset and the "
            "split; to join them on purpose, give a list with a pattern of each",
        )
    return joined.notice()
