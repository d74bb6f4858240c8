"""Reading a batch of records: grouped by shard, decoded all at once, each one checked.

The chunks of a batch are copied out of the memory maps of all its shards into one
buffer, which is decompressed in one call. A chunk that holds several records of the
batch is decoded once. From shards in object storage, all chunks of a batch are asked
for at once, and decoded as they arrive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, NoReturn

import google_crc32c
import numpy as np

from gristmill.dataset.chunk_codec import (
    CHUNK_HEADER_BYTES,
    decode_chunks,
    decode_lone_record,
)
from gristmill.dataset.errors import (
    CorruptShardError,
    GristmillError,
    InputError,
    InvalidDatasetError,
    TransposedChunkError,
)
from gristmill.loader.index_arrays import IntArray
from gristmill.loader.object_reads import ByteRange
from gristmill.loader.range_fetch import RangeFetcher, ReadOptions
from gristmill.loader.range_plan import plan_ranges
from gristmill.loader.shard_files import (
    CHUNK_TYPE_AT,
    OpenShards,
    ShardFile,
    ShardList,
    without_block_headers,
)

Verify = Literal["always", "never"]

# A batch of large records is decoded in windows of so many bytes, as they are in the
# files and decoded: memory follows the records that are wanted, not the batch's size.
_WINDOW_BYTES = 4 << 20
_WINDOW_DECODED_BYTES = 4 << 20
# What has arrived is decoded when it is so much: while the rest is on its way.
_ARRIVED_BYTES = 256 << 10


@dataclasses.dataclass
class _Window:
    """Chunks to be decoded together, and what is wanted of them.

    Attributes:
        pieces: The logical bytes of each chunk, once they are read.
        chunks: (shard, first physical byte, records, most decoded bytes) of each.
        ends: One past the last physical byte of each.
        wanted: (place in the batch, chunk of the window, record in the chunk, record
            in the shard) of each record.
        crc32cs: The checksum of each record, -1 where there is none.
        size_bytes: Of the chunks together.
    """

    pieces: list[bytes] = dataclasses.field(default_factory=list)
    chunks: list[tuple[ShardFile, int, int, int]] = dataclasses.field(
        default_factory=list
    )
    ends: list[int] = dataclasses.field(default_factory=list)
    wanted: list[tuple[int, int, int, int]] = dataclasses.field(default_factory=list)
    crc32cs: list[int] = dataclasses.field(default_factory=list)
    size_bytes: int = 0

    def take(self, other: _Window, chunk: int, wanted: slice, piece: bytes) -> None:
        """Adds a chunk of another window, with what is wanted of it and its bytes."""
        number = len(self.chunks)
        self.pieces.append(piece)
        self.chunks.append(other.chunks[chunk])
        self.ends.append(other.ends[chunk])
        self.wanted += [
            (place, number, row, record)
            for place, _, row, record in other.wanted[wanted]
        ]
        self.crc32cs += other.crc32cs[wanted]
        self.size_bytes += len(piece)


class BatchReader:
    """Reads records of a dataset by their numbers. Safe to share by threads.

    Args:
        shards: The dataset.
        verify: `always` compares each record with its checksum in the shard's index;
            None does so where an index has checksums.
        reader_options: For the official reader, which reads transposed chunks.
        read_options: How to read shards in object storage that no dataset describes.
    """

    def __init__(
        self,
        shards: ShardList,
        *,
        verify: Verify | None = None,
        reader_options: Mapping[str, str] | None = None,
        read_options: ReadOptions | None = None,
    ):
        if verify not in (None, "always", "never"):
            raise InputError(
                "verify is neither always nor never",
                expected="'always', 'never', or None for always where it is possible",
                got=repr(verify),
            )
        self.shards = shards
        self.open_shards = OpenShards(shards)
        self._verify = verify
        self._reader_options = dict(reader_options or {})
        self._options = read_options
        self._own_fetcher: RangeFetcher | None = None

    def read(self, records: IntArray) -> list[bytes]:
        """Returns records, in the order they are asked for.

        Args:
            records: int64 [n] numbers, all in range. One may be there several times.

        Raises:
            CorruptShardError: A shard is truncated, or what it holds is not what was
                written. It names dataset, shard, record and byte offset.
            InvalidDatasetError: An index is damaged, or lacks checksums although
                `verify` is `always`.
        """
        if len(records) == 1:
            record = self._read_lone(int(records[0]))
            if record is not None:
                return [record]
        out: list[bytes] = [b""] * len(records)
        order = np.argsort(records, kind="stable")
        shards, in_shard = self.shards.find(records[order])
        bounds = [0, *(np.flatnonzero(np.diff(shards)) + 1).tolist(), len(records)]
        places, numbers = order.tolist(), in_shard.tolist()
        numbers_of_shards = shards[bounds[:-1]].tolist() if len(records) else []
        remote = self.shards.remote is not None
        opened = self.open_shards.get_many(numbers_of_shards) if remote else {}
        window, far = _Window(), _Window()
        for number, begin, end in zip(
            numbers_of_shards, bounds[:-1], bounds[1:], strict=False
        ):
            shard = opened[number] if remote else self.open_shards.get(number)
            if self._verify == "always" and not shard.has_crc32cs:
                raise InvalidDatasetError(
                    "shard has no checksums of its records to verify them by",
                    where=f"{self.shards.name}, shard {shard.path}",
                    cure="make them with `gristmill index`, or open the dataset "
                    "without verify='always'",
                )
            if shard.transposed:
                self._read_officially(shard, places[begin:end], numbers[begin:end], out)
            elif shard.version is not None:
                self._add(far, shard, places[begin:end], numbers[begin:end])
            else:
                window = self._add(
                    window, shard, places[begin:end], numbers[begin:end], out
                )
        self._read_window(window, out)
        self._fetch_window(far, out)
        return out

    def _read_lone(self, record: int) -> bytes | None:
        """Returns a record if that is simple, None if it takes the long way."""
        number, row = self.shards.find_one(record)
        if self.shards.remote is not None:
            return None
        shard = self.open_shards.get(number)
        index = shard.index
        if (
            shard.version is not None
            or shard.transposed
            or index.group_size != 1
            or index.records != index.chunks
        ):
            return None
        if self._verify == "always" and not shard.has_crc32cs:
            return None
        ((_, begin, end, _, _),) = index.find_records([row])
        if not 0 < begin < end <= index.file_bytes:
            return None
        chunk = shard.logical(begin, end)
        limit = index.max_chunk_decoded_bytes
        found = decode_lone_record(chunk, max_decoded_bytes=limit)
        if found is None or not self._checks(shard):
            return found
        return found if google_crc32c.value(found) == index.crc32cs[row] else None

    def offset_bytes(self, record: int) -> int:
        """Returns the physical offset, in its file, of a record's chunk."""
        shards, in_shard = self.shards.find(np.array([record], np.int64))
        shard = self.open_shards.get(int(shards[0]))
        return shard.index.find_records(in_shard.tolist())[0][1]

    def _checks(self, shard: ShardFile) -> bool:
        return self._verify != "never" and shard.has_crc32cs

    def _add(
        self,
        window: _Window,
        shard: ShardFile,
        places: list[int],
        numbers: list[int],
        out: list[bytes] | None = None,
    ) -> _Window:
        """Adds records of one shard, sorted; returns the window to go on with.

        With `out`, a window is read when it is full.
        """
        index = shard.index
        crc32cs = index.crc32cs.data if self._checks(shard) else None
        largest, last = index.max_chunk_decoded_bytes, -1
        try:
            found = index.find_records(numbers)
        except IndexError as e:
            raise self._bad_index(shard, numbers[0]) from e
        for place, number, (chunk, begin, end, count, row) in zip(
            places, numbers, found, strict=True
        ):
            if chunk != last:
                if out is not None and window.size_bytes >= _WINDOW_BYTES:
                    self._read_window(window, out)
                    window = _Window()
                if not (0 < begin < end <= index.file_bytes and 0 <= row < count):
                    raise self._bad_index(shard, number)
                window.chunks.append((shard, begin, count, largest))
                window.ends.append(end)
                window.size_bytes += end - begin
                last = chunk
            window.wanted.append((place, len(window.chunks) - 1, row, number))
            window.crc32cs.append(-1 if crc32cs is None else crc32cs[number])
        return window

    def _bad_index(self, shard: ShardFile, number: int) -> InvalidDatasetError:
        return InvalidDatasetError(
            "shard index contradicts itself",
            where=f"{self.shards.name}, index {shard.index.path}, record {number:,}",
            cure="delete this index and run the conversion, or `gristmill index`, "
            "again",
        )

    def _read_window(self, window: _Window, out: list[bytes]) -> None:
        """Reads the chunks of local shards, and decodes them."""
        window.pieces = [
            shard.logical(begin, end)
            for (shard, begin, _, _), end in zip(
                window.chunks, window.ends, strict=True
            )
        ]
        self._decode(window, out)

    def _fetch_window(self, window: _Window, out: list[bytes]) -> None:
        """Fetches the chunks of shards in object storage; decodes as they arrive."""
        if not window.chunks:
            return
        begins = [begin for _, begin, _, _ in window.chunks]
        files = {id(shard): shard for shard, _, _, _ in window.chunks}
        ordinals = {key: ordinal for ordinal, key in enumerate(files)}
        plan = plan_ranges(
            np.array([ordinals[id(shard)] for shard, _, _, _ in window.chunks]),
            np.array(begins),
            np.array(window.ends),
        )
        ranges = [
            ByteRange(shard.path, begin, end, shard.version)
            for (shard, _, _, _), begin, end in zip(
                [window.chunks[first] for first in plan.firsts.tolist()],
                plan.begin_bytes.tolist(),
                plan.end_bytes.tolist(),
                strict=True,
            )
        ]
        # What is wanted of chunk i is wanted[bounds[i] : bounds[i + 1]].
        chunk_of = np.array([chunk for _, chunk, _, _ in window.wanted])
        bounds = np.searchsorted(chunk_of, np.arange(len(begins) + 1)).tolist()
        arrived = _Window()
        for number, data in self._fetcher.fetch(ranges):
            first_byte = ranges[number].begin
            for chunk in range(int(plan.firsts[number]), int(plan.ends[number])):
                begin, end = begins[chunk], window.ends[chunk]
                piece = without_block_headers(
                    data[begin - first_byte : end - first_byte], begin
                )
                if piece[CHUNK_TYPE_AT : CHUNK_TYPE_AT + 1] == b"t":
                    raise self._transposed(window.chunks[chunk][0])
                wanted = slice(bounds[chunk], bounds[chunk + 1])
                arrived.take(window, chunk, wanted, piece)
            if arrived.size_bytes >= _ARRIVED_BYTES:
                self._decode_arrived(arrived, out)
                arrived = _Window()
        self._decode_arrived(arrived, out)

    def _decode_arrived(self, window: _Window, out: list[bytes]) -> None:
        """Decodes what was fetched; what is damaged is fetched once more."""
        try:
            self._decode(window, out)
        except CorruptShardError:
            ranges = [
                ByteRange(shard.path, begin, end, shard.version)
                for (shard, begin, _, _), end in zip(
                    window.chunks, window.ends, strict=True
                )
            ]
            for number, data in self._fetcher.fetch(ranges):
                window.pieces[number] = without_block_headers(
                    data, ranges[number].begin
                )
            self._decode(window, out)

    @property
    def _fetcher(self) -> RangeFetcher:
        if self.shards.remote is not None:
            return self.shards.remote.fetcher
        if self._own_fetcher is None:
            self._own_fetcher = RangeFetcher(self._options)
        return self._own_fetcher

    def _decode(self, window: _Window, out: list[bytes]) -> None:
        """Decodes a window and puts its records where they belong."""
        if not window.pieces:
            return
        sizes = np.fromiter(map(len, window.pieces), np.int64, len(window.pieces))
        starts = np.cumsum(sizes) - sizes
        buffer = b"".join(window.pieces)
        counts, decoded_bytes = self._headers(window, buffer, starts, sizes)
        chunk_of = [chunk for _, chunk, _, _ in window.wanted]
        first_wanted = 0
        for first, last in _runs(decoded_bytes):
            try:
                records = decode_chunks(
                    buffer,
                    starts[first:last],
                    path=self.shards.name,
                    max_decoded_bytes=int(decoded_bytes[first:last].max()),
                )
            except (CorruptShardError, TransposedChunkError) as e:
                self._explain(window, first, last, e)
            end_wanted = first_wanted
            while end_wanted < len(chunk_of) and chunk_of[end_wanted] < last:
                end_wanted += 1
            self._deliver(
                window, slice(first_wanted, end_wanted), records, counts, first, out
            )
            first_wanted = end_wanted

    def _headers(
        self, window: _Window, buffer: bytes, starts: IntArray, sizes: IntArray
    ) -> tuple[IntArray, IntArray]:
        """Compares the headers of chunks with the indexes, before all else.

        Returns:
            int64 [chunks], records of each, and the bytes that each decodes to.
        """
        expected = np.array([count for _, _, count, _ in window.chunks], np.int64)
        limits = np.array([limit for _, _, _, limit in window.chunks], np.uint64)
        short = sizes < CHUNK_HEADER_BYTES
        if short.any():
            self._fail(window, int(np.argmax(short)), "a chunk shorter than its header")
        data = np.frombuffer(buffer, np.uint8)
        rows = data[starts[:, None] + np.arange(8, CHUNK_HEADER_BYTES)]
        words = np.ascontiguousarray(rows).view("<u8")
        data_bytes, counts = words[:, 0], words[:, 2] >> np.uint64(8)
        decoded_bytes = words[:, 3]
        room = (sizes - CHUNK_HEADER_BYTES).astype(np.uint64)
        long = data_bytes > room
        if long.any():
            self._fail(
                window, int(np.argmax(long)), "a chunk that reaches past its end"
            )
        wrong = (counts != expected.astype(np.uint64)) | (decoded_bytes > limits)
        if wrong.any():
            chunk = int(np.argmax(wrong))
            self._fail(
                window,
                chunk,
                f"a chunk of {int(counts[chunk]):,} records that decodes to "
                f"{int(decoded_bytes[chunk]):,} bytes",
                expected=f"{expected[chunk]:,} records, at most "
                f"{int(limits[chunk]):,} bytes, as its index says",
            )
        return expected, decoded_bytes.astype(np.int64)

    def _deliver(
        self,
        window: _Window,
        part: slice,
        records: list[bytes],
        counts: IntArray,
        first: int,
        out: list[bytes],
    ) -> None:
        """Picks the wanted of the decoded records, and checks them."""
        wanted = window.wanted[part]
        firsts = (np.cumsum(counts[first:]) - counts[first:]).tolist()
        picked = [records[firsts[chunk - first] + row] for _, chunk, row, _ in wanted]
        crc32cs = window.crc32cs[part]
        got = list(map(google_crc32c.value, picked)) if max(crc32cs) >= 0 else crc32cs
        if got != crc32cs:
            for item, record_crc, crc in zip(wanted, got, crc32cs, strict=True):
                if crc not in (-1, record_crc):
                    self._fail(
                        window,
                        item[1],
                        f"crc32c {record_crc:#010x}",
                        expected=f"crc32c {crc:#010x}, as the shard's index says",
                        number=item[3],
                    )
        for (place, _, _, _), record in zip(wanted, picked, strict=True):
            out[place] = record

    def _explain(
        self, window: _Window, first: int, last: int, error: GristmillError
    ) -> NoReturn:
        """Finds the damaged chunk by decoding one at a time, and says which."""
        for chunk in range(first, last):
            piece = window.pieces[chunk]
            limit = window.chunks[chunk][3]
            try:
                decode_chunks(
                    piece, np.array([0]), path=self.shards.name, max_decoded_bytes=limit
                )
            except (CorruptShardError, TransposedChunkError) as e:
                self._fail(window, chunk, str(e.__cause__ or e), cause=e)
        raise error

    def _fail(
        self,
        window: _Window,
        chunk: int,
        got: str,
        *,
        expected: str | None = None,
        number: int | None = None,
        cause: Exception | None = None,
    ) -> NoReturn:
        shard, begin, _, _ = window.chunks[chunk]
        if number is None:
            number = next(item[3] for item in window.wanted if item[1] == chunk)
        raise self._corrupt(shard, number, begin, got, expected) from cause

    def _corrupt(
        self,
        shard: ShardFile,
        number: int,
        begin: int,
        got: str,
        expected: str | None,
    ) -> CorruptShardError:
        return CorruptShardError(
            "record cannot be read: its shard holds something else than was written",
            where=f"{self.shards.name}, shard {shard.path}, record {number:,} of the "
            f"shard, in the chunk at byte offset {begin:,}",
            expected=expected,
            got=got,
            cure="restore the shard from a copy, or convert this shard again",
        )

    def _transposed(self, shard: ShardFile) -> InputError:
        # The official reader returns empty records where an answer is cut short.
        return InputError(
            "shard is transposed, which cannot be read from object storage",
            where=f"{self.shards.name}, shard {shard.path}",
            cure="copy it to a local disk, or convert it with gristmill",
        )

    def _read_officially(
        self,
        shard: ShardFile,
        places: list[int],
        numbers: list[int],
        out: list[bytes],
    ) -> None:
        if shard.version is not None:
            raise self._transposed(shard)
        # Imported here: only transposed chunks need it.
        from array_record.python.array_record_module import ArrayRecordReader

        options = {"readahead_buffer_size": "0", **self._reader_options}
        text = ",".join(f"{name}:{value}" for name, value in options.items())
        reader: Any = None
        offsets = [begin for _, begin, _, _, _ in shard.index.find_records(numbers)]
        try:
            reader = ArrayRecordReader(shard.path, options=text)
            records = reader.read(numbers)
        except Exception as e:  # What the official reader raises is not documented.
            raise self._corrupt(shard, numbers[0], offsets[0], str(e), None) from e
        finally:
            if reader is not None:
                reader.close()
        for place, number, begin, record in zip(
            places, numbers, offsets, records, strict=True
        ):
            if self._checks(shard):
                crc, got = int(shard.index.crc32cs[number]), google_crc32c.value(record)
                if got != crc:
                    raise self._corrupt(
                        shard,
                        number,
                        begin,
                        f"crc32c {got:#010x}",
                        f"crc32c {crc:#010x}, as the shard's index says",
                    )
            out[place] = record


def _runs(decoded_bytes: IntArray) -> list[tuple[int, int]]:
    """Cuts chunks into half-open runs that decode to not much more than a window."""
    ends = np.cumsum(decoded_bytes)
    if ends[-1] <= _WINDOW_DECODED_BYTES:
        return [(0, len(ends))]
    runs, first, done = [], 0, 0
    while first < len(ends):
        limit = done + _WINDOW_DECODED_BYTES
        last = max(int(np.searchsorted(ends, limit, side="right")), first + 1)
        runs.append((first, last))
        first, done = last, int(ends[last - 1])
    return runs
