"""Walking ArrayRecord files: all bytes, all records, and no more at a time."""

from __future__ import annotations

import io
import pathlib
import random

import pytest

from gristmill.dataset.arrayrecord.footer import (
    walk_chunks,
    walk_file,
)
from gristmill.dataset.base.errors import CorruptShardError
from tests.support.records import array_record_bytes, footer_of, text_records


class SlowFile(io.BytesIO):
    """Returns fewer bytes than asked for, as connections do."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(-1 if size is None else min(size, 777))


RECORDS = text_records(2000)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = str(tmp_path_factory.mktemp("walk"))
    return array_record_bytes(RECORDS, options="group_size:7", folder=folder)


class TestWalking:
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
        assert records == (RECORDS if known else [])

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


class TestDecode:
    """All records of ranges of chunks, with the hashes of chunks compared."""

    @pytest.mark.parametrize(
        "options",
        ["group_size:3", "group_size:1,snappy"],
    )
    @pytest.mark.parametrize("step", [9973, pytest.param(1499, marks=pytest.mark.soak)])
    def test_flipped_bits(self, options: str, step: int, tmp_path, decoding):
        data = written(tmp_path, options)
        begin, end = footer_of(data).chunk_offsets[[0, -1]].tolist()
        path = tmp_path / "x"
        for at in range(begin, end, step):
            damaged = bytearray(data)
            damaged[at] ^= 0x04
            path.write_bytes(damaged)
            with pytest.raises(CorruptShardError, match=f"where: +{path}"):
                decoded(path)


SOME = [*text_records(40), b"", random.Random(4).randbytes(150_000)]


def written(folder, options: str) -> bytes:
    return array_record_bytes(SOME, options=options, folder=str(folder))


def decoded(data, *, path: str = "", hashed: bool = True) -> list[bytes]:
    if isinstance(data, pathlib.Path):
        path, data = str(data), data.read_bytes()
    footer = footer_of(data)
    file = io.BytesIO(data)
    file.seek(footer.chunk_offsets[0])
    walk = walk_chunks(file, footer, path=path, range_bytes=40_000)
    parts = (part for chunks in walk for part in [chunks.decode(hashed=hashed)])
    return [record for part in parts for record in part]
