"""Some records of a dataset, mostly the first."""

from __future__ import annotations

import pathlib

import pytest

from gristmill.dataset.arrayrecord.footer import read_footer
from gristmill.dataset.base.errors import (
    CorruptShardError,
    InputError,
    StorageMissingError,
)
from gristmill.dataset.shards.shard_reader import first_records, some_records
from tests.support.datasets import convert

FILES = [[b"%d-%d" % (file, number) for number in range(40)] for file in range(3)]
RECORDS = [record for file in FILES for record in file]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder: pathlib.Path = tmp_path_factory.mktemp("first")
    return convert(folder, [FILES[0], [], *FILES[1:]], group_size=7)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 40, 41, 119, 120, 121])
def test_as_many_as_asked_for_in_order(dataset: str, count: int) -> None:
    assert list(first_records(dataset, "train", count)) == RECORDS[:count]


@pytest.mark.parametrize(
    "ranges",
    [
        [range(39, 41)],
        [range(5, 100)],
        [range(0, 1), range(3, 3), range(20, 22), range(79, 80), range(119, 130)],
        [range(120, 130)],
    ],
)
def test_records_by_their_numbers(dataset: str, ranges: list[range]) -> None:
    wanted = [RECORDS[n] for one in ranges for n in one if n < len(RECORDS)]
    assert list(some_records(dataset, "train", ranges)) == wanted


def test_only_chunks_of_the_records_are_read(tmp_path: pathlib.Path) -> None:
    damaged = convert(tmp_path, FILES[:1], group_size=7)
    (path,) = pathlib.Path(damaged).glob("*.array_record*")
    data = bytearray(path.read_bytes())
    footer = read_footer(lambda a, b: bytes(data[a:b]), len(data), path=str(path))
    data[int(footer.chunk_offsets[1]) + 50] ^= 0xFF
    path.write_bytes(data)
    ranges = [range(6, 7), range(14, 16)]
    assert list(some_records(damaged, "train", ranges)) == [
        FILES[0][n] for n in (6, 14, 15)
    ]
    with pytest.raises(CorruptShardError):
        list(some_records(damaged, "train", [range(7, 8)]))


def test_records_before_a_damaged_chunk_come_first(tmp_path: pathlib.Path) -> None:
    damaged = convert(tmp_path, FILES[:1], group_size=7)
    (path,) = pathlib.Path(damaged).glob("*.array_record*")
    data = bytearray(path.read_bytes())
    footer = read_footer(lambda a, b: bytes(data[a:b]), len(data), path=str(path))
    data[int(footer.chunk_offsets[2]) + 50] ^= 0xFF
    path.write_bytes(data)
    found = first_records(damaged, "train", 40)
    assert [next(found) for _ in range(14)] == FILES[0][:14]
    with pytest.raises(CorruptShardError):
        next(found)


def test_wrong_bytes_are_never_shown(tmp_path: pathlib.Path, hashing) -> None:
    damaged = convert(tmp_path, [[b"%d" % number * 50 for number in range(40)]])
    (path,) = pathlib.Path(damaged).glob("*.array_record*")
    data = bytearray(path.read_bytes())
    footer = read_footer(lambda a, b: bytes(data[a:b]), len(data), path=str(path))
    data[int(footer.chunk_offsets[30]) + 52] ^= 0x01  # In the record, which decodes.
    path.write_bytes(data)
    found = first_records(damaged, "train", 40)
    assert [next(found) for _ in range(30)] == [b"%d" % i * 50 for i in range(30)]
    with pytest.raises(CorruptShardError):
        next(found)


def test_a_split_that_is_not_there(dataset: str) -> None:
    with pytest.raises(InputError, match="no such split"):
        next(first_records(dataset, "test", 1))


def test_a_missing_shard_is_told_with_what_to_do(tmp_path: pathlib.Path) -> None:
    dataset = convert(tmp_path, FILES, group_size=7)
    lost = sorted(pathlib.Path(dataset).glob("*.array_record*"))[1]
    lost.unlink()
    found = first_records(dataset, "train", 80)
    assert [next(found) for _ in range(40)] == FILES[0]
    with pytest.raises(StorageMissingError, match="a shard of the dataset") as caught:
        next(found)
    assert caught.value.where == str(lost)
    assert f"gristmill verify {dataset} --quick" in str(caught.value.cure)
