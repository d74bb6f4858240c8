"""Footers and chunks of the official writer's files, and every way to damage one."""

from __future__ import annotations

import base64
import io
import pathlib
import random
import zlib

import google_crc32c
import numpy as np
import pytest

from gristmill.dataset.arrayrecord.chunks import (
    BLOCK_BYTES,
    BLOCK_HEADER_BYTES,
)
from gristmill.dataset.arrayrecord.footer import walk_chunks, walk_file
from gristmill.dataset.base.errors import (
    CorruptShardError,
    GristmillError,
    TransposedChunkError,
)
from tests.storage.chunks import (
    FIRST_CHUNK,
    array_record_file,
    chunk,
    footer_entry,
    footer_metadata,
    message,
)
from tests.support.memory import limited_memory
from tests.support.records import (
    AWKWARD_RECORDS,
    decode_file,
    footer_of,
    read_array_records,
    text_records,
    write_array_records,
)

# What array_record 0.8.6 writes, deflated since most of it is padding:
#   writer = ArrayRecordWriter(path, "group_size:2,zstd:3,max_parallelism:1")
#   for record in (b"first", b"", b"third" * 20):
#       writer.write(record)
#   writer.close()
#   base64.b64encode(zlib.compress(path.read_bytes(), 9))
GOLDEN_RECORDS = [b"first", b"", b"third" * 20]
GOLDEN = (
    "eNrt0VtozmEcB/D/+77NIV5zKgw5XWA5zcWklMMFmcIImSWyzZaV7TW7YK05H1IYdifmblFaQjnU2nIY"
    "GkppF9ZGZNyIG8cN7+HChVtuPp+b5/n+er5PTz37Lpc9jR7OmR8kLUiuJ280z6s91NWQmnedG9bU3dgS"
    "2xH86crNnGWH6+81jU3mOyuqsu5/mP0lFk7ktOR818DwlKszf4wPD/k9S4vv06YGQVFJbEfFldu1p6fn"
    "Ps6flDw8YXT6xsbrhQdjoUQuSF0yIBQvhvr/mhXEtwWFQTClorgkVhAKjjUUhyb2m/25quTF0QPJSlVd"
    "77qzo18diUUSuTJ1VTQS70dGBUFJn76V8VBZGAk+3h05pmZu+sWM7OycogfVeXuHnxraPrK+uXNR951x"
    "Bzd9W9JYkfF25Z6KBWlrena+L2otH3FpWvhC2+5RWz9kPTxfWt1y4lHny9bMwR2tX/Pvll/dvrx49/H0"
    "9W0Hird1bM/PvzE2eHZyUGxvKPjevj/cv/3ymexJqzZv6Ek86szryuf3MzLTywIAAAAAAAAAAAAAAAAA"
    "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAIB/7taeGeOPtue9"
    "S+XS5Pp9S83aawuzuqclc3Pu0tXZmZ8mxiKJPDlViESj0X5PQoM7mt737G9raS3/exhTvXpG3eL6utLe"
    "RHVWVjRnTk2fN2W+AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
    "AAAAAAAAAAAAAAAAAAAA4L/7CVV9qsk="
)

