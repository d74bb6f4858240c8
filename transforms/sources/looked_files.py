"""Looks into input files, in parts that any worker can take.

A listing gives names, sizes and versions at about 30 microseconds a file. A look at the
first bytes of each takes a request, and many times as long: so that work is divided.
"""

from __future__ import annotations

import itertools
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Self

from gristmill.dataset.base.errors import DataLossError
from gristmill.dataset.storage.base import FileInfo
from gristmill.transforms.sources.input_formats import Look, look_at

PART_FILES = 1000

# Returns the looks at the first bytes of files, in order.
LookAt = Callable[[Sequence[FileInfo]], list[Look]]


class LookTask(NamedTuple):
    """Some of the files that the inputs of a split match.

    Attributes:
        split: The split.
        number: Number of the part, among those of all files in order.
        parts: Number of parts.
        files: The files, as plain tuples: elements of pipelines should be small.
    """

    split: str
    number: int
    parts: int
    files: tuple[tuple[object, ...], ...]


class LookedPart(NamedTuple):
    """The looks into such files; see `LookTask`.

    Attributes:
        split: The split.
        number: Number of the part.
        parts: Number of parts.
        packed: Files and looks.
    """

    split: str
    number: int
    parts: int
    packed: bytes

    @classmethod
    def of(cls, task: LookTask, looks: Sequence[Look]) -> Self:
        """Returns the part with the looks into its files."""
        packed = zlib.compress(pickle.dumps((task.files, looks)), 1)
        return cls(*task[:3], packed)

    def unpacked(self) -> tuple[Iterator[FileInfo], list[Look]]:
        """Returns the files, and the look into each."""
        files, looks = pickle.loads(zlib.decompress(self.packed))
        return itertools.starmap(FileInfo, files), looks


def look_tasks(split: str, files: Sequence[FileInfo]) -> Iterator[LookTask]:
    """Yields files in parts; one part without any if there are none.

    Args:
        split: The split whose inputs they are.
        files: All of them, in order.
    """
    parts = max(1, -(-len(files) // PART_FILES))
    for number in range(parts):
        some = files[number * PART_FILES : (number + 1) * PART_FILES]
        yield LookTask(split, number, parts, tuple(map(tuple, some)))


def look_at_part(task: LookTask) -> LookedPart:
    """Looks into the files of a part."""
    return LookedPart.of(task, look_at([FileInfo(*file) for file in task.files]))  # type: ignore[arg-type]


class LookedFiles:
    """The parts of any number of splits. Adds up in any order."""

    def __init__(self) -> None:
        self._parts: dict[tuple[str, int], LookedPart] = {}

    def add(self, part: LookedPart) -> None:
        """Takes a part."""
        self._parts[part.split, part.number] = part

    def extend(self, other: LookedFiles) -> None:
        """Takes all parts of another collection."""
        self._parts |= other._parts

    def parts(self, split: str) -> Iterator[LookedPart]:
        """Yields the parts of a split, in order."""
        for key in sorted(self._parts):
            if key[0] == split:
                yield self._parts[key]

    def files(self, split: str) -> tuple[list[FileInfo], list[Look]]:
        """Returns all files of a split, and the look into each.

        Raises:
            DataLossError: A part is missing.
        """
        files: list[FileInfo] = []
        looks: list[Look] = []
        found = list(self.parts(split))
        if not found or len(found) != found[0].parts:
            raise DataLossError(
                "not all parts of the listing of the inputs came back",
                where=f"split {split}",
                expected=f"{found[0].parts:,} parts" if found else "one part at least",
                got=f"{len(found):,}",
                cure="run the same command again; if it repeats, please report it",
            )
        for part in found:
            some, seen = part.unpacked()
            files += some
            looks += seen
        return files, looks


def looks_of(
    files: Sequence[FileInfo],
    look: Callable[[Iterable[LookTask]], Iterable[LookedPart]],
) -> list[Look]:
    """Returns the looks into files, made in parts.

    Args:
        files: The files.
        look: Looks into all parts, and yields them in any order.
    """
    looked = LookedFiles()
    for part in look(look_tasks("", files)):
        looked.add(part)
    return looked.files("")[1]
