from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.formats.parquet_file import RowPlaces

groups_of_rows = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 300)), max_size=8
)


def brute_force(rows, raw_bytes, size_bytes):
    """Returns the place of each row, one after the other."""
    known = all(size for count, size in zip(rows, raw_bytes, strict=True) if count)
    parts = raw_bytes if known else rows
    total, before, places = max(1, sum(parts)), 0, []
    for count, part in zip(rows, parts, strict=True):
        begin, end = (size_bytes * edge // total for edge in (before, before + part))
        places += [begin + row * (end - begin) // count for row in range(count)]
        before += part
    return places


@given(groups=groups_of_rows, size_bytes=st.integers(0, 2000), data=st.data())
def test_rows_before_an_offset_are_those_with_a_smaller_place(groups, size_bytes, data):
    rows, raw_bytes = [g[0] for g in groups], [g[1] for g in groups]
    places = RowPlaces.of(rows, raw_bytes, size_bytes)
    expected = brute_force(rows, raw_bytes, size_bytes)
    assert expected == sorted(expected)
    assert places.rows == sum(rows)
    for offset in (0, size_bytes, data.draw(st.integers(0, size_bytes))):
        found = places.rows_before(offset)
        # A row group without room has all its rows at its begin.
        assert found == sum(place < offset for place in expected)
