"""Sizes of all inputs, estimated from a sample that the real encoder encodes."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence

import numpy as np

from gristmill.dataset.arrayrecord.chunk_encoder import ChunkEncoder
from gristmill.dataset.arrayrecord.simple_chunks import BLOCK_BYTES, BLOCK_HEADER_BYTES
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.pipelines.advice.read_sample import Sample, SampledPart

# Quantiles of Student's distribution for a 95% interval, by minimum degrees of freedom.
# Source: any table of it.
_STUDENT = ((60, 2.0), (30, 2.05), (15, 2.13), (10, 2.23), (7, 2.37), (5, 2.57))
_FEW_STUDENT = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78}


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number estimated from a sample.

    Attributes:
        value: The estimate.
        error: Half the width of an interval that holds the true number in 95 of 100
            samples; 0 if all was read, infinite if the sample is a single part.
    """

    value: float
    error: float = 0.0

    def __add__(self, other: Estimate) -> Estimate:
        """Adds two that are independent."""
        return Estimate(self.value + other.value, math.hypot(self.error, other.error))

    def scaled(self, factor: float) -> Estimate:
        """Returns a multiple of it."""
        return Estimate(self.value * factor, self.error * abs(factor))

    @property
    def relative_error(self) -> float:
        """The error as a share of the value."""
        return self.error / self.value if self.value else 0.0


def total_of(
    amounts: Sequence[float],
    stored_bytes: Sequence[int],
    weights: Sequence[float],
    *,
    input_bytes: int,
    read_share: float,
) -> Estimate:
    """Returns an amount of the whole input, by the ratio to its stored bytes.

    A ratio varies less than the amounts of parts do: a part with few records is also
    one with few bytes. Its error is that of a ratio estimator with parts as clusters
    (Cochran, Sampling Techniques, 1977, chapter 6). Places that are spread evenly
    represent the whole better than independent ones, so the error is rather too large.

    Args:
        amounts: Amount of each part read.
        stored_bytes: Bytes of each part's records in the inputs.
        weights: Number of input bytes for which a byte of each part stands.
        input_bytes: Size of the whole.
        read_share: Share of the whole that was read.
    """
    weight, stored = np.array(weights, float), np.array(stored_bytes, float)
    y, x = weight * np.array(amounts, float), weight * stored
    if not x.sum():
        return Estimate(0.0)
    ratio = float(y.sum() / x.sum())
    if read_share >= 1:
        return Estimate(ratio * input_bytes)
    parts = int((x > 0).sum())
    if parts < 2:
        return Estimate(ratio * input_bytes, math.inf)
    rest = y - ratio * x
    variance = parts / (parts - 1) * float((rest**2).sum()) / float(x.sum()) ** 2
    error = _student(parts - 1) * math.sqrt(variance * (1 - read_share))
    return Estimate(ratio * input_bytes, error * input_bytes)


def _student(freedom: int) -> float:
    for least, factor in _STUDENT:
        if freedom >= least:
            return factor
    return _FEW_STUDENT.get(freedom, 2.57)


COMPRESSIONS = ("uncompressed", "snappy", "zstd:3", "zstd:9")
GROUP_SIZES = (1, 16, 64)

# Compressed bytes of a chunk's entry in the footer: measured with records of 100 bytes
# to 100 KB.
_FOOTER_BYTES = {"uncompressed": 12.0, "snappy": 9.0, "zstd": 4.5, "brotli": 4.0}
# Bytes of an index besides its chunks: a header, and the report. See
# docs/reference/format.md.
_INDEX_BYTES = 620
_INDEX_CHUNK_BYTES = 4 + 8 / 64
_INDEX_RECORD_BYTES = 4
# Blocks have headers between the bytes of chunks.
_BLOCKS = BLOCK_BYTES / (BLOCK_BYTES - BLOCK_HEADER_BYTES)
_BATCH_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Encoded:
    """The sizes of the whole input in one encoding.

    Attributes:
        compression: Value for `--compression`.
        group_size: Records in a chunk.
        shard_bytes: Size of all shards, without their fixed parts besides chunks: see
            `with_shards`.
        index_bytes: Size of all indexes, also without fixed parts.
        chunk_bytes: Mean size of a chunk, which a random read fetches.
        encode_seconds: CPU seconds to encode all of it, on this machine.
    """

    compression: str
    group_size: int
    shard_bytes: Estimate
    index_bytes: Estimate
    chunk_bytes: float
    encode_seconds: float

    def with_shards(self, shards: int) -> Encoded:
        """Returns the sizes for a number of shards."""
        mean = self.shard_bytes.value / shards
        return dataclasses.replace(
            self,
            shard_bytes=self.shard_bytes + Estimate(shards * _last_blocks(mean)),
            index_bytes=self.index_bytes + Estimate(float(shards * _INDEX_BYTES)),
        )

    @property
    def file_bytes(self) -> Estimate:
        """Size of shards and indexes, whose errors add up."""
        return Estimate(
            self.shard_bytes.value + self.index_bytes.value,
            self.shard_bytes.error + self.index_bytes.error,
        )