CODECS = ["zstd:3", "brotli:6", "snappy", "uncompressed"]
OPTIONS = [
    *(f"group_size:{size},{codec}" for size in (1, 3, 16) for codec in CODECS),
    "group_size:1",
    "group_size:7,zstd:19",
    "group_size:5,zstd:-5",
    "group_size:1,zstd:3,window_log:13",
    "group_size:1,pad_to_block_boundary:true",
    "group_size:3,pad_to_block_boundary:true,uncompressed",
]
RECORD_SETS = {
    "none": [],
    "one-empty": [b""],
    "only-empty": [b""] * 20,
    "awkward": list(AWKWARD_RECORDS),
    "text": text_records(400),
    "large": [b"0123456789abcdef" * (1 << 16), random.Random(4).randbytes(1 << 20)],
    "mixed": [b"", *text_records(10), b"", b"x" * 70_000, b"", b""],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return tmp_path_factory.mktemp("array_records")


def written(folder: pathlib.Path, options: str, records: list[bytes]) -> bytes:
    path = folder / "written"
    write_array_records(path, records, options=options)
    return path.read_bytes()


class TestOfficialFiles:
    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("options", OPTIONS)
    @pytest.mark.parametrize("records", RECORD_SETS.values(), ids=RECORD_SETS)
    def test_every_record_is_decoded(self, folder, options: str, records: list[bytes]):
        data = written(folder, options, records)
        assert decode_file(data) == records
        assert decode_file(data, range_bytes=1) == records
        footer = footer_of(data)
        assert footer.records == len(records)
        assert footer.chunk_decoded_bytes.sum() == sum(map(len, records))
        group_size = int(options.split(",")[0].split(":")[1])
        sizes = [
            len(records[i : i + group_size]) for i in range(0, len(records), group_size)
        ]
        assert footer.chunk_records.tolist() == sizes
        assert f"group_size:{group_size}," in footer.writer_options

    def test_golden_file(self, tmp_path: pathlib.Path):
        data = zlib.decompress(base64.b64decode(GOLDEN))
        assert decode_file(data) == GOLDEN_RECORDS
        footer = footer_of(data)
        assert footer.chunk_offsets.tolist() == [64, 133, 208]
        assert footer.chunk_records.tolist() == [2, 1]
        assert footer.chunk_decoded_bytes.tolist() == [5, 100]
        assert footer.writer_options == (
            "group_size:2,transpose:false,pad_to_block_boundary:false,zstd:3,"
            "window_log:20,max_parallelism:1"
        )
        path = tmp_path / "golden"
        path.write_bytes(data)
        assert read_array_records(path) == GOLDEN_RECORDS

    def test_transposed_files_are_refused_if_they_hold_records(self, folder):
        data = written(folder, "group_size:4,transpose:true", text_records(5))
        assert footer_of(data).records == 5
        with pytest.raises(TransposedChunkError, match="ArrayRecordReader"):
            decode_file(data)
        assert decode_file(written(folder, "group_size:4,transpose:true", [])) == []


FOOTER = [footer_metadata(2, 5), footer_entry(64, 9, 3), footer_entry(200, 7, 2)]
CHUNKS = [bytes(136), bytes(64)]  # So that the footer begins at 264.


class TestFooter:
    def test_made_by_hand(self):
        footer = footer_of(array_record_file(CHUNKS, FOOTER))
        assert footer.chunk_offsets.tolist() == [64, 200, 264]
        assert footer.chunk_records.tolist() == [3, 2]
        assert footer.chunk_decoded_bytes.tolist() == [9, 7]
        assert footer.writer_options == "group_size:1"

    @pytest.mark.parametrize(
        ("footer", "says"),
        [
            ([], "no records"),
            ([b"", *FOOTER[1:]], "counts 0 chunks"),
            ([footer_metadata(3, 5), *FOOTER[1:]], "counts 3"),
            ([footer_metadata(2, 6), *FOOTER[1:]], "and 6"),
            ([footer_metadata(2, 5, b"\xff\xfe"), *FOOTER[1:]], "utf-8"),
            ([FOOTER[0], FOOTER[2], FOOTER[1]], "out of order"),
            ([*FOOTER[:2], footer_entry(230, 7, 2)], "out of order"),
            ([*FOOTER[:2], footer_entry(1 << 62, 7, 2)], "out of order"),
            ([*FOOTER[:2], footer_entry(1 << 63, 7, 2)], "varint"),
            ([*FOOTER[:2], message([(1, 1 << 69), (2, 7)])], "varint"),
            ([*FOOTER[:2], b"\x08" + b"\xff" * 12], ""),
            (
                [*FOOTER[:2], footer_entry(200, 1 << 40, 2)],
                "decodes to 1,099,5",
            ),
            (
                [
                    footer_metadata(2, 3 + (1 << 40)),
                    FOOTER[1],
                    footer_entry(9, 7, 1 << 40),
                ],
                "impossible number",
            ),
            ([*FOOTER[:2], b"\x0b"], "wire type 3"),
            ([*FOOTER[:2], b"\x0a\x7f"], "reaches past"),
            ([*FOOTER[:2], b"\x09\x01"], "reaches past"),
        ],
    )
    def test_contradictions_are_refused(self, footer: list[bytes], says: str):
        with pytest.raises(CorruptShardError, match="footer cannot be read") as caught:
            footer_of(array_record_file(CHUNKS, footer), path="x.array_record")
        assert says in str(caught.value)
        assert caught.value.where == "x.array_record"

    def test_a_footer_that_claims_gibibytes_allocates_nothing(self):
        claims = 1 << 31
        lying = chunk(
            FOOTER, compression="z", decoded_bytes=claims, values_claim=claims
        )
        data = array_record_file(CHUNKS, FOOTER, footer_chunk=lying)
        with limited_memory(1 << 28), pytest.raises(CorruptShardError, match="limit"):
            footer_of(data)


def used_bytes(data: bytes) -> list[int]:
    """Returns the offsets of all bytes that are not padding."""
    footer = footer_of(data)
    begin = int(footer.chunk_offsets[-1])
    (size,) = np.frombuffer(data, "<u8", 1, begin + 8)
    tail = len(data) - BLOCK_BYTES + BLOCK_HEADER_BYTES
    (tail_size,) = np.frombuffer(data, "<u8", 1, tail + 8)
    return [
        *range(FIRST_CHUNK, begin + 40 + int(size)),
        *range(tail, tail + 40 + int(tail_size)),
    ]


class TestDamage:
    """Right data, data whose checksums differ, or an error of ours: nothing else."""

    def check(self, damaged: bytes, expected: list[bytes]) -> bool:
        """Returns whether damage was found while decoding."""
        try:
            records = decode_file(damaged)
        except GristmillError:
            return True
        assert len(records) == len(expected)
        for got, right in zip(records, expected, strict=True):
            same = google_crc32c.value(got) == google_crc32c.value(right)
            assert same == (got == right)
        return False

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("codec", CODECS)
    @pytest.mark.parametrize("group_size", [1, 3])
    @pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.soak)])
    def test_a_flip_in_every_byte(self, folder, step: int, group_size: int, codec: str):
        records = text_records(5)
        data = written(folder, f"group_size:{group_size},{codec}", records)
        chance = random.Random(group_size)
        found = 0
        with limited_memory(1 << 29):
            for position in used_bytes(data)[::step]:
                damaged = bytearray(data)
                damaged[position] ^= 1 << chance.randrange(8)
                found += self.check(bytes(damaged), records)
        assert found > 100 // step

    def test_truncation_at_any_length(self, folder):
        records = [*text_records(8), random.Random(6).randbytes(150_000)]
        data = written(folder, "group_size:3", records)
        cuts = {*range(0, len(data), 977), *range(0, len(data), BLOCK_BYTES)}
        for length in sorted(cuts):
            with pytest.raises(CorruptShardError):
                decode_file(data[:length])


