"""Parts of TFRecord files: listed, walked through, and joined to ranges to read."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam

from gristmill.dataset.formats.file_formats import check_joined
from gristmill.dataset.storage.base import FileInfo
from gristmill.transforms.beam.job_metrics import report_sources
from gristmill.transforms.beam.read_ranges import FileRange
from gristmill.transforms.sources.find_inputs import look_into, match_files
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.streams.frame_walk import (
    Chain,
    join_walks,
    walk_frames,
)

_log = logging.getLogger(__name__)


class FilePart(NamedTuple):
    """A part of a file as it was listed; not yet known is how it is compressed."""

    file: FileInfo
    begin_bytes: int
    end_bytes: int


class FileWalk(NamedTuple):
    """What was found in a part of an uncompressed file, or in a whole other one."""

    file: InputFile
    begin_bytes: int
    chains: tuple[Chain, ...]


def list_parts(
    patterns: tuple[str, ...], allow_empty_files: bool, part_bytes: int
) -> Iterator[FilePart]:
    """Yields the parts of the files that patterns match together.

    Args:
        patterns: Paths and glob patterns.
        allow_empty_files: Whether a file of 0 bytes is one without records.
        part_bytes: Least size of a part; 0 for files as they are.

    Raises:
        InputError: A pattern matches nothing, or files of several splits.
    """
    files = match_files(patterns, allow_empty_files=allow_empty_files)
    report_sources(patterns)
    if notice := check_joined(patterns, [info.path for info in files]):
        _log.warning("%s: %s", patterns[0], notice)
    for info in files:
        # One part, if it cannot be two of that size.
        count = max(info.size_bytes // part_bytes, 1) if part_bytes else 1
        edges = (info.size_bytes * number // count for number in range(count + 1))
        for begin, end in itertools.pairwise(edges):
            yield FilePart(info._replace(crc32c=None), begin, end)


def walk_part(part: FilePart, range_bytes: int) -> Iterator[FileWalk]:
    """Yields what is found in a part; nothing of a compressed file's later parts."""
    info, begin, end = part
    file = look_into(info)
    if file.compression != "none":
        if not begin:
            yield FileWalk(file, 0, ())
        return
    chains = walk_frames(file, begin, end, step_bytes=range_bytes)
    yield FileWalk(file, begin, chains)


def by_file(
    walk: FileWalk, at: Any = beam.DoFn.TimestampParam
) -> tuple[bytes, tuple[int, FileWalk]]:
    """Returns a walk with its time, and the key of all walks of its file."""
    # The time is a part of the key, since a group has one of its own.
    key = f"{at.micros} {walk.file.version} {walk.file.path}"
    return key.encode("utf-8", "surrogateescape"), (at.micros, walk)


def cut_walks(walks: Sequence[FileWalk], range_bytes: int) -> Iterator[FileRange]:
    """Yields the ranges of one file, as often as it is to be read."""
    # Elements that name the same file have all of its parts each.
    times = sum(walk.begin_bytes == 0 for walk in walks)
    file = walks[0].file
    chains = itertools.chain.from_iterable(walk.chains for walk in walks)
    ranges: Iterable[tuple[int, int]] = [(0, -1)]
    if file.compression == "none":
        ranges = join_walks(file, chains, range_bytes=range_bytes)
    for begin, end in ranges:
        yield from itertools.repeat(FileRange(file, begin, end), times)
