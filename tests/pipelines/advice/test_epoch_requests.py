"""Requests of an epoch: those that loaders send to a bucket."""

from __future__ import annotations

import itertools
import pathlib
from typing import Literal

import pytest

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.advice.epoch_requests import Stored, epoch_requests
from tests.support.buckets import upload
from tests.support.datasets import convert
from tests.support.gcs_server import GcsServer
from tests.support.records import text_records

STORED = Stored(
    records=10**9,
    record_bytes=2000,
    chunk_bytes=1100,
    group_size=1,
    shards=4000,
    index_bytes=8.125e9,
)


def test_a_global_order_takes_a_request_a_record() -> None:
    found = epoch_requests(STORED, shuffle="global", hosts=256, batch_size=1024)
    assert found.requests == pytest.approx(10**9)
    assert found.read_bytes == pytest.approx(1.1e12)
    assert found.first_requests == 256 * 4002
    assert found.listings == 256 * 4


def test_blocks_pay_where_few_hosts_share_them() -> None:
    def requests(hosts: int) -> float:
        return epoch_requests(
            STORED, shuffle="block", hosts=hosts, batch_size=1024
        ).requests

    assert requests(1) == pytest.approx(10**9 / 64, rel=0.02)
    # Of every block each of two hosts needs half, here and there.
    assert 0.4e9 < requests(2) < 0.6e9
    assert requests(256) > 0.9e9


def test_indexes_that_are_too_large_are_read_by_ranges() -> None:
    stored = Stored(**{**vars(STORED), "index_bytes": 1e12})
    found = epoch_requests(stored, shuffle="global", hosts=8, batch_size=1024)
    assert found.requests == pytest.approx(3e9)
    assert found.first_requests == 16


def test_windows_that_do_not_fit_are_read_by_batches() -> None:
    stored = Stored(**{**vars(STORED), "record_bytes": 1e6, "chunk_bytes": 1e6})
    found = epoch_requests(stored, shuffle="block", hosts=1, batch_size=64)
    assert not found.by_window
    assert found.requests > 0.9e9


def test_a_batch_divides_among_the_hosts() -> None:
    with pytest.raises(InputError, match="divide among the hosts"):
        epoch_requests(STORED, shuffle="global", hosts=3, batch_size=10)


@pytest.mark.slow
def test_loaders_send_as_many(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [text_records(500, seed=seed) for seed in range(3)]
    dataset = convert(tmp_path, files)
    size = sum(path.stat().st_size for path in pathlib.Path(dataset).glob("*.array*"))
    records = list(itertools.chain(*files))
    stored = Stored(
        records=len(records),
        record_bytes=sum(map(len, records)) / len(records),
        chunk_bytes=(size - 3 * 98_304) / len(records),
        group_size=1,
        shards=3,
        index_bytes=8.125 * len(records),
    )
    kinds: list[tuple[Literal["global", "block"], int]]
    kinds = [("global", 1), ("block", 1), ("block", 2)]
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        upload(server, dataset, "d")
        opened = loader.open(
            "gs://bucket/d",
            read_options=loader.ReadOptions(hedge_factor=None),
            cache_dir=tmp_path / "cache",
        )
        opened.read([0, 500, 1000])  # The indexes.
        for shuffle, hosts in kinds:
            server.requests.clear()
            batches = loader.global_batches(
                opened, batch_size=50, seed=0, shuffle=shuffle, epochs=1
            )
            for host in range(hosts):
                with batches.feed(process_index=host, process_count=hosts) as feed:
                    assert sum(map(len, feed)) == len(records) // hosts
            found = epoch_requests(stored, shuffle=shuffle, hosts=hosts, batch_size=50)
            sent = server.requests["media"]
            assert found.requests == pytest.approx(sent, rel=0.15), (shuffle, hosts)