class SlowFile(io.BytesIO):
    """Returns fewer bytes than asked for, as connections do."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(-1 if size is None else min(size, 777))


class TestWalking:
    RECORDS = text_records(2000)

    @pytest.fixture
    def data(self, folder) -> bytes:
        return written(folder, "group_size:7", self.RECORDS)

    @pytest.mark.parametrize("known", [True, False])
    def test_every_byte_comes_once_and_in_order(self, data: bytes, known: bool):
        footer = footer_of(data) if known else None
        walk = walk_file(SlowFile(data), footer, path="x", size_bytes=len(data))
        parts, records = [], []
        for part, chunks in walk:
            parts.append(part)
            if chunks is not None:
                assert chunks.data is part
                assert chunks.first_record == len(records)
                records += chunks.encoded().decode()
        assert b"".join(parts) == data
        assert records == (self.RECORDS if known else [])

    def test_damage_is_named_by_the_number_in_the_file(self, data: bytes):
        footer = footer_of(data)
        damaged = bytearray(data)
        damaged[footer.chunk_offsets[132] + 24] = ord("p")
        file = io.BytesIO(damaged)
        file.seek(footer.chunk_offsets[100])
        (chunks,) = walk_chunks(
            file, footer, path="x", first_chunk=100, range_bytes=1 << 30
        )
        for chosen in (slice(None), slice(0, None, 32), slice(32, 33)):
            with pytest.raises(CorruptShardError) as caught:
                chunks.encoded(chosen).checksum()
            assert caught.value.where == "x, chunk 132"
