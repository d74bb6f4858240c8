"""The spool: an order that depends on the records alone, parts of even size."""

from __future__ import annotations

import itertools
import os
import pathlib
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.dataset.base.errors import DataLossError, StorageError
from gristmill.transforms.writing.write_group import RecordSpool
from gristmill.transforms.writing.write_split import content_hash
from tests.support.records import checksums


@given(st.lists(st.tuples(st.binary(max_size=3), st.binary(max_size=5))))
def test_keys_come_before_contents(
    tmp_path_factory: pytest.TempPathFactory, pairs: list[tuple[bytes, bytes]]
) -> None:
    directory = tmp_path_factory.getbasetemp()
    with closing(RecordSpool(str(directory))) as spool:
        for key, record in pairs:
            spool.add(record, content_hash(record), key)
        found = [r for batch, _ in spool.batches(spool.order()) for r in batch]
        lengths = np.array([len(record) for _, record in pairs], np.int64)
        crc32cs = checksums([record for _, record in pairs])
        assert spool.digest == RecordsDigest.of(crc32cs, lengths)
    expected = sorted(pairs, key=lambda pair: (pair[0], content_hash(pair[1])))
    assert found == [record for _, record in expected]


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 8))
def test_parts_share_the_bytes(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], parts: int
) -> None:
    directory = tmp_path_factory.getbasetemp()
    with closing(RecordSpool(str(directory))) as spool:
        for length in lengths:
            spool.add(bytes(length), content_hash(bytes(length)))
        order = spool.order()
        cuts = spool.cuts(order, parts)
        assert len(cuts) == parts + 1
        assert cuts[0] == 0
        assert cuts[-1] == len(lengths)
        assert cuts == sorted(cuts)
        share = sum(lengths) / parts
        sizes = np.array(lengths, np.int64)[order]
        for begin, end in itertools.pairwise(cuts):
            assert sizes[begin:end].sum() <= share + max(lengths, default=0)


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_what_the_disk_loses_is_noticed(tmp_path: pathlib.Path, damage: str) -> None:
    with closing(RecordSpool(str(tmp_path))) as spool:
        for _ in range(100):
            spool.add(bytes(100_000), bytes(16))
        list(spool.batches(np.arange(1)))  # All is in the file now.
        file = only_open_file(tmp_path)
        if damage == "cut":
            os.truncate(file, 5_000_000)
            lost = pytest.raises(StorageError, match="lost its end")
        else:
            os.pwrite(file, b"!", 7_654_321)
            lost = pytest.raises(DataLossError, match="changed on the way")
        with lost:
            list(spool.batches(spool.order()))


def only_open_file(directory: pathlib.Path) -> int:
    """Returns the descriptor of the one unnamed file that is open in a directory."""
    for entry in os.scandir("/proc/self/fd"):
        target = pathlib.Path(os.readlink(entry.path))
        if target.parent == directory:
            return int(entry.name)
    raise AssertionError("no file is open there")
