"""Reading batches of records from local shards, whole and damaged."""

import concurrent.futures
import itertools
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import threading

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset.base.errors import (
    CorruptShardError,
    GristmillError,
    TransposedChunkError,
)
from gristmill.dataset.metadata.shard_index import map_index
from gristmill.loader.reading.batch_reader import BatchReader
from gristmill.loader.reading.shard_file import ReadLimits, open_shard
from gristmill.loader.reading.shard_list import ShardList
from tests.support.datasets import convert
from tests.support.memory import peak_memory
from tests.support.records import (
    AWKWARD_RECORDS,
    read_array_records,
    text_records,
    write_array_records,
)

COMPRESSIONS = ["zstd:3", "brotli:3", "snappy", "uncompressed"]
FILES = (
    text_records(70, seed=1),
    [],
    list(AWKWARD_RECORDS),
    text_records(1, seed=2),
    [],
)
RECORDS = [record for file in FILES for record in file]


def shard_paths(dataset: str) -> list[pathlib.Path]:
    return sorted(pathlib.Path(dataset).glob("*.array_record-*"))


@pytest.fixture(scope="module", params=[1, 16], ids="group{}".format)
def converted(request, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("converted")
    return convert(folder, FILES, group_size=request.param)


@pytest.fixture
def copy(converted: str, tmp_path: pathlib.Path) -> str:
    return str(shutil.copytree(converted, tmp_path / "copy"))


@pytest.mark.slow
@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("compression", "group_size"),
    list(itertools.product(COMPRESSIONS, [1, 3, 16])),
)
def test_every_compression_and_group_size_reads_what_the_official_reader_does(
    tmp_path: pathlib.Path, group_size: int, compression: str
) -> None:
    path = convert(tmp_path, FILES, group_size=group_size, compression=compression)
    official = [record for p in shard_paths(path) for record in read_array_records(p)]
    order = np.random.default_rng(3).permutation(len(RECORDS))
    assert official == RECORDS
    assert [loader.open(path)[i] for i in range(len(RECORDS))] == official
    assert loader.open(path)[order] == [official[i] for i in order]


@pytest.mark.parametrize("wanted", [[40], [3, 50, 40]])
def test_a_transposed_file_is_refused(tmp_path: pathlib.Path, wanted) -> None:
    path = tmp_path / "plain.array_record"
    write_array_records(path, FILES[0], options="group_size:1,transpose:true")
    with pytest.raises(TransposedChunkError, match=r"dataset\.Writer") as caught:
        loader.open(path)[wanted]
    assert str(path) in (caught.value.where or "")


@settings(max_examples=60)
@given(wanted=st.lists(st.integers(0, len(RECORDS) - 1), max_size=60))
def test_any_batch_in_any_order_with_repeats(converted: str, wanted: list[int]) -> None:
    assert loader.open(converted).read(wanted) == [RECORDS[i] for i in wanted]


