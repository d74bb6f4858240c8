"""Block shuffle from a bucket: the same batches as otherwise, in few requests."""

import itertools
import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset.base.errors import StorageError
from gristmill.loader.feed.read_ahead import WindowReads
from gristmill.loader.order.shuffle import BlockShuffle, ShuffleKey
from gristmill.loader.remote.read_options import ReadOptions
from tests.servers.buckets import upload
from tests.servers.gcs_server import GcsServer
from tests.support.datasets import convert
from tests.support.orders import records_of
from tests.support.records import text_records

FILES = [text_records(500, seed=seed) for seed in range(3)]
RECORDS = list(itertools.chain(*FILES))
SHUFFLE = BlockShuffle(block_records=32, window_blocks=8)


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> str:
    return convert(tmp_path_factory.mktemp("converted"), FILES, group_size=16)


@pytest.fixture
def server(server: GcsServer, converted: str) -> GcsServer:
    upload(server, converted, "c4")
    return server


def batches_of(tmp_path: pathlib.Path, **more):
    # A busy machine answers late: what counts requests waits, and asks once.
    limits = {"timeout_seconds": 30, "deadline_seconds": 60, "hedge_factor": None}
    options = ReadOptions(**limits | more)
    dataset = loader.open("gs://bucket/c4", read_options=options, cache_dir=tmp_path)
    return loader.global_batches(
        dataset, batch_size=50, seed=3, shuffle=SHUFFLE, epochs=2, drop_remainder=False
    )


def reads_of(batches, rows=slice(None)) -> WindowReads:
    reads = WindowReads.of(batches.datasets, batches.schedule, rows)
    assert reads is not None
    return reads


@pytest.mark.slow
@given(
    num_records=st.integers(1, 400),
    block_records=st.integers(1, 40),
    window_blocks=st.integers(1, 9),
    epoch=st.integers(0, 3),
)
def test_a_window_is_a_run_of_positions_that_takes_whole_blocks(
    num_records: int, block_records: int, window_blocks: int, epoch: int
) -> None:
    shuffle = BlockShuffle(block_records=block_records, window_blocks=window_blocks)
    about = {"num_records": num_records, "seed": 5, "name": "x"}
    key = ShuffleKey(epochs=np.array([epoch]), **about)
    order = records_of(shuffle, np.arange(num_records), epochs=epoch, **about)
    position = 0
    seen: set[int] = set()
    while position < num_records:
        begin, end = shuffle.window(position, key)
        assert begin == position < end <= num_records
        assert shuffle.window(end - 1, key) == (begin, end)
        blocks = set((order[begin:end] // block_records).tolist())
        assert len(blocks) <= window_blocks
        assert not blocks & seen
        seen |= blocks
        position = end


@pytest.mark.slow
@pytest.mark.parametrize(
    "rows",
    [slice(None), slice(10, 30), np.array([49, 0, 7])],
    ids=["all", "some", "odd"],
)
def test_batches_are_what_they_are_without_windows(
    server: GcsServer, tmp_path: pathlib.Path, rows
) -> None:
    batches = batches_of(tmp_path)
    reads = reads_of(batches, rows)
    assert batches.steps == 60
    for step in [*range(60), 3, 59, 31, 30]:
        assert reads.read(step) == batches.read(step, rows)


def test_a_window_takes_a_request_for_each_block(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    batches = batches_of(tmp_path)
    reads = reads_of(batches)
    batches.read(0)
    server.requests.clear()
    server.sent_bytes = 0
    read = [record for step in range(30) for record in reads.read(step)]
    assert sorted(read) == sorted(RECORDS)
    blocks = -(-len(RECORDS) // 32)
    # And what was read ahead of the next epoch.
    assert sum(server.requests.values()) <= blocks * 1.4
    server.requests.clear()
    for step in range(30):
        batches.read(step)
    assert sum(server.requests.values()) > blocks * 4


def test_records_of_hosts_and_workers_are_read_by_windows(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    batches = batches_of(tmp_path).then(
        batch_size=64, step=0
    )  # The last batch has 56 rows.
    expected = [[RECORDS[i] for i in batches.indices(step)] for step in range(47)]
    assert len(expected[46]) == 56
    for worker in range(2):
        server.requests.clear()
        dataset = batches.records(host=(1, 2))
        dataset.set_slice(slice(worker, None, 2))
        rows = [step[len(step) // 2 :] for step in expected[worker::2]]
        assert list(dataset) == list(itertools.chain(*rows))
        assert sum(server.requests.values()) < 2 * len(RECORDS) / 10


@pytest.mark.slow
def test_records_of_batches_that_change_their_size_are_those_of_their_steps(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    batches = batches_of(tmp_path).then(batch_size=64, step=5)
    expected = [
        RECORDS[i]
        for step in range(batches.steps)
        for i in np.array_split(batches.indices(step), 2)[0]
    ]
    dataset = batches.records(host=(0, 2))
    assert list(dataset) == expected


@pytest.mark.slow
def test_what_fails_is_an_error_of_its_step_and_can_be_tried_again(
    server: GcsServer, tmp_path: pathlib.Path
) -> None:
    batches = batches_of(tmp_path, deadline_seconds=2)
    reads = reads_of(batches)
    expected = batches.read(0)
    server.fail("503", "media", times=10**6)
    with pytest.raises(StorageError, match="HTTP 503"):
        reads.read(0)
    server.faults.clear()
    assert reads.read(0) == expected
