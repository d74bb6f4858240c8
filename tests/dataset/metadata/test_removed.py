"""Lists of removed records."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gristmill.dataset.base.digest import RecordsDigest, words_of
from gristmill.dataset.base.errors import FormatVersionError, InvalidDatasetError
from gristmill.dataset.metadata.removed import RemovedRecords, read_removed

WORDS = words_of(np.array([5, 7, 9], np.uint32), np.array([1, 0, 300]))


def made() -> RemovedRecords:
    return RemovedRecords.of(np.array([2, 5, 1 << 40]), WORDS)


def test_a_list_is_read_as_it_was_written():
    again = RemovedRecords.decode(made().encode(), where="list")
    assert again.records.tolist() == [2, 5, 1 << 40]
    assert again.digest_hex == RecordsDigest.of_words(WORDS).hex == made().digest_hex
    one = RecordsDigest.of_words(WORDS[1:2])
    assert (int(again.digest_low[1]), int(again.digest_high[1])) == (one.low, one.high)


def test_arrays_are_those_of_the_format(tmp_path):
    path = tmp_path / "list.npz"
    path.write_bytes(made().encode())
    with np.load(path) as arrays:
        found = {name: str(arrays[name].dtype) for name in arrays.files}
    assert found == {
        "version": "int64",
        "records": "int64",
        "digest_low": "uint64",
        "digest_high": "uint64",
    }


@pytest.mark.parametrize("records", [[5, 2, 9], [2, 2, 9], [-1, 2, 3]])
def test_numbers_that_do_not_rise_are_refused(records):
    data = RemovedRecords.of(np.array(records), WORDS).encode()
    with pytest.raises(InvalidDatasetError, match="list of removed records"):
        RemovedRecords.decode(data, where="list")


def test_columns_of_different_lengths_are_refused():
    bad = dataclasses.replace(made(), digest_low=np.zeros(2, np.uint64))
    with pytest.raises(InvalidDatasetError, match="list of removed records"):
        RemovedRecords.decode(bad.encode(), where="list")


def test_any_flipped_byte_is_found_or_harmless():
    data = made().encode()
    for at in range(0, len(data), 7):
        damaged = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        try:
            got = RemovedRecords.decode(damaged, where="list")
        except (InvalidDatasetError, FormatVersionError):
            continue
        assert got.records.tolist() == made().records.tolist()
        assert got.digest_hex == made().digest_hex


def test_a_list_of_another_removal_is_refused(tmp_path):
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "list.npz").write_bytes(made().encode())
    removed = {
        "edition": 1,
        "list": "index/list.npz",
        "records": 3,
        "records_digest": made().digest_hex,
    }
    assert len(read_removed(str(tmp_path), removed).records) == 3
    for other in ({"records": 2}, {"records_digest": "0" * 32}):
        with pytest.raises(InvalidDatasetError, match="not the one"):
            read_removed(str(tmp_path), removed | other)
    with pytest.raises(InvalidDatasetError, match="outside"):
        read_removed(str(tmp_path), removed | {"list": "../list.npz"})
