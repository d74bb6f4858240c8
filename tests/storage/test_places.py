"""The places of records, encoded in any order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.places import Places

FILES = st.integers(0, 2**31 - 1)
PLACES = st.integers(0, 2**62 - 1)


def made(rows: list[tuple[int, int]]) -> Places:
    files, places = np.array(rows, np.int64).reshape(-1, 2).T
    return Places(files, places)


@given(st.lists(st.tuples(st.integers(0, 3) | FILES, st.integers(0, 999) | PLACES)))
def test_what_was_encoded_is_decoded(rows: list[tuple[int, int]]) -> None:
    files, places = Places.decode(made(rows).encode(), len(rows))
    assert list(zip(files.tolist(), places.tolist(), strict=True)) == rows


@given(
    st.lists(st.tuples(FILES, PLACES), min_size=1, max_size=5),
    st.data(),
)
def test_every_flipped_bit_is_found(
    rows: list[tuple[int, int]], data: st.DataObject
) -> None:
    encoded = bytearray(made(rows).encode())
    bit = data.draw(st.integers(0, 8 * len(encoded) - 1))
    encoded[bit // 8] ^= 1 << bit % 8
    with pytest.raises(ValueError, match=r"places|checksum"):
        Places.decode(bytes(encoded), len(rows))


@pytest.mark.parametrize("records", [0, 1, 3, 8])
def test_places_of_other_records_are_refused(records: int) -> None:
    encoded = made([(0, 5), (1, 2)]).encode()
    with pytest.raises(ValueError, match="places"):
        Places.decode(encoded, records)


@pytest.mark.parametrize("count", [65_535, 65_536, 65_537, 150_000])
def test_records_take_few_bytes(count: int) -> None:
    random = np.random.default_rng(count)
    lengths = random.lognormal(6, 1, count).astype(np.int64) + 16
    files, places = np.zeros(count, np.int64), np.cumsum(lengths) - lengths
    order = random.permutation(count)
    for found, most in (
        (Places(files, places), 2),
        (Places(files, np.arange(count)), 0.3),
        ((files, places[order]), 4),
        ((random.integers(0, 2**31, count), random.integers(0, 2**62, count)), 12),
    ):
        encoded = Places(*found).encode()
        assert len(encoded) <= most * count + 40
        decoded = Places.decode(encoded, count)
        assert all(map(np.array_equal, decoded, found))