def _last_blocks(chunk_bytes: float) -> float:
    """Returns the bytes of a shard besides its chunks.

    The block of its last chunk is padded, and one more has the footer's place.
    """
    filled = -chunk_bytes % BLOCK_BYTES
    # On average over many large shards, it is half full.
    return BLOCK_BYTES + (filled if chunk_bytes < 16 * BLOCK_BYTES else BLOCK_BYTES / 2)


def amount(sample: Sample, amounts: Sequence[float]) -> Estimate:
    """Returns an amount of all inputs of a sample, from that of each of its parts."""
    spans = [one.part.end - one.part.begin for one in sample.parts]
    return total_of(
        amounts,
        [one.stored_bytes for one in sample.parts],
        [
            one.part.weight / max(1, span)
            for one, span in zip(sample.parts, spans, strict=True)
        ],
        input_bytes=sample.input_bytes,
        read_share=sum(spans) / max(1, sample.input_bytes),
    )


def encode_sample(
    samples: Sequence[Sample], *, compression: str, group_size: int
) -> Encoded:
    """Encodes samples of one or more splits, and returns the sizes of everything.

    Args:
        samples: One for each split.
        compression: Value for `--compression`.
        group_size: Records in a chunk.
    """
    options = WriterOptions(compression=compression, group_size=group_size)
    encoder = ChunkEncoder(options)
    shards = indexes = chunks = Estimate(0.0)
    seconds = 0.0
    for sample in samples:
        begun = time.process_time()
        sizes = [_encoded_bytes(encoder, part, group_size) for part in sample.parts]
        seconds += amount(sample, _spread(time.process_time() - begun, sizes)).value
        records = [float(len(part.records)) for part in sample.parts]
        counts = [number / group_size for number in records]
        footer = _FOOTER_BYTES[options.compression.partition(":")[0]]
        shards += amount(
            sample,
            [
                (size + footer * count) * _BLOCKS
                for size, count in zip(sizes, counts, strict=True)
            ],
        )
        indexes += amount(
            sample,
            [
                _INDEX_CHUNK_BYTES * count + _INDEX_RECORD_BYTES * number
                for count, number in zip(counts, records, strict=True)
            ],
        )
        chunks += amount(sample, counts)
    return Encoded(
        compression=options.compression,
        group_size=group_size,
        shard_bytes=shards,
        index_bytes=indexes,
        chunk_bytes=shards.value / max(chunks.value, 1.0),
        encode_seconds=seconds,
    )


def _encoded_bytes(encoder: ChunkEncoder, part: SampledPart, group_size: int) -> float:
    """Returns the size of a part's chunks, as if it went on after its last record.

    A last chunk that is not full would be full in a shard: if there are full ones, the
    rest is assumed to become as large as these on average.
    """
    records = part.records
    if not records:
        return 0.0
    full = len(records) // group_size * group_size or len(records)
    size = 0
    begin = 0
    while begin < full:
        end, held = begin, 0
        while end < full and (held < _BATCH_BYTES or (end - begin) % group_size):
            held += len(records[end])
            end += 1
        lengths = np.fromiter(map(len, records[begin:end]), np.int64, end - begin)
        size += len(encoder.encode(records[begin:end], lengths).data)
        begin = end
    raw_bytes, full_bytes = sum(map(len, records)), sum(map(len, records[:full]))
    return size * raw_bytes / full_bytes if full_bytes else float(size)


def _spread(total: float, sizes: Sequence[float]) -> list[float]:
    """Divides an amount in proportion to sizes."""
    whole = sum(sizes)
    return [total * size / whole if whole else 0.0 for size in sizes]
