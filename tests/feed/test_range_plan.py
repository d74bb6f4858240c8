import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gristmill.loader.reading.read_plan import plan_ranges

# (gap before the piece, its size, whether another file begins with it)
PIECES = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 40), st.booleans()), max_size=30
)


def laid_out(pieces: list[tuple[int, int, bool]]) -> list[tuple[int, int, int]]:
    found, file, at = [], 0, 64
    for gap, size, new_file in pieces:
        if new_file:
            file, at = file + 1, 64
        found.append((file, at + gap, at + gap + size))
        at += gap + size
    return found


@given(pieces=PIECES, most_gap=st.integers(0, 50), most_range=st.integers(1, 200))
def test_ranges_hold_every_piece_and_little_else(
    pieces: list[tuple[int, int, bool]], most_gap: int, most_range: int
) -> None:
    laid = laid_out(pieces)
    files, begins, ends = (
        np.array([piece[i] for piece in laid], np.int64) for i in range(3)
    )
    plan = plan_ranges(
        files, begins, ends, most_gap_bytes=most_gap, most_range_bytes=most_range
    )
    covered = [
        list(range(first, last))
        for first, last in zip(plan.firsts, plan.ends, strict=True)
    ]
    assert list(itertools.chain(*covered)) == list(range(len(laid)))
    wanted = sum(end - begin for _, begin, end in laid)
    asked = 0
    for inside, begin, end in zip(
        covered, plan.begin_bytes, plan.end_bytes, strict=True
    ):
        assert len({laid[piece][0] for piece in inside}) == 1
        assert (begin, end) == (laid[inside[0]][1], laid[inside[-1]][2])
        assert end - begin <= most_range or len(inside) == 1
        for a, b in itertools.pairwise(inside):
            assert laid[b][1] - laid[a][2] <= most_gap
        asked += end - begin
    assert asked <= wanted * 1.04
    if wanted > most_range:
        return
    for a, b in itertools.pairwise(covered):
        # Neighbours that touch are always joined.
        last, first = laid[a[-1]], laid[b[0]]
        assert last[0] != first[0] or last[2] != first[1]
