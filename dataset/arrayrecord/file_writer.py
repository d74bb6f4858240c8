"""The writer of ArrayRecord files: encoded chunks, block headers and the footer.

A file is a signature, the data chunks, a chunk that lists them, and a last block with
the place of that list, as in the official writer. A block header, at every multiple of
65,536 bytes, has its hash, and the distances from the start of the block to the start
and the end of the chunk that it interrupts. Sources:
riegeli/doc/riegeli_records_file_format.md, array_record/cpp/layout.proto,
array_record/cpp/array_record_writer.cc. A job names the versions of encoder and codec,
so that no machine with others takes part in it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from gristmill.dataset.arrayrecord.chunk_hash import HashArray, hash_spans
from gristmill.dataset.arrayrecord.chunks import (
    BLOCK_BYTES,
    BLOCK_HEADER_BYTES,
    CHUNK_HEADER_BYTES,
    HASH_BYTES,
    HEADER_DTYPE,
    SIMPLE,
    IntArray,
)
from gristmill.dataset.arrayrecord.compiled import is_compiled
from gristmill.dataset.arrayrecord.compression import codec_version, compressor
from gristmill.dataset.arrayrecord.footer import MAGIC
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import JobChangedError
from gristmill.dataset.base.varints import (
    bytes_field,
    encode_varint,
    encode_varints,
    varint_field,
)

_KINDS = {"zstd": b"z", "brotli": b"b", "snappy": b"s", "uncompressed": b"\0"}
SIGNATURE, PADDING = ord("s"), ord("p")  # Types of chunks that hold no records.
_NO_HEADER = bytes(CHUNK_HEADER_BYTES)
# Distinct lengths of records whose compressed form is kept: 100 bytes each.
_MOST_LENGTHS = 1 << 16


@dataclasses.dataclass(frozen=True)
class Chunks:
    """Encoded chunks, end to end.

    Attributes:
        data: Logical bytes, without block headers.
        encoded_bytes: int64 [chunks], size of each, header included.
        decoded_bytes: int64 [chunks], total size of the records.
        records: int64 [chunks].
        data_hashes: uint64 [chunks], hash of each chunk without its header.
    """

    data: bytes | bytearray | memoryview
    encoded_bytes: IntArray
    decoded_bytes: IntArray
    records: IntArray
    data_hashes: HashArray


class ChunkEncoder:
    """Encodes records with the given options. For one thread at a time."""

    def __init__(self, options: WriterOptions):
        self._group = options.group_size
        name = options.compression.partition(":")[0]
        self._kind = _KINDS[name]
        self._sized = name != "uncompressed"  # Whether parts state their size.
        self._compress = compressor(options)
        self._heads: dict[int, bytes] = {}

    def encode(self, records: Sequence[bytes], lengths: IntArray) -> Chunks:
        """Encodes records as chunks of `group_size`, the last with the rest.

        Args:
            records: At least one.
            lengths: int64 [records], the length of each.
        """
        if self._group == 1:
            heads = self._single_heads(lengths.tolist())
            counts = np.ones(len(records), np.int64)
            return _joined(heads, self._compress(records), lengths, counts)
        begins = np.arange(0, len(records), self._group)
        values = [
            b"".join(records[begin : begin + self._group]) for begin in begins.tolist()
        ]
        counts = np.diff(begins, append=len(records))
        decoded = np.add.reduceat(lengths, begins)
        heads = self._heads_of(_sizes(lengths, counts), decoded.tolist())
        return _joined(heads, self._compress(values), decoded, counts)

    def encode_joined(self, values: bytes, lengths: IntArray) -> Chunks:
        """Encodes records that lie end to end as one chunk."""
        counts, decoded = np.array([len(lengths)]), np.array([len(values)])
        heads = self._heads_of(_sizes(lengths, counts), [len(values)])
        return _joined(heads, self._compress([values]), decoded, counts)

    def _single_heads(self, lengths: list[int]) -> list[bytes]:
        """Returns the bytes before the values in chunks of one record each.

        They depend only on the record's length, and lengths are often equal.
        """
        heads = self._heads
        if len(heads) > _MOST_LENGTHS:
            heads.clear()
        new = list({length for length in lengths if length not in heads})
        if new:
            sizes = list(map(encode_varint, new))
            heads.update(zip(new, self._heads_of(sizes, new), strict=True))
        return [heads[length] for length in lengths]

    def _heads_of(self, sizes: list[bytes], decoded_bytes: list[int]) -> list[bytes]:
        """Returns the bytes before the values of each chunk, headers left empty."""
        heads = []
        for plain, packed, decoded in zip(
            sizes, self._compress(sizes), decoded_bytes, strict=True
        ):
            part = bytes(packed)
            about = b""
            if self._sized:
                part = encode_varint(len(plain)) + part
                about = encode_varint(decoded)
            begin = _NO_HEADER + self._kind + encode_varint(len(part))
            heads.append(begin + part + about)
        return heads


def encode_special(kind: int, data: bytes = b"") -> Chunks:
    """Returns a chunk without records: a signature or padding."""
    none = np.zeros(1, np.int64)
    return _joined([_NO_HEADER], [data], none, none, kind)


def _sizes(lengths: IntArray, counts: IntArray) -> list[bytes]:
    """Returns the lengths of the records of each chunk as varints end to end."""
    data, varint_bytes = encode_varints(lengths)
    ends = np.append(0, np.cumsum(varint_bytes))[np.cumsum(counts)].tolist()
    joined = data.tobytes()
    return [joined[a:b] for a, b in zip([0, *ends], ends, strict=False)]


def _joined(
    heads: list[bytes],
    values: Any,
    decoded_bytes: IntArray,
    records: IntArray,
    kind: int = SIMPLE,
) -> Chunks:
    """Puts chunks end to end, and fills in their headers."""
    pieces: list[Any] = [b""] * (2 * len(heads))
    pieces[::2] = heads
    pieces[1::2] = values
    encoded = np.fromiter(map(len, pieces), np.int64, len(pieces))
    encoded = encoded.reshape(-1, 2).sum(axis=1)
    data = bytearray().join(pieces)
    ends = np.cumsum(encoded)
    starts = ends - encoded
    begin = starts + CHUNK_HEADER_BYTES
    header = np.zeros(len(heads), HEADER_DTYPE)
    header["data_size"] = encoded - CHUNK_HEADER_BYTES
    header["data_hash"] = hash_spans(data, begin, ends)
    header["type_and_records"] = records << 8 | kind
    header["decoded_data_size"] = decoded_bytes
    _fill(data, starts, header)
    return Chunks(data, encoded, decoded_bytes, records, header["data_hash"])


def _fill(data: bytearray, starts: IntArray, header: np.ndarray[Any, Any]) -> None:
    """Hashes headers, and writes each to where its chunk begins."""
    plain = header.view(np.uint8).reshape(-1, CHUNK_HEADER_BYTES)
    at = np.arange(len(header)) * CHUNK_HEADER_BYTES
    header["header_hash"] = hash_spans(
        plain.ravel(), at + HASH_BYTES, at + CHUNK_HEADER_BYTES
    )
    # A view with a header at every byte: only the chosen ones are written.
    count = len(data) - CHUNK_HEADER_BYTES + 1
    windows = np.ndarray(count, HEADER_DTYPE, data, strides=(1,))
    windows[starts] = header


# Increased when the same records and codec give other bytes.
_ENCODER_VERSION = 1


def with_versions(options: WriterOptions) -> WriterOptions:
    """Returns options with versions: those of this machine if they have none."""
    here = f"gristmill:{_ENCODER_VERSION},{codec_version(options)}"
    return dataclasses.replace(options, versions=options.versions or here)


def check_versions(options: WriterOptions, *, where: str) -> None:
    """Checks that this machine writes the same bytes as the planning machine.

    Raises JobChangedError.
    """
    here = with_versions(dataclasses.replace(options, versions="")).versions
    if options.versions in ("", here):
        return
    raise JobChangedError(
        "this machine would write other bytes than the job's other machines",
        where=where,
        expected=options.versions,
        got=here,
        cure="install the same versions on all machines, or start over with "
        "--overwrite",
    )


def settled(wanted: WriterOptions, begun: Mapping[str, Any] | None) -> WriterOptions:
    """Returns the options of a begun job if they match, else the requested ones.

    The versions may differ from this machine's: a finished job needs none, and an
    unfinished one checks them before it writes.

    Args:
        wanted: Options without versions.
        begun: The options of the begun job as plain values, None for no such job.
    """
    with contextlib.suppress(TypeError, ValueError):
        if begun is not None:
            options = WriterOptions(**begun)
            if dataclasses.replace(wanted, versions=options.versions) == options:
                return options
    return with_versions(wanted)


_USABLE_BYTES = BLOCK_BYTES - BLOCK_HEADER_BYTES


class BlockStream:
    """Writes chunks one after the other to a file that starts empty.

    Attributes:
        position: Physical offset where the next chunk begins.
    """

    def __init__(self, file: BinaryIO):
        self._file = file
        self.position = 0

    def append(self, chunks: Chunks) -> IntArray:
        """Writes chunks; returns int64 [chunks], the physical offset of each.

        Raises OSError if the file cannot be written.
        """
        ends = _physical(_logical(self.position) + np.cumsum(chunks.encoded_bytes))
        if (chunks.records <= chunks.encoded_bytes).all():
            begins = np.append(self.position, ends[:-1])
            self._write(chunks.data, begins, ends)
            return begins
        return self._append_sparse(chunks)

    def pad_to_block(self) -> None:
        """Fills the rest of the block with a chunk of padding."""
        used = self.position % BLOCK_BYTES
        if not used:
            return
        room = BLOCK_BYTES - used
        if room < CHUNK_HEADER_BYTES:
            room += _USABLE_BYTES
        self.append(encode_special(PADDING, bytes(room - CHUNK_HEADER_BYTES)))

    def _append_sparse(self, chunks: Chunks) -> IntArray:
        """Writes chunks, some of which have more records than bytes.

        Riegeli numbers a record by the start of its chunk plus its place in the chunk,
        and numbers must be distinct: such a chunk is padded with zeros.
        """
        begins, ends, data = [], [], bytearray()
        begin, taken = self.position, 0
        for size, records in zip(
            chunks.encoded_bytes.tolist(), chunks.records.tolist(), strict=True
        ):
            last = begin + records
            # A chunk begins before a block header, or after a byte that follows it:
            # readers do not accept a chunk at the very end of the header.
            if 0 < last % BLOCK_BYTES <= BLOCK_HEADER_BYTES:
                last += BLOCK_HEADER_BYTES + 1 - last % BLOCK_BYTES
            end = max(int(_physical(_logical(begin) + size)), last)
            data += chunks.data[taken : taken + size]
            data += bytes(int(_logical(end) - _logical(begin)) - size)
            begins.append(begin)
            ends.append(end)
            begin, taken = end, taken + size
        self._write(data, np.array(begins), np.array(ends))
        return np.array(begins)

    def _write(
        self, data: bytes | bytearray | memoryview, begins: IntArray, ends: IntArray
    ) -> None:
        """Writes chunks to [begin, end) of the file, with block headers in between."""
        begin, end = int(begins[0]), int(ends[-1])
        blocks = np.arange(-(-begin // BLOCK_BYTES), -(-end // BLOCK_BYTES))
        blocks *= BLOCK_BYTES
        interrupted = np.searchsorted(ends, blocks, side="right")
        fields = np.zeros((len(blocks), 3), "<u8")
        fields[:, 1] = blocks - begins[interrupted]
        fields[:, 2] = ends[interrupted] - blocks
        headers = fields.view(np.uint8).ravel()
        at = np.arange(len(blocks)) * BLOCK_HEADER_BYTES
        fields[:, 0] = hash_spans(headers, at + HASH_BYTES, at + BLOCK_HEADER_BYTES)
        view, taken, cursor = memoryview(data), 0, begin
        pieces: list[bytes | memoryview] = []
        for block, header in zip(blocks.tolist(), fields, strict=True):
            pieces.append(view[taken : taken + block - cursor])
            pieces.append(header.tobytes())
            taken += block - cursor
            cursor = block + BLOCK_HEADER_BYTES
        pieces.append(view[taken:])
        self._file.writelines(pieces)
        self.position = end


def _logical(position: int) -> int:
    """Returns the number of bytes other than block headers before a physical offset."""
    blocks, within = divmod(position, BLOCK_BYTES)
    return blocks * _USABLE_BYTES + max(0, within - BLOCK_HEADER_BYTES)


def _physical(logical: IntArray | int) -> IntArray:
    """Returns the physical offset after some bytes, before a block header there."""
    blocks, within = np.divmod(logical, _USABLE_BYTES)
    return np.asarray(
        blocks * BLOCK_BYTES + np.where(within, within + BLOCK_HEADER_BYTES, 0)
    )


# Records are held until they reach this size: large batches cost less per record.
# Without the compiled hash numpy hashes the chunks of a batch side by side, slowly if
# there are few of them.
_BATCH_BYTES = (1 if is_compiled() else 4) << 20
# Memory of a record besides its own bytes while it is encoded, and more.
_RECORD_BYTES = 64
_BUFFER_BYTES = 1 << 20
_LAYOUT_VERSION = 1
_POSTSCRIPT_COPIES = 3
# Number of each field of a chunk's entry in the footer, as keys: all are varints.
_ENTRY_KEYS = (0x08, 0x10, 0x18)


class ArrayRecordWriter:
    """Writes records to a local file.

    Memory: a batch of one mebibyte (four without the compiled hash), counting 64 bytes
    more per record, or a chunk, whichever is larger; twice that for its encoded form;
    and 24 bytes for each chunk of the file. For one thread at a time.

    Args:
        path: Local file to create.
        options: Encoding of the file.

    Raises:
        OSError: The file cannot be created.
    """

    def __init__(self, path: str, options: WriterOptions):
        # Closed by `finish` or `abandon`.
        self._file = open(path, "wb", buffering=_BUFFER_BYTES)  # noqa: SIM115
        self._options = options
        self._encoder = ChunkEncoder(options)
        self._stream = BlockStream(self._file)
        self._stream.append(encode_special(SIGNATURE))
        self._held: list[bytes] = []
        self._held_bytes = 0
        # Content of the footer so far: its records end to end, and their lengths.
        self._listed = bytearray()
        self._listed_lengths: list[IntArray] = [np.empty(0, np.int64)]
        self._records = 0

    def write(self, records: Sequence[bytes]) -> None:
        """Appends records. Raises OSError if the file cannot be written."""
        self._held += records
        self._held_bytes += sum(map(len, records)) + _RECORD_BYTES * len(records)
        group = self._options.group_size
        if self._held_bytes >= _BATCH_BYTES and len(self._held) >= group:
            self._flush(len(self._held) // group * group)

    @property
    def at_chunk_end(self) -> bool:
        """Whether the records so far fill whole chunks."""
        return len(self._held) % self._options.group_size == 0

    def append(self, chunks: Chunks) -> None:
        """Appends encoded chunks as they are. Raises OSError, as `write` does.

        Args:
            chunks: Chunks of `group_size` records each, except the last of a file. The
                earlier records fill whole chunks.
        """
        if not self.at_chunk_end:
            raise ValueError("the records before do not fill whole chunks")
        self._flush(len(self._held))
        self._list(self._stream.append(chunks), chunks)

    def finish(self) -> None:
        """Writes the rest and the footer, and closes the file. Raises OSError."""
        self._flush(len(self._held))
        listed_lengths = np.concatenate(self._listed_lengths)
        about = self._about(len(listed_lengths))
        lengths = np.append(len(about), listed_lengths)
        footer = self._stream.append(
            self._encoder.encode_joined(about + self._listed, lengths)
        )
        self._stream.pad_to_block()
        postscript = varint_field(1, int(footer[0])) + varint_field(2, MAGIC)
        plain = ChunkEncoder(WriterOptions(compression="uncompressed"))
        lengths = np.full(_POSTSCRIPT_COPIES, len(postscript))
        self._stream.append(plain.encode_joined(postscript * len(lengths), lengths))
        self._stream.pad_to_block()
        self._file.close()

    def abandon(self) -> None:
        """Closes the incomplete file. Raises OSError."""
        self._file.close()

    def _flush(self, records: int) -> None:
        """Encodes the first of the held records, in batches of whole chunks."""
        group = self._options.group_size
        lengths = np.fromiter(map(len, self._held), np.int64, len(self._held))
        ends = np.cumsum(lengths[:records] + _RECORD_BYTES)
        begin = done_bytes = 0
        while begin < records:
            last = int(np.searchsorted(ends, done_bytes + _BATCH_BYTES))
            end = min((last // group + 1) * group, records)
            batch = slice(begin, end)
            chunks = self._encoder.encode(self._held[batch], lengths[batch])
            offsets = self._stream.append(chunks)
            self._list(offsets, chunks)
            begin, done_bytes = end, int(ends[end - 1])
        del self._held[:records]
        self._held_bytes = int((lengths[records:] + _RECORD_BYTES).sum())

    def _list(self, offsets: IntArray, chunks: Chunks) -> None:
        """Encodes the footer's records for data chunks."""
        fields = np.empty((len(offsets), 6), np.int64)
        fields[:, ::2] = _ENTRY_KEYS
        columns = offsets, chunks.decoded_bytes, chunks.records
        fields[:, 1::2] = np.stack(columns, axis=1)
        data, varint_bytes = encode_varints(fields.ravel())
        self._listed += data.tobytes()
        self._listed_lengths.append(varint_bytes.reshape(-1, 6).sum(axis=1))
        self._records += int(chunks.records.sum())

    def _about(self, chunks: int) -> bytes:
        """Returns the footer's first record."""
        about = (
            varint_field(1, _LAYOUT_VERSION)
            + varint_field(2, chunks)
            + varint_field(3, self._records)
            + bytes_field(4, self._options.recorded.encode())
        )
        return bytes_field(1, about)
