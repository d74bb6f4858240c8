"""The encoder of records as simple chunks, many at a time, and its versions.

The counterpart of `simple_chunks`, which names the parts of a chunk. A file's block
headers are not part of any chunk: `file_writer` puts them in. A job names the
versions, so that no machine with others takes part in it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gristmill.dataset.arrayrecord.chunk_hash import HashArray, hash_spans
from gristmill.dataset.arrayrecord.compression import codec_version, compressor
from gristmill.dataset.arrayrecord.simple_chunks import (
    CHUNK_HEADER_BYTES,
    HASH_BYTES,
    HEADER_DTYPE,
    SIMPLE,
    IntArray,
)
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import JobChangedError
from gristmill.dataset.base.varints import encode_varint, encode_varints

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
    """Returns options that name versions: this machine's, where they name none."""
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
    """Returns the options of a begun job if they are equal, else the requested ones.

    The versions may be others than this machine's: a finished job needs none, and for
    another it is checked before anything is written.

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
