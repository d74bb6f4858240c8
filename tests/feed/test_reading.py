"""Records from local shards: whole, damaged, truncated in use, by many threads."""

import concurrent.futures
import itertools
import os
import pathlib
import shutil
import signal
import threading
from unittest import mock

import google_crc32c
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset import CorruptShardError, GristmillError, TransposedChunkError
from gristmill.dataset.metadata.shard_index import map_index
from gristmill.loader.reading import batch_reader, read_plan
from tests.support.datasets import convert
from tests.support.records import (
    AWKWARD_RECORDS,
    read_array_records,
    text_records,
    write_array_records,
)
from tests.support.told import told

FILES = (text_records(70, seed=1), [], [*AWKWARD_RECORDS], text_records(1, seed=2), [])
RECORDS = [record for file in FILES for record in file]
ENCODINGS = {
    "zstd-1": ("zstd:3", 1),
    "zstd-16": ("zstd:3", 16),
    "uncompressed-1": ("uncompressed", 1),
    "brotli-3": ("brotli:3", 3),
    "snappy-16": ("snappy", 16),
}


def shard_paths(dataset):
    return sorted(pathlib.Path(dataset).glob("*.array_record-*"))


def index_of(shard):
    return shard.parent / "index" / f"{shard.name}.index"


def flip(path, *places, by=1):
    data = bytearray(path.read_bytes())
    for at in places:
        data[at] ^= by
    path.write_bytes(data)


@pytest.fixture(scope="module", params=ENCODINGS)
def encoded(request, tmp_path_factory):
    compression, group_size = ENCODINGS[request.param]
    folder = tmp_path_factory.mktemp("encoded")
    return convert(folder, FILES, compression=compression, group_size=group_size)


