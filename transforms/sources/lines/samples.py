"""The first lines of some input files, from which the schema of a job is found."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gristmill.dataset.base.errors import CorruptRecordError, CorruptStreamError
from gristmill.dataset.formats.streams.inflated_stream import InflatedStream
from gristmill.dataset.storage.base import map_all
from gristmill.dataset.storage.lookup import storage_for
from gristmill.transforms.sources.input_files import InputFile, InputFiles
from gristmill.transforms.sources.lines.line_reader import LineReader
from gristmill.transforms.sources.lines.parser import (
    Lines,
    Made,
    Positions,
    without_newline,
)

# A little of many files tells more than much of one.
_FILES = 32
_FILE_BYTES = 256 << 10


class Sample(NamedTuple):
    """The first lines of a file, without their newlines."""

    path: str
    lines: list[bytes]


def sample_lines(files: InputFiles, ends: Callable[[bytes], Positions]) -> list[Sample]:
    """Returns the first lines of some files, in the order of the files.

    The choice depends only on their number and content: 256 KiB of each of 32 files,
    spread over all, and at least one line.

    Args:
        files: The files.
        ends: Finds the ends of lines, as `LineParser.ends`.
    """
    count = min(len(files), _FILES)
    chosen = [files[at * len(files) // count] for at in range(count)]
    return list(map_all(lambda file: _first_lines(file, ends), chosen, at_once=16))


def _first_lines(file: InputFile, ends: Callable[[bytes], Positions]) -> Sample:
    path = file.path
    lines: list[bytes] = []
    size = 0
    with storage_for(path).open(
        path, offset=0, end=min(file.size_bytes, _FILE_BYTES), version=file.version
    ) as opened:
        stream = (
            opened
            if file.compression == "none"
            else InflatedStream(opened, path=path, compression=file.compression)
        )
        reader = LineReader(
            stream, path=path, parser=_RawLines(ends), block_bytes=_FILE_BYTES // 4
        )
        try:
            for batch in reader.batches():
                for line in batch.records:
                    if size < _FILE_BYTES:
                        lines.append(line)
                    size += len(line)
                if size >= _FILE_BYTES:
                    break
        except (CorruptRecordError, CorruptStreamError):
            pass  # The conversion finds the same damage, and names it.
    return Sample(path, lines)


class _RawLines:
    """Splits plain lines."""

    format_name = "text"
    sure = True

    def __init__(self, ends: Callable[[bytes], Positions]):
        self.ends = ends

    def header_lines(self, lines: Lines, path: str) -> int:
        del lines, path
        return 0

    def records(self, lines: Lines) -> Made:
        rows = np.arange(len(lines.ends))
        starts, ends = lines.starts.tolist(), lines.ends.tolist()
        data = lines.data
        found = zip(starts, ends, strict=True)
        return Made([without_newline(data[begin:end]) for begin, end in found], rows)

    def next_start(self, data: bytes, *, final: bool) -> int | None:
        del data, final
        return None
