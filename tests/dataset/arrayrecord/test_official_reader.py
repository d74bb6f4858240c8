"""Reading local files with the official reader."""

from __future__ import annotations

import itertools
import pathlib
import random

import pytest
from array_record.python.array_record_module import ArrayRecordReader

from gristmill.dataset.arrayrecord.official_reader import (
    OfficialReader,
    read_with_official_reader,
)
from gristmill.dataset.base.errors import CorruptShardError, InputError
from tests.support.records import write_array_records

RECORDS = [b"%d" % number * number for number in range(20)]


@pytest.fixture
def path(tmp_path: pathlib.Path) -> str:
    path = tmp_path / "shard"
    write_array_records(path, RECORDS, options="group_size:3,transpose:true")
    return str(path)


def test_ranges_and_numbers(path: str) -> None:
    options = {"readahead_buffer_size": "0"}
    with OfficialReader(path, options=options) as reader:
        assert reader.read_range(3, 7) == RECORDS[3:7]
        assert reader.read_records([9, 2, 9]) == [RECORDS[i] for i in (9, 2, 9)]


@pytest.mark.parametrize("mean_bytes", [1, 3 << 20])
def test_batches(path: str, mean_bytes: int) -> None:
    batches = list(read_with_official_reader(path, 2, 18, mean_bytes=mean_bytes))
    assert list(itertools.chain.from_iterable(batches)) == RECORDS[2:18]
    assert [len(batch) for batch in batches][:-1] == [5, 5, 5][: len(batches) - 1]


def test_records_that_are_not_there(path: str) -> None:
    with OfficialReader(path) as reader:
        with pytest.raises(CorruptShardError) as caught:
            reader.read_range(18, 22)
        assert caught.value.where == f"{path}, records 18 to 22"
        assert caught.value.got
        with pytest.raises(CorruptShardError):
            reader.read_records([20])


def test_a_file_that_is_no_arrayrecord_file(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(1000))
    with pytest.raises(CorruptShardError, match="official reader"):
        list(read_with_official_reader(str(path), 0, 1, mean_bytes=1))


def test_files_elsewhere_are_refused() -> None:
    with pytest.raises(InputError, match="not on a local disk"):
        OfficialReader("gs://bucket/shard")


@pytest.mark.parametrize("keep_bytes", [-1, -65_536, 70_000, 1000])
def test_closing_hides_no_error(tmp_path: pathlib.Path, keep_bytes: int) -> None:
    """Of a file without its end, the official reader complains again when closed."""
    path = tmp_path / "shard"
    records = [random.Random(number).randbytes(1000) for number in range(200)]
    write_array_records(path, records, options="group_size:1,transpose:true")
    path.write_bytes(path.read_bytes()[:keep_bytes])
    official = ArrayRecordReader(str(path))
    with pytest.raises(RuntimeError, match=r"64KB|Riegeli"):
        official.read([150])
    with pytest.raises(RuntimeError, match=r"64KB|Riegeli"):
        official.close()
    with pytest.raises(CorruptShardError, match="official reader cannot read"):
        list(read_with_official_reader(str(path), 0, 200, mean_bytes=1000))
    with (
        pytest.raises(CorruptShardError, match="official reader cannot read") as caught,
        OfficialReader(str(path)) as reader,
    ):
        reader.read_records([150])
    assert caught.value.where == str(path)
    with pytest.raises(KeyError, match="mine"), OfficialReader(str(path)):
        raise KeyError("mine")
    with (
        pytest.raises(CorruptShardError, match=r"64KB|Riegeli"),
        OfficialReader(str(path)),
    ):
        pass
