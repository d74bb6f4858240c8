"""HighwayHash-64: the values in files of the official writer, by every way to them."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import numpy as np
import pytest

from gristmill.dataset.arrayrecord import compiled
from gristmill.dataset.arrayrecord.chunk_hash import hash_bytes, hash_spans
from gristmill.dataset.arrayrecord.chunks import (
    BLOCK_BYTES,
    BLOCK_HEADER_BYTES,
    logical,
)
from tests.support.records import array_record_bytes, footer_of

HASH_BYTES, CHUNK_HEADER_BYTES = 8, 40
# Of every length modulo a packet of 32 bytes, and of many packets.
SIZES = [*range(100), 1000, 4096, 65_512, 65_513, 200_000]


@pytest.fixture(params=["avx2", "any processor", "numpy"])
def way(request):
    """Takes one of the ways to a hash."""
    if request.param == "numpy":
        request.getfixturevalue("without_compiled_part")
        yield
        return
    if not compiled.is_compiled():
        pytest.skip("installed without a C compiler")
    wanted = request.param == "avx2"
    if compiled.part.use_avx2(wanted) != wanted:
        pytest.skip("this processor has no AVX2")
    yield
    compiled.part.use_avx2(True)


def spans_of(data: bytes) -> tuple[bytes, np.ndarray, np.ndarray, np.ndarray]:
    """Returns what a file has hashes of: bytes, begins, ends and the hashes."""
    footer = footer_of(data)
    whole = logical(data, 0)
    blocks = np.arange(0, len(data), BLOCK_BYTES)
    headers = b"".join(data[at : at + BLOCK_HEADER_BYTES] for at in blocks.tolist())
    offsets = footer.chunk_offsets
    starts = offsets - BLOCK_HEADER_BYTES * (1 + (offsets - 1) // BLOCK_BYTES)
    words = np.array(
        [np.frombuffer(whole, "<u8", 3, start) for start in starts.tolist()]
    )
    body = starts + CHUNK_HEADER_BYTES
    at = len(whole) + np.arange(len(blocks)) * BLOCK_HEADER_BYTES
    return (
        bytes(whole) + headers,
        np.concatenate([starts + HASH_BYTES, body, at + HASH_BYTES]),
        np.concatenate([body, body + words[:, 1].astype(np.int64), at + 24]),
        np.concatenate([words[:, 0], words[:, 2], np.frombuffer(headers, "<u8")[::3]]),
    )


@pytest.fixture(scope="module", params=["uncompressed", "zstd:3"])
def official(request, tmp_path_factory):
    chance = random.Random(1)
    records = [chance.randbytes(size) for size in SIZES]
    folder = str(tmp_path_factory.mktemp("official"))
    options = f"group_size:1,{request.param}"
    return spans_of(array_record_bytes(records, options=options, folder=folder))


def test_every_hash_in_a_file_of_the_official_writer(official, way) -> None:
    data, begins, ends, hashes = official
    assert len(hashes) > 2 * len(SIZES)
    assert len({*((ends - begins) % 32).tolist()}) > 25
    np.testing.assert_array_equal(hash_spans(data, begins, ends), hashes)
    for begin, end, expected in list(zip(begins, ends, hashes, strict=True))[:50]:
        assert hash_bytes(data[begin:end]) == expected
        assert hash_bytes(memoryview(data)[begin:end]) == expected


def test_values_that_never_change(way) -> None:
    # That of no bytes is in the signature of every file.
    assert hash_bytes(b"") == 0x72C3B1E9C0139FE1
    assert hash_bytes(bytes(range(17))) == 0xA7084C614077EACA


@pytest.mark.parametrize("span", [(-1, 4), (3, 2), (0, 11), (11, 12), (1 << 62, 5)])
def test_spans_outside_are_refused(way, span: tuple[int, int]) -> None:
    begin, end = np.array([[0, 5], span]).T
    with pytest.raises(IndexError):
        hash_spans(bytes(10), begin, end)


def test_a_process_without_the_compiled_part() -> None:
    program = """
import sys
sys.modules["gristmill.dataset.arrayrecord._compiled"] = None
from gristmill.dataset.arrayrecord import chunk_hash, compiled
assert not compiled.is_compiled()
assert chunk_hash.hash_bytes(b"") == 0x72C3B1E9C0139FE1
"""
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ)
