"""The input files of a job: found by patterns, sorted, and recognised."""

from __future__ import annotations

import dataclasses
import itertools
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, Self

import numpy as np

from gristmill.dataset.base.errors import DataLossError, InputError, some_of
from gristmill.dataset.base.gathered_rows import Gathered
from gristmill.dataset.formats.streams.inflated_stream import COMPRESSIONS
from gristmill.dataset.storage.base import FileInfo
from gristmill.dataset.storage.paths import path_texts
from gristmill.transforms.sources.formats import RecordOptions, check_nulls
from gristmill.transforms.sources.input_directories import match_inputs
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.input_formats import (
    Look,
    check_formats,
    choose_format,
    look_at,
)
from gristmill.transforms.sources.record_source import source_module

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

    def gather(self, gathered: Gathered) -> None:
        """Adds the part to those of its split."""
        gathered.notes["looked"][self.split, self.number] = self


def look_tasks(
    split: str, files: Sequence[FileInfo], *, part_files: int = PART_FILES
) -> Iterator[LookTask]:
    """Yields files in parts; one part without any if there are none.

    Args:
        split: The split whose inputs they are.
        files: All of them, in order.
        part_files: Files of a part.
    """
    parts = max(1, -(-len(files) // part_files))
    for number in range(parts):
        some = files[number * part_files : (number + 1) * part_files]
        yield LookTask(split, number, parts, tuple(map(tuple, some)))


def look_at_part(task: LookTask) -> LookedPart:
    """Looks into the files of a part."""
    return LookedPart.of(task, look_at([FileInfo(*file) for file in task.files]))  # type: ignore[arg-type]


def looked_parts(gathered: Gathered, split: str) -> list[LookedPart]:
    """Returns the parts of a split that were gathered, in order."""
    parts = (part for part in gathered.notes["looked"].values() if part.split == split)
    return sorted(parts, key=lambda part: part.number)


def looked_files(gathered: Gathered, split: str) -> tuple[list[FileInfo], list[Look]]:
    """Returns all files of a split, and the look into each.

    Raises:
        DataLossError: A part is missing.
    """
    files: list[FileInfo] = []
    looks: list[Look] = []
    found = looked_parts(gathered, split)
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
    *,
    part_files: int = PART_FILES,
) -> list[Look]:
    """Returns the looks into files, made in parts.

    Args:
        files: The files.
        look: Looks into all parts, and yields them in any order.
        part_files: Files of a part.
    """
    tasks = look_tasks("", files, part_files=part_files)
    return looked_files(Gathered.of(look(tasks)), "")[1]


# Files, and the look at the first bytes of each.
Looked = tuple[Sequence[FileInfo], Sequence[Look]]


def find_inputs(
    patterns: Sequence[str],
    *,
    options: RecordOptions | None = None,
    adapt: Callable[[RecordOptions], RecordOptions] | None = None,
    allow_empty_files: bool = False,
    allow_other_formats: bool = False,
    looked: Looked | None = None,
) -> InputFiles:
    """Lists the files that patterns match, sorted, and detects their format.

    A file that several patterns match is taken once.

    Args:
        patterns: Paths and glob patterns; a directory stands for the files in it.
        options: The user's options for the records, if any.
        adapt: Takes these options with the format of the files, and returns the options
            to use.
        allow_empty_files: Whether a file of 0 bytes counts as one without records.
        allow_other_formats: Whether some files may be of other formats.
        looked: The result of `match_files`, with the looks at first bytes, if known.

    Raises:
        InputError: A pattern matches nothing, or a file is empty or of another format,
            or the options do not fit the format.
        MissingPackageError: A package is missing that reads the format.
    """
    options = RecordOptions() if options is None else options
    if looked is None:
        found = match_files(patterns, allow_empty_files=allow_empty_files)
        looked = found, look_at(found)
    files, looks = looked
    auto = options.input_format == "auto"
    # An empty file has any format.
    filled = [
        look
        for file, look in zip(files, looks, strict=True)
        if file.size_bytes and not look.is_blank
    ]
    if auto and not filled and not (allow_empty_files or allow_other_formats):
        raise _empty([info.path for info in files], "blanks alone")
    chosen = choose_format(filled, options.input_format)
    compressions = check_formats(
        files,
        wanted=chosen,
        looks=looks,
        allow_some=allow_other_formats,
        asked=not auto,
        auto=auto,
    )
    listed = InputFiles(
        paths=tuple(info.path for info in files),
        sizes=np.array([info.size_bytes for info in files], np.int64),
        versions=tuple(info.version for info in files),
        compressions=np.array(list(map(COMPRESSIONS.index, compressions)), np.uint8),
        noted_ns=np.array([look.noted_ns for look in looks], np.int64),
    )
    options = dataclasses.replace(options, input_format=chosen)
    options = options if adapt is None else adapt(options)
    check_nulls(options, chosen)
    spec = source_module(chosen).find_spec(listed, options)
    spec = spec._replace(nulls=options.nulls)
    return dataclasses.replace(listed, spec=spec)


def match_files(
    patterns: Sequence[str], *, allow_empty_files: bool = False
) -> list[FileInfo]:
    """Lists the files that patterns match, sorted, without opening them.

    Args:
        patterns: Paths and glob patterns; a directory stands for the files in it.
        allow_empty_files: Whether a file of 0 bytes counts as one without records.

    Raises:
        InputError: A pattern matches nothing, or a file is empty.
    """
    found: dict[str, FileInfo] = {}
    for pattern in path_texts(patterns, "input"):
        found.update((info.path, info) for info in match_inputs(pattern))
    files = [found[path] for path in sorted(found)]
    empty = [info.path for info in files if not info.size_bytes]
    if empty and not allow_empty_files:
        raise _empty(empty, "0 bytes, as after an interrupted copy")
    return files


def _empty(paths: Sequence[str], got: str) -> InputError:
    return InputError(
        f"{len(paths):,} input file{'s are' if len(paths) > 1 else ' is'} empty",
        where=some_of(paths),
        expected="at least one record in each file",
        got=got,
        cure="copy them again, or leave them out: a directory as input leaves out "
        "markers such as _SUCCESS; to accept empty files, give --on-corrupt "
        "quarantine",
    )


def look_into(info: FileInfo) -> InputFile:
    """Recognises one TFRecord file by its first bytes.

    Raises:
        InputError: It has another format.
    """
    (look,) = look_at([info])
    (compression,) = check_formats([info], wanted="tfrecord", looks=[look])
    return InputFile(
        info.path, info.size_bytes, info.version, compression, look.noted_ns
    )
