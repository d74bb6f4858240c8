"""Listings as columns: the same files as the storage lists, found by their names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.commit.listings import (
    Listing,
    decode_name,
    encode_names,
)
from gristmill.dataset.storage.base import FileInfo

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
