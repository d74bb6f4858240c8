"""The spool of an array: what it gives back, and what a disk does to it."""

from __future__ import annotations

import os
import pathlib
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.array_spool import ArraySpool
from gristmill.dataset.base.errors import StorageError
from tests.support.open_files import files_of_at_most, open_files


@given(st.lists(st.integers(0, 99), max_size=5), st.data())
def test_runs_are_given_back(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], data: st.DataObject
) -> None:
    directory = str(tmp_path_factory.getbasetemp())
    values = np.arange(sum(sizes), dtype=np.uint32)
    with closing(ArraySpool(directory, "<u2")) as spool:
        for part in np.split(values, np.cumsum(sizes)[:-1]):
            spool.append(part)
            assert np.array_equal(spool.read(0, len(spool)), values[: len(spool)])
        assert len(spool) == len(values)
        place = st.integers(0, len(values))
        pairs = data.draw(st.lists(st.tuples(place, place).map(sorted), max_size=6))
        # Some follow one another, as those of whole documents do.
        pairs += [(begin, begin + 1) for begin in range(len(values))]
        begins, ends = np.array([*pairs, (0, 0)], np.int64).T
        found = spool.gather(begins, ends)
        assert found.dtype == np.uint16
        expected = [values[a:b] for a, b in pairs]
        assert found.tolist() == np.concatenate([[], *expected]).tolist()


def test_all_values_are_mapped(tmp_path: pathlib.Path) -> None:
    with closing(ArraySpool(str(tmp_path), "<i8")) as spool:
        assert spool.mapped().tolist() == []
        spool.append(np.array([5, -1]))
        mapped = spool.mapped()
    assert mapped.dtype == np.int64
    assert mapped.tolist() == [5, -1]


def test_a_file_that_lost_its_end(tmp_path: pathlib.Path) -> None:
    with closing(ArraySpool(str(tmp_path), "<i8")) as spool:
        spool.append(np.arange(100))
        spool.read(0, 100)
        (number,) = (n for n, to in open_files() if to.startswith(f"{tmp_path}/"))
        os.truncate(int(number), 400)
        with pytest.raises(StorageError) as e:
            spool.read(0, 100)
    assert str(e.value) == (
        "a temporary file has lost its end\n"
        f"  where:    {tmp_path}\n"
        "  expected: 800 bytes or more\n"
        "  got:      400\n"
        "  to do:    check the disk of this machine, then run again"
    )


@pytest.mark.parametrize("values", [13_000, 1_000_000])
def test_a_full_disk(tmp_path: pathlib.Path, values: int) -> None:
    """Values that are still buffered fail when they are read."""

    def add_and_read(spool: ArraySpool) -> None:
        spool.append(np.arange(values))
        spool.read(0, values)

    with (
        closing(ArraySpool(str(tmp_path), "<i8")) as spool,
        files_of_at_most(100_000),
        pytest.raises(StorageError) as e,
    ):
        add_and_read(spool)
    assert str(e.value) == (
        "cannot keep tokens on the way into a shard\n"
        f"  where:    {tmp_path}\n"
        "  got:      File too large\n"
        "  to do:    free some space there, then run again: a shard needs disk for its "
        "tokens and for its own file"
    )