@pytest.fixture(scope="module", params=[1, 16], ids="group{}".format)
def converted(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted")
    return convert(folder, FILES, group_size=request.param)


@pytest.fixture
def copy(converted, tmp_path):
    return str(shutil.copytree(converted, tmp_path / "copy"))


@settings(max_examples=40)
@given(wanted=st.lists(st.integers(0, len(RECORDS) - 1), max_size=60))
def test_any_records_in_any_order_with_repeats(encoded, wanted):
    assert loader.open(encoded)[wanted] == [RECORDS[i] for i in wanted]


def test_all_records_are_those_of_the_official_reader(encoded):
    official = map(read_array_records, shard_paths(encoded))
    assert [*itertools.chain(*official)] == RECORDS
    dataset = loader.open(encoded)
    assert [dataset[number] for number in range(len(RECORDS))] == RECORDS


def test_a_transposed_file_is_refused(tmp_path):
    path = tmp_path / "plain.array_record"
    write_array_records(path, FILES[0], options="group_size:1,transpose:true")
    for wanted in ([40], [3, 50, 40]):
        with told(TransposedChunkError, "dataset.Writer", str(path)):
            loader.open(path)[wanted]


@pytest.mark.parametrize("part_bytes", [1_000, 1 << 20])
def test_threads_read_what_one_does(copy, part_bytes, monkeypatch):
    monkeypatch.setattr(batch_reader, "PART_BYTES", part_bytes)
    monkeypatch.setattr(batch_reader, "THREAD_BYTES", 1_000)
    reader = loader.open(copy).stored.reader
    order = np.random.default_rng(4).integers(0, len(RECORDS), 200)
    for threads in (1, 2, 7):
        assert reader.read(order, threads=threads) == [RECORDS[i] for i in order]
    # The first of several damaged records is named, whichever thread is first.
    path = shard_paths(copy)[0]
    found = map_index(str(index_of(path))).find_records([20, 40, 60])
    flip(path, *{(begin + end) // 2 for _, begin, end, _, _ in found})
    errors = set()
    for threads in (1, 2, 7):
        with pytest.raises(CorruptShardError) as caught:
            reader.read(np.arange(len(RECORDS)), threads=threads)
        errors.add(str(caught.value))
    assert len(errors) == 1


@pytest.mark.slow
def test_a_fork_while_a_thread_reads_a_record(converted):
    """The thread that reads, and what it holds, are not in the child."""
    dataset, stop = loader.open(converted), threading.Event()

    def read():
        while not stop.is_set():
            assert dataset[7] == RECORDS[7]

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        for _ in range(5):
            child = os.fork()
            if not child:
                signal.alarm(20)
                os._exit(dataset[7] != RECORDS[7])
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        reading.result()


def errors_of_flips(path, places, read):
    """Changes each of some bytes in turn; yields what a reader says to it."""
    good = pathlib.Path(path).read_bytes()
    # The file stays mapped: the dataset sees each change.
    with open(path, "r+b", buffering=0) as file:
        for at in places:
            file.seek(at)
            file.write(bytes([good[at] ^ (0xFF if at % 2 else 1 << at % 8)]))
            try:
                read()
                yield None
            except CorruptShardError as error:
                yield str(error)
            file.seek(at)
            file.write(good[at : at + 1])
    read()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("plain", [None, "zstd:3", "uncompressed"])
@pytest.mark.parametrize("wanted", [[20], [3, 21, 21, 22, 60]])
@pytest.mark.parametrize("step", [11, pytest.param(1, marks=pytest.mark.soak)])
def test_a_flipped_byte_is_an_error_that_says_where_or_does_not_matter(
    tmp_path, plain, step, wanted, decoding
):
    opened = tmp_path / "plain.array_record"
    if plain:
        write_array_records(opened, FILES[0], options=f"group_size:4,{plain}")
    else:
        opened = convert(tmp_path, FILES[:1], group_size=4)
    dataset = loader.open(opened, cache_dir="")
    path = dataset.shard(0).path
    begin, end = map(dataset.stored.offset_bytes, (20, 24))

    def read():
        assert dataset[wanted] == [FILES[0][i] for i in wanted]

    places = range(begin, end, step)
    errors = [*filter(None, errors_of_flips(path, places, read))]
    for error in errors:
        assert f"{path}, record 2" in error
        assert f"byte offset {begin:,}" in error
    # With an index, neither the hashes of the chunk nor other records matter.
    assert len(errors) >= len(places) * (1 if plain else 0.1)


def test_block_headers_that_are_read(tmp_path, decoding):
    path = tmp_path / "long.array_record"
    records = [np.random.default_rng(i).bytes(50_000) for i in range(6)]
    write_array_records(path, records)
    starts = [*map(loader.open(path, cache_dir="").stored.offset_bytes, range(6))]
    for block, at in itertools.product(range(1, 5), (0, 7, 8, 23)):
        hit = int(np.searchsorted(starts, block * 65_536, side="right")) - 1
        flip(path, block * 65_536 + at, by=0x10)
        dataset = loader.open(path, cache_dir="")
        for wanted in (hit, [hit, hit]):
            with pytest.raises(CorruptShardError, match=f"record {hit} of"):
                dataset[wanted]
        other = (hit + 2) % 6
        assert [dataset[other], *dataset[[other, other]]] == [records[other]] * 3
        flip(path, block * 65_536 + at, by=0x10)


def test_what_is_compared_depends_on_the_file(copy, tmp_path, decoding):
    plain, shard = tmp_path / "a.array_record", shard_paths(copy)[0]
    write_array_records(plain, FILES[0])
    both = loader.open([plain, shard], cache_dir="")
    # Of a shard, the records are compared, and not the hashes of chunks.
    flip(shard, int(map_index(str(index_of(shard))).find_records([40])[0][1]))
    assert both[[3, 70, 75, 110]] == [FILES[0][i] for i in (3, 0, 5, 40)]
    at = both.stored.offset_bytes(3)
    flip(plain, at + 16)  # In the hash of the data itself.
    for wanted in ([3, 70], [70, 3, 75]):
        with pytest.raises(CorruptShardError, match=r"a\.array_record, record 3 "):
            loader.open([plain, shard], cache_dir="")[wanted]
    unchecked = loader.open(plain, verify="never")
    assert [unchecked[3], *unchecked[[3, 1]]] == [FILES[0][i] for i in (3, 3, 1)]


def test_a_wrong_checksum_is_found_unless_verify_is_never(copy):
    path = index_of(shard_paths(copy)[0])
    crc32cs = map_index(str(path)).crc32cs
    flip(path, path.read_bytes().index(crc32cs.tobytes()) + 4 * 20)
    with told(
        CorruptShardError,
        "record 20 of the shard",
        f"{google_crc32c.value(RECORDS[20]):#010x}",
    ):
        loader.open(copy)[[3, 20, 21]]
    assert loader.open(copy, verify="never")[[3, 20]] == [RECORDS[3], RECORDS[20]]
    assert loader.open(copy)[[3, 21]] == [RECORDS[3], RECORDS[21]]


@settings(max_examples=100)
@given(
    at=st.integers(16, 1_000),
    value=st.binary(min_size=1, max_size=8),
    record=st.integers(0, 69),
)
def test_a_damaged_index_never_gives_a_wrong_record(
    tmp_path_factory, converted, at, value, record
):
    copy = tmp_path_factory.getbasetemp() / f"i-{pathlib.Path(converted).parent.name}"
    if not copy.exists():
        shutil.copytree(converted, copy)
    good = index_of(shard_paths(converted)[0])
    data = bytearray(good.read_bytes())
    at = min(at, len(data) - len(value))
    data[at : at + len(value)] = value
    (copy / "index" / good.name).write_bytes(data)
    try:
        found, said = loader.open(copy)[record], str(copy)
    except GristmillError as error:
        found, said = RECORDS[record], str(error)
    assert found == RECORDS[record]
    assert str(copy) in said


def test_an_index_of_another_shard_is_an_error(tmp_path):
    """Also where both shards have as many records and bytes."""
    for files, message in (
        (FILES[::2], "not have the size"),
        ([[b"one"], [b"two"]], "not the one of this shard"),
    ):
        made = convert(tmp_path / message, files, compression="uncompressed")
        first, second, *_ = shard_paths(made)
        shutil.copy(index_of(second), index_of(first))
        with told(CorruptShardError, first.name, match=message):
            loader.open(made, verify="never")[0]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("singly", [False, True])
@pytest.mark.parametrize("verify", [None, "never"])
def test_a_shard_that_is_truncated_in_use_is_named_and_read_when_it_is_back(
    encoded, tmp_path, verify, singly
):
    """By renaming, as a copy from elsewhere is: the file that was open stays bad."""
    copy = shutil.copytree(encoded, tmp_path / "copy")
    dataset = loader.open(copy, verify=verify)
    order = np.random.default_rng(0).permutation(len(RECORDS)).tolist()

    def read():
        return [dataset[i] for i in order] if singly else dataset[order]

    expected = [RECORDS[i] for i in order]
    assert read() == expected
    path = dataset.shard(2).path
    data = pathlib.Path(path).read_bytes()
    os.truncate(path, 0)
    for _ in range(2):
        with told(
            CorruptShardError, "restore it from a copy", where=path, got="0 bytes"
        ):
            read()
    assert dataset[:70] == FILES[0]  # The other shards can still be read.
    pathlib.Path(f"{path}.copy").write_bytes(data)
    os.replace(f"{path}.copy", path)
    assert read() == expected


# Whether a piece is of another file, the gap before it, and its size.
PIECES = st.tuples(st.booleans(), st.integers(0, 50), st.integers(1, 200))


@given(pieces=st.lists(PIECES, min_size=1), most_range=st.integers(1, 2_000))
@settings(max_examples=300)
def test_requested_ranges_hold_every_piece_and_little_else(pieces, most_range):
    is_new, gaps, sizes = map(np.array, zip(*pieces, strict=True))
    files, ends = np.cumsum(is_new), 64 + np.cumsum(gaps + sizes)
    limits = {"MOST_GAP_BYTES": 40, "MOST_RANGE_BYTES": most_range}
    with mock.patch.multiple(read_plan, **limits):
        plan = read_plan.plan_ranges(files, ends - sizes, ends)
    assert [0, *plan.ends] == [*plan.firsts, len(pieces)]
    begins, stops = plan.begin_bytes, plan.end_bytes
    assert (stops - begins).sum() <= sizes.sum() * 1.04
    for first, last, begin, end in zip(*plan, strict=True):
        assert (begin, end) == (ends[first] - sizes[first], ends[last - 1])
        assert len({*files[first:last]}) == 1
        assert end - begin <= most_range or last - first == 1
        assert (gaps[first + 1 : last] <= 40).all()
        # Neighbours that touch are always joined.
        if last < len(pieces) and sizes.sum() <= most_range:
            assert is_new[last] or gaps[last]