@pytest.mark.parametrize("part_bytes", [1_000, 1 << 20])
def test_threads_read_what_one_does(copy: str, part_bytes: int) -> None:
    limits = ReadLimits(part_bytes=part_bytes, thread_bytes=1_000)
    reader = BatchReader(loader.open(copy).stored.shards, limits=limits)
    order = np.random.default_rng(4).integers(0, len(RECORDS), 200)
    for threads in (1, 2, 7):
        assert reader.read(order, threads=threads) == [RECORDS[i] for i in order]
    # The first of several damaged records is named, whichever thread is first.
    path = shard_paths(copy)[0]
    index = map_index(f"{copy}/index/{path.name}.index")
    data = bytearray(path.read_bytes())
    for _, begin, end, _, _ in index.find_records([20, 40, 60]):
        data[(begin + end) // 2] ^= 1
    path.write_bytes(data)
    errors = set()
    for threads in (1, 2, 7):
        with pytest.raises(CorruptShardError) as caught:
            reader.read(np.arange(len(RECORDS)), threads=threads)
        errors.add(str(caught.value))
    assert len(errors) == 1


@pytest.mark.slow
def test_a_fork_while_a_thread_reads_a_record(converted: str) -> None:
    """The thread that reads, and what it holds, are not in the child."""
    dataset = loader.open(converted)
    expected = dataset[7]
    stop = threading.Event()

    def read() -> None:
        while not stop.is_set():
            assert dataset[7] == expected

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        for _ in range(5):
            child = os.fork()
            if not child:
                signal.alarm(20)
                os._exit(dataset[7] != expected)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        reading.result()


@pytest.mark.slow
def test_a_batch_from_more_shards_than_the_process_may_open(
    tmp_path: pathlib.Path,
) -> None:
    for i in range(120):
        path = tmp_path / f"{i:03}.array_record"
        write_array_records(path, [b"first of %d" % i, b"second of %d" % i])
    program = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
from gristmill import loader
for cache_dir in ("", sys.argv[2]):
    dataset = loader.open(sys.argv[1] + "/*.array_record", cache_dir=cache_dir)
    for start in (0, 1):
        assert dataset[start::2] == [
            b"%s of %d" % ((b"first", b"second")[start], i) for i in range(120)
        ]
"""
    arguments = [str(tmp_path), str(tmp_path / "cache")]
    subprocess.run([sys.executable, "-c", program, *arguments], check=True)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("wanted", [[20], [3, 20, 20, 22, 60]])
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soak)])
def test_every_flipped_byte_of_a_chunk_is_an_error_or_does_not_matter(
    copy: str, step: int, wanted: list[int], decoding: str
) -> None:
    path = shard_paths(copy)[0]
    index = map_index(f"{copy}/index/{path.name}.index")
    ((_, begin, end, _, _),) = index.find_records([20])
    good = path.read_bytes()[begin:end]
    reader = BatchReader(loader.open(copy).stored.shards)
    records, expected = np.array(wanted), [RECORDS[i] for i in wanted]
    errors = []
    # The file stays mapped: the dataset sees each change.
    with open(path, "r+b", buffering=0) as file:
        for at, byte in [*enumerate(good)][::step]:
            file.seek(begin + at)
            file.write(bytes([byte ^ (0xFF if at % 2 else 1 << at % 8)]))
            try:
                assert reader.read(records) == expected, at
            except CorruptShardError as e:
                errors.append(str(e))
            file.seek(begin + at)
            file.write(bytes([byte]))
    assert reader.read(records) == expected
    assert all(f"byte offset {begin:,}" in error for error in errors)
    # The hashes of the chunk do not matter, nor do records that are not wanted.
    assert len(errors) > 0.1 * len(good) / step


def test_wrong_checksum_is_found_unless_verify_is_never(copy: str) -> None:
    path = pathlib.Path(copy, "index", f"{shard_paths(copy)[0].name}.index")
    index = map_index(str(path))
    data = bytearray(path.read_bytes())
    at = data.index(index.crc32cs.tobytes()) + 4 * 20
    data[at] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptShardError, match=r"record 20 of the shard") as caught:
        loader.open(copy)[[3, 20, 21]]
    assert f"{google_crc32c.value(RECORDS[20]):#010x}" in str(caught.value)
    assert loader.open(copy, verify="never")[[3, 20]] == [RECORDS[3], RECORDS[20]]
    assert loader.open(copy)[[3, 21]] == [RECORDS[3], RECORDS[21]]


def test_index_of_another_shard_is_an_error(copy: str) -> None:
    first, _, third, *_ = shard_paths(copy)
    shutil.copy(f"{copy}/index/{third.name}.index", f"{copy}/index/{first.name}.index")
    with pytest.raises(GristmillError, match=first.name):
        loader.open(copy)[3]


def test_chunk_that_claims_to_be_huge_is_refused_before_it_is_allocated(
    copy: str,
) -> None:
    path = shard_paths(copy)[0]
    begin = loader.open(copy).stored.offset_bytes(20)
    data = bytearray(path.read_bytes())
    data[begin + 32 : begin + 40] = struct.pack("<Q", 1 << 40)
    path.write_bytes(data)
    dataset = loader.open(copy, verify="never")
    with peak_memory() as peak, pytest.raises(CorruptShardError, match="limit"):
        dataset[[20, 21]]
    assert peak.bytes < 4 << 20


@settings(max_examples=100)
@given(
    at=st.integers(80, 1_000),
    value=st.binary(min_size=1, max_size=8),
    record=st.integers(0, 69),
)
def test_damaged_index_never_gives_a_wrong_record(
    tmp_path_factory, converted: str, at: int, value: bytes, record: int
) -> None:
    shard = shard_paths(converted)[0]
    path = pathlib.Path(converted, "index", f"{shard.name}.index")
    data = bytearray(path.read_bytes())
    at = min(at, len(data) - len(value))
    data[at : at + len(value)] = value
    bad = tmp_path_factory.getbasetemp() / f"bad-{pathlib.Path(converted).parent.name}"
    bad.write_bytes(data)
    opened = open_shard(str(shard), index_path=str(bad))
    reader = BatchReader(
        ShardList(
            paths=[str(shard)],
            index_paths=[str(bad)],
            starts=np.zeros(1, np.int64),
            ends=np.array([opened.index.records]),
            file_records=np.array([-1]),
            file_bytes=np.array([-1]),
            name="fuzzed",
        )
    )
    try:
        assert reader.read(np.array([record])) == [RECORDS[record]]
    except GristmillError as e:
        where = str(e)
    else:
        where = "fuzzed"
    assert "fuzzed" in where


class TestPlainFiles:
    """Files without an index: the hashes of their chunks are compared."""

    @pytest.fixture(params=["zstd:3", "uncompressed"])
    def plain(self, request, tmp_path: pathlib.Path) -> pathlib.Path:
        path = tmp_path / "plain.array_record"
        write_array_records(path, FILES[0], options=f"group_size:4,{request.param}")
        return path

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.soak)])
    def test_every_flipped_byte_is_an_error_that_says_where(
        self, plain: pathlib.Path, step: int, decoding: str
    ) -> None:
        dataset = loader.open(plain, cache_dir="")
        reader = BatchReader(dataset.stored.shards)
        begin = dataset.stored.offset_bytes(20)
        end = dataset.stored.offset_bytes(24)
        good = plain.read_bytes()
        # The file stays mapped: the dataset sees each change.
        with open(plain, "r+b", buffering=0) as file:
            places = *range(begin, begin + 48), *range(begin + 48, end, 29)
            for at in places[::step]:
                file.seek(at)
                file.write(bytes([good[at] ^ 1 << at % 8]))
                for wanted in ([22], [3, 21, 22, 60]):
                    with pytest.raises(CorruptShardError) as caught:
                        reader.read(np.array(wanted))
                    where = caught.value.where
                    assert f"{plain}, record 2" in where, at
                    assert f"byte offset {begin:,}" in where
                file.seek(at)
                file.write(good[at : at + 1])
        records = [FILES[0][i] for i in (22, 3, 60)]
        assert reader.read(np.array([22, 3, 60])) == records

    def test_nothing_is_compared_where_nothing_is_to_be(self, plain, decoding) -> None:
        self.flip(plain, 20, at=16)  # In the hash of the data itself.
        unchecked = loader.open(plain, verify="never")
        assert unchecked[20] == FILES[0][20]
        assert unchecked[[20, 1]] == [FILES[0][20], FILES[0][1]]

    def test_beside_shards_with_an_index(self, copy: str, tmp_path, decoding) -> None:
        plain = tmp_path / "a.array_record"
        write_array_records(plain, FILES[0])
        shard = shard_paths(copy)[0]
        both = loader.open([plain, shard], cache_dir="")
        assert both[[3, 70, 75]] == [FILES[0][3], FILES[0][0], FILES[0][5]]
        self.flip(plain, 3)
        for wanted in ([3, 70], [70, 3, 75]):
            with pytest.raises(CorruptShardError, match=r"a\.array_record, record 3 "):
                loader.open([plain, shard], cache_dir="")[wanted]
        # Of the shard, the records are compared, and not the hashes.
        index = map_index(f"{copy}/index/{shard.name}.index")
        begin = index.find_records([40])[0][1]
        data = bytearray(shard.read_bytes())
        data[begin] ^= 1
        shard.write_bytes(data)
        assert loader.open([plain, shard], cache_dir="")[[4, 110]] == [
            FILES[0][4],
            FILES[0][40],
        ]

    def test_block_headers_that_are_read(self, tmp_path, decoding) -> None:
        path = tmp_path / "long.array_record"
        chance = np.random.default_rng(1)
        records = [chance.bytes(50_000) for _ in range(6)]
        write_array_records(path, records)
        good = path.read_bytes()
        for block in range(1, 5):
            for at in (0, 7, 8, 23):
                data = bytearray(good)
                data[block * 65_536 + at] ^= 0x10
                path.write_bytes(data)
                dataset = loader.open(path, cache_dir="")
                starts = [dataset.stored.offset_bytes(i) for i in range(6)]
                hit = np.searchsorted(starts, block * 65_536, side="right") - 1
                for read in (lambda i, d=dataset: d[i], lambda i, d=dataset: d[[i, i]]):
                    with pytest.raises(CorruptShardError, match=f"record {hit} of"):
                        read(hit)
                    assert read((hit + 2) % 6) in (
                        records[(hit + 2) % 6],
                        [records[(hit + 2) % 6]] * 2,
                    )

    @staticmethod
    def flip(path: pathlib.Path, record: int, *, at: int = 45) -> None:
        """Flips a bit of a record's chunk."""
        begin = loader.open(path, cache_dir="").stored.offset_bytes(record)
        data = bytearray(path.read_bytes())
        data[begin + at] ^= 1
        path.write_bytes(data)
