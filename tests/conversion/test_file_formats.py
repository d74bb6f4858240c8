"""Formats known by their first bytes, of files that their own writers made."""

from __future__ import annotations

import gzip
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.formats.file_formats import HEAD_BYTES, format_of
from tests.support.other_formats import MAKERS, MORE
from tests.support.records import (
    array_record_bytes,
    frames_of,
    small_records,
    text_records,
    write_with_tensorflow,
)


def name_of(data: bytes) -> str | None:
    found = format_of(data[:HEAD_BYTES])
    return None if found is None else found.name


@pytest.mark.parametrize(
    ("name", "make"), [*MAKERS.items(), *MORE], ids=[*MAKERS, *(n for n, _ in MORE)]
)
def test_each_is_named_with_what_to_do(name, make):
    found = format_of(make()[:HEAD_BYTES])
    assert found is not None
    assert found.name == name
    assert found.cure


@pytest.mark.parametrize("options", ["group_size:1", "transpose:true", "uncompressed"])
def test_array_records(tmp_path, options):
    data = array_record_bytes([b"one", b"two"], options=options, folder=str(tmp_path))
    assert name_of(data) == "ArrayRecord"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("", "TFRecord"),
        ("GZIP", "gzip-compressed TFRecord"),
        ("ZLIB", "zlib-compressed TFRecord"),
    ],
)
@pytest.mark.parametrize(
    "records", [[b""], text_records(100), [b'{"a": 1}\n' * 9]], ids=["", "text", "json"]
)
def test_tfrecords_as_tensorflow_writes_them(tmp_path, option, name, records):
    write_with_tensorflow(tmp_path / "in", records, compression=option)
    assert name_of((tmp_path / "in").read_bytes()) == name


@pytest.mark.parametrize(
    ("compress", "name"),
    [
        (bytes, "TFRecord"),
        (gzip.compress, "gzip-compressed TFRecord"),
        (zlib.compress, "zlib-compressed TFRecord"),
    ],
)
def test_tfrecords_of_text(compress, name):
    assert name_of(compress(frames_of([b'{"a": 1}\n' * 999]))) == name


class TestDamagedTFRecords:
    """They are of no other format: only reading them tells what is damaged."""

    @given(small_records(), st.integers(0, 95), st.sampled_from([bytes, gzip, zlib]))
    def test_a_flipped_bit_of_the_first_header(self, records, bit, compression):
        data = frames_of([*records, b"record"])
        if compression is not bytes:
            data = compression.compress(data)
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        found = name_of(bytes(damaged))
        assert found is None or found.endswith("TFRecord")

    @pytest.mark.parametrize(
        "data",
        [
            b"",
            b"\n",
            b"\x1f",
            bytes(4096),
            b"\xff" * 4096,
            random.Random(1).randbytes(4096),
            frames_of(text_records(9))[1:],
            frames_of([b"a" * 5000])[:7],
        ],
        ids=range(8),
    )
    def test_other_damage(self, data):
        assert name_of(data) is None
