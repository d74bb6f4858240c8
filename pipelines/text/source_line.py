"""The line of a source file that a record was made of, found by reading that file."""

from __future__ import annotations

import contextlib
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, cast

from gristmill.dataset.base.errors import GristmillError
from gristmill.dataset.formats.streams.inflated_stream import (
    Compression,
    InflatedStream,
    Readable,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.lineage import read_lineage
from gristmill.dataset.metadata.provenance import read_source_files
from gristmill.dataset.storage.lookup import storage_for
from gristmill.loader.data.dataset import Dataset
from gristmill.loader.provenance.locate import Location
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.damage import DamageHandler
from gristmill.transforms.sources.formats import SourceSpec
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.record_source import source_of

LINE_FORMATS = ("csv", "jsonl", "text", "tsv")
_BLOCK_BYTES = 1 << 20


class SourceLine(NamedTuple):
    """Where a record begins in a file of lines.

    Attributes:
        line: The line, counted from 1.
        offset_bytes: Its byte offset in the (decompressed) file.
    """

    line: int
    offset_bytes: int


def source_line(location: Location, datasets: Iterable[Dataset]) -> SourceLine | None:
    """Returns where the line begins of which a record was made.

    Reads the range of the source file that the record is in, and counts the lines
    before it.

    Args:
        location: Where the record is.
        datasets: Those that it can be in.

    Returns:
        None if the source is no file of lines, is not there any more, or has not what
        it had.
    """
    wanted = location.source_record_in_range
    if location.source_format not in LINE_FORMATS or wanted is None:
        return None
    if location.source_range_bytes is None:
        return None
    found = set()
    for file in source_files(location, datasets):
        with contextlib.suppress(GristmillError, OSError):
            offset = _offset(file, *location.source_range_bytes, wanted)
            if offset is not None:
                (line,) = lines_at(file, [offset])
                found.add(SourceLine(line, offset))
    # Several, if a dataset on the way was made of the file twice, in different ways.
    return found.pop() if len(found) == 1 else None


def source_files(location: Location, datasets: Iterable[Dataset]) -> set[InputFile]:
    """Returns the file that a record was made of, as it was read then.

    There are several if a dataset on the way was made of it in different ways, none if
    that is not known.

    Args:
        location: Where the record is.
        datasets: Those that it can be in.
    """
    return {
        file
        for dataset in datasets
        if (location.shard or "").startswith(dataset.path)
        for file in _files(dataset, location)
    }


def _files(dataset: Dataset, location: Location) -> Iterable[InputFile]:
    """Yields the source of a record, as what its edition was made of lists it."""
    manifest, split = dataset.manifest, dataset.split
    if manifest is None or split is None:
        return
    shard = (location.shard or "").removeprefix(dataset.path).lstrip("/")
    number, parts = (
        layout.edition_of(shard, manifest.name, split),
        manifest.splits[split].parts,
    )
    # An edition from which records were removed has shards of another one.
    for part in [one for one in parts if one.edition == number] or parts:
        if not location.passed:
            files = read_source_files(dataset.path, part)
        else:
            ancestors = read_lineage(dataset.path, part)[len(location.passed) - 1 :]
            files = ancestors[0].files if ancestors else ()
        for file in files:
            if file.path == location.source_path and file.spec is not None:
                yield InputFile(
                    file.path,
                    file.size_bytes,
                    file.version,
                    cast(Compression, file.compression),
                    file.noted_ns,
                    SourceSpec.from_json(file.spec),
                )


def _offset(file: InputFile, begin: int, end: int, number: int) -> int | None:
    """Returns the place of a record of a range, None if the range has it not."""
    plain = file.compression == "none"
    part = SourceRange(
        file_index=0,
        begin_bytes=begin if plain else 0,
        end_bytes=end if plain else -1,
        exact=True,
    )
    found: int | None = None
    # To the end of the range: then it is known that the file is the one that it was.
    reader = source_of(file.spec).read(file, part, on_damage=DamageHandler())
    for batch in reader.batches():
        places = batch.places[bisect_left(batch.places, begin) :]
        if found is None and number < len(places):
            found = places[number]
        number -= len(places)
    same = not plain or reader.span.stop_bytes == end
    return found if same else None


def lines_at(file: InputFile, offsets: Sequence[int]) -> list[int]:
    """Returns the numbers, from 1, of the lines that begin at rising offsets.

    Reads the file to the last of them, which count bytes of the decompressed file.
    """
    found, line, at = [], 1, 0
    with _opened(file, end=offsets[-1]) as stream:
        for offset in offsets:
            while at < offset and (
                piece := stream.read(min(offset - at, _BLOCK_BYTES))
            ):
                line += piece.count(b"\n")
                at += len(piece)
            found.append(line)
    return found


def line_begin(file: InputFile, line: int) -> int | None:
    """Returns where a line, counted from 1, begins; None if there is none."""
    left, at = line - 1, 0
    with _opened(file) as stream:
        while left and (piece := stream.read(_BLOCK_BYTES)):
            count = piece.count(b"\n")
            if count >= left:
                end = -1
                for _ in range(left):
                    end = piece.index(b"\n", end + 1)
                return at + end + 1
            left -= count
            at += len(piece)
    return None if left else at


@contextlib.contextmanager
def _opened(file: InputFile, *, end: int | None = None) -> Iterator[Readable]:
    """Opens the version of a file that was read, decompressed."""
    plain = file.compression == "none"
    with storage_for(file.path).open(
        file.path, end=end if plain else None, version=file.version
    ) as opened:
        yield (
            opened
            if plain
            else InflatedStream(opened, path=file.path, compression=file.compression)
        )
