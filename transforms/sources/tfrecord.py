"""Cuts of a large file: places where frames begin, found in parallel.

The file is walked through in several parts, each by itself. A part that is not the
first begins with a search for a frame, which may find a frame within a record. So a
walk claims less: if a frame begins at A, another begins at B. Joined, the claims of all
parts lead from the beginning of the file, where a frame begins, from one place to the
next, each of them proven. If no claim continues, the frames are followed from there
until one does.

```
part 0       part 1        part 2
0 -> 61 -> 104             203 -> 262 -> 300       claims
              111 -> 170 -> 203
0    61    104 . 111  170  203    262    300       joined: from 104 on to 111 by frames
```
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from gristmill.dataset.formats.tfrecord_frames import (
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES,
    FrameReader,
    count_equal,
    frame_borders,
    header_crc32cs,
    headers_at,
    mask,
)
from gristmill.dataset.metadata.shard_report import SourceSpan
from gristmill.dataset.storage.prefetch_reader import READER_BYTES
from gristmill.transforms.sources.input_files import InputFile
from gristmill.transforms.sources.stream_range import StreamSource

BLOCK_BYTES = 1 << 20


def _hops(file: InputFile, offset: int, end: int) -> Iterator[list[int]]:
    """Yields the offsets of the frames that begin before `end`, in groups.

    Checksums of lengths are compared, some blocks at a time; those of records are not.
    Each group ends with the place where the next frame would begin. After the last
    group that is at `end` or behind it, also past the end of a file that was cut, or
    where there is no valid header. Memory: one block.

    Args:
        file: The file.
        offset: Where a frame begins.
        end: Where to stop.
    """
    # A request takes as long as many megabytes of data.
    far_bytes = READER_BYTES if file.remote else BLOCK_BYTES
    last = min(end + HEADER_BYTES, file.size_bytes)
    stream = file.open(offset, last)
    try:
        buffer, base = b"", offset  # The offset of the buffer's first byte.
        while offset < end:
            # A long record is not read.
            if offset - base - len(buffer) > far_bytes:
                stream.close()
                stream = file.open(offset, last)
                buffer, base = b"", offset
            while base + len(buffer) < offset + HEADER_BYTES:
                left = max(base + len(buffer) - offset, 0)
                base += len(buffer) - left
                block = stream.read(BLOCK_BYTES)
                if not block:
                    return
                buffer = buffer[len(buffer) - left :] + block
            stop = min(len(buffer) - HEADER_BYTES + 1, end - base)
            borders = frame_borders(buffer, offset - base, stop)
            headers = headers_at(buffer, borders[:-1])
            stored = headers["masked_crc32c"]
            good = count_equal(mask(header_crc32cs(headers)), stored)
            yield [base + border for border in borders[: good + 1]]
            if good < len(headers):
                return
            offset = base + borders[good]
    finally:
        stream.close()


# The start of a frame, and starts of later frames that follow from it.
Chain = tuple[int, ...]

_SEARCHES = 8  # A walk that needs more searches is in a record full of frames.


def walk_frames(
    file: InputFile, begin: int, end: int, *, step_bytes: int
) -> tuple[Chain, ...]:
    """Walks through the frames of a part of an uncompressed file by their headers.

    Memory: the requests in flight of one open file, or one record during a search.

    Args:
        file: The file.
        begin: Where the part begins; the first frame at or after it is searched for.
        end: Where it ends.
        step_bytes: Minimum bytes from one place to the next.

    Returns:
        Chains of places. Each begins where a frame was found, or at 0. One that reaches
        the end ends with the first frame at or after it. One that meets a damaged or
        missing header ends before it.
    """
    if file.size_bytes <= step_bytes:
        return ()
    chains: list[Chain] = []
    position = 0 if begin == 0 else _search(file, begin, end)
    for _ in range(_SEARCHES):
        if position is None:
            break
        chain, starts = [position], [position]
        for starts in _hops(file, position, end):
            while (at := bisect_left(starts, chain[-1] + step_bytes)) < len(starts):
                chain.append(starts[at])
            if file.size_bytes - chain[-1] <= step_bytes:
                break  # The rest is not cut.
        else:
            reached = starts[-1]
            if reached < end:
                chains.append(tuple(chain))
                # In the first part, this is damage, and nothing after it is read.
                position = _search(file, reached + 1, end) if begin else None
                continue
            if reached > chain[-1]:
                chain.append(reached)
        chains.append(tuple(chain))
        break
    return tuple(chain for chain in chains if len(chain) > 1)


def join_walks(
    file: InputFile, chains: Iterable[Chain], *, range_bytes: int
) -> Iterator[tuple[int, int]]:
    """Yields ranges of an uncompressed file that begin and end at frames.

    The cutting stops at a damaged header: the reader of the last range finds the same
    damage and reports it.

    Args:
        file: The file.
        chains: From walks through all its parts; gaps are walked through.
        range_bytes: Minimum bytes of a range, except the last.

    Yields:
        Half-open ranges that cover the file exactly, in order.
    """
    links = dict(link for chain in chains for link in itertools.pairwise(chain))
    size = file.size_bytes
    begin = position = 0
    # With no more than one range left, there is nothing to cut.
    while size - begin > range_bytes and position < size:
        if position - begin >= range_bytes:
            yield begin, position
            begin = position
            continue
        ahead = links.get(position)
        if ahead is None:
            ahead = _hop_on(file, position, begin + range_bytes, links)
            if ahead is None:
                break
        position = ahead
    yield begin, size


def _hop_on(
    file: InputFile, position: int, cut: int, links: dict[int, int]
) -> int | None:
    """Hops frame by frame to a place with a link, to a cut, or to the file's end.

    Returns:
        The place; None if the way there is damaged.
    """
    for starts in _hops(file, position, file.size_bytes):
        for start in starts:
            if start > position and (start >= cut or start in links):
                return start
    return None


def _search(file: InputFile, offset: int, limit: int) -> int | None:
    """Returns the likely start of a frame at or after an offset."""
    if offset >= limit:
        return None
    with file.open(offset, min(limit + HEADER_BYTES, file.size_bytes)) as stream:
        reader = FrameReader(
            stream, path=file.path, offset=offset, size_bytes=file.size_bytes
        )
        return reader.offset if reader.resync(limit=limit) else None


class TFRecordSource(StreamSource):
    """Records as they are, in frames with checksums."""

    open_reader = FrameReader

    def cut(self, file: InputFile, *, range_bytes: int) -> Iterator[tuple[int, int]]:
        """Yields ranges that begin and end at frames, by a walk over the headers."""
        if file.compression != "none":
            return super().cut(file, range_bytes=range_bytes)
        chains = walk_frames(file, 0, file.size_bytes, step_bytes=range_bytes)
        return join_walks(file, chains, range_bytes=range_bytes)

    def holds(self, span: SourceSpan, raw_bytes: int) -> bool:
        """Returns whether frames with these bytes lie end to end in the range."""
        if span.start_bytes is None or span.stop_bytes is None:
            return not span.records
        size_bytes = raw_bytes + span.records * FRAME_OVERHEAD_BYTES
        return span.stop_bytes - span.start_bytes == size_bytes
