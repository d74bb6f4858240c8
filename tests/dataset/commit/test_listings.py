"""Listings as columns: the same files as the storage lists, found by their names."""

from __future__ import annotations

import pathlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.commit.listings import (
    Listing,
    Listings,
    decode_name,
    encode_names,
    find_names,
)
from gristmill.dataset.storage.base import FileInfo
from tests.support.memory import peak_memory

NAMES = st.text("ab\udc80é.", min_size=1, max_size=6)


@given(st.sets(NAMES, max_size=8), st.lists(NAMES, max_size=8), NAMES)
def test_names_are_found_as_in_a_set(there, wanted, begin):
    infos = [FileInfo(f"d/{name}", len(name), crc32c=None) for name in there]
    listing = Listing.of(infos)
    assert {*map(decode_name, listing.names)} == there
    for name, row in zip(wanted, listing.find(encode_names(wanted)), strict=True):
        assert (row >= 0) == (name in there) == listing.has(name)
        assert row < 0 or decode_name(listing.names[row]) == name
    found = {*map(decode_name, listing.with_prefix(begin))}
    assert found == {name for name in there if name.startswith(begin)}


def test_longer_names_than_any_that_is_there():
    assert find_names(encode_names(["ab"]), encode_names(["abc", "ab"])).tolist() == [
        *(-1, 0)
    ]
    assert find_names(encode_names([]), encode_names(["a"])).tolist() == [-1]


def test_files_in_several_directories(tmp_path: pathlib.Path):
    (tmp_path / "index").mkdir()
    for path, size in (("a", 1), ("index/a", 2), ("index/b", 3)):
        (tmp_path / path).write_bytes(bytes(size))
    listings = Listings(str(tmp_path))
    paths = ["index/b", "b", "a", "none/a", "index/a"]
    sizes, crc32cs = listings.find(paths)
    assert sizes.tolist() == [3, -1, 1, -1, 2]
    assert crc32cs.tolist() == [-1] * 5
    assert [*map(len, (listings.of("").names, listings.of("none").names))] == [1, 0]


def test_checksums_stay_with_their_files():
    infos = [FileInfo(f"d/{n}", n, crc32c=n % 3 or None) for n in range(200)]
    random.Random(0).shuffle(infos)
    listing = Listing.joined([Listing.of(infos[:150]), Listing.of(infos[100:])])
    assert len(listing.names) == 200
    for info in infos:
        row = listing.find(encode_names([info.path[2:]]))[0]
        assert listing.sizes[row] == info.size_bytes
        assert listing.crc32cs[row] == (info.crc32c or -1)


@pytest.mark.slow
def test_a_listing_takes_little_memory():
    """Listed as objects, a file takes half a kilobyte."""
    count = 40_000
    infos = (FileInfo(f"gs://b/d/c4-{n:040d}", n, f"{n:016d}") for n in range(count))
    with peak_memory() as peak:
        listing = Listing.of(infos)
    assert len(listing.names) == count
    assert peak.bytes < 350 * count
