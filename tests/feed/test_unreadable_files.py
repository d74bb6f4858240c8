"""Shards that are truncated, or cannot be read, while they are in use."""

import os
import pathlib
import shutil

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
    CorruptShardError,
    GristmillError,
)
from tests.support.datasets import convert
from tests.support.records import text_records

FILES = (text_records(400, seed=1), text_records(500, seed=2))
RECORDS = [record for file in FILES for record in file]
ALL = np.random.default_rng(0).permutation(len(RECORDS))


@pytest.fixture(
    scope="module",
    params=[(1, "zstd:3"), (16, "zstd:3"), (1, "uncompressed")],
    ids=lambda param: f"{param[1]}-{param[0]}",
)
def converted(request, tmp_path_factory) -> str:
    group_size, compression = request.param
    folder = tmp_path_factory.mktemp("converted")
    return convert(folder, FILES, group_size=group_size, compression=compression)


@pytest.fixture
def copy(converted: str, tmp_path: pathlib.Path) -> str:
    return str(shutil.copytree(converted, tmp_path / "copy"))


def read_all(dataset: loader.Dataset) -> list[bytes]:
    return dataset.read(ALL)


def read_one_by_one(dataset: loader.Dataset) -> list[bytes]:
    return [dataset[int(i)] for i in ALL]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("read", [read_all, read_one_by_one])
@pytest.mark.parametrize("verify", [None, "never"])
def test_a_shard_that_is_truncated_in_use_is_named_and_read_when_it_is_back(
    copy, read, verify
) -> None:
    """By renaming, as a copy from elsewhere is: the file that was open stays bad."""
    dataset, expected = loader.open(copy, verify=verify), [RECORDS[i] for i in ALL]
    assert read(dataset) == expected
    path = dataset.shard(1).path
    data = pathlib.Path(path).read_bytes()
    os.truncate(path, 0)
    for _ in range(2):
        with pytest.raises(CorruptShardError) as raised:
            read(dataset)
        assert (raised.value.where, raised.value.got) == (path, "0 bytes")
        assert "restore it from a copy" in raised.value.cure
    assert dataset[0:400] == RECORDS[0:400]  # The other shards can still be read.
    pathlib.Path(f"{path}.copy").write_bytes(data)
    os.replace(f"{path}.copy", path)
    assert read(dataset) == expected


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_the_trainer_survives_and_goes_on_when_the_shard_is_back(
    tmp_path, workers
) -> None:
    copy = convert(tmp_path, FILES)
    batches = loader.global_batches(loader.open(copy), batch_size=90, epochs=2)
    path = batches.datasets[0].shard(1).path
    data = pathlib.Path(path).read_bytes()
    with batches.feed(host=(0, 1), workers=workers) as feed:
        assert next(feed) == batches.read(0)
        os.truncate(path, 0)
        with pytest.raises(GristmillError) as raised:
            for _ in feed:
                pass
        assert isinstance(raised.value, CorruptShardError)
        assert raised.value.where == path
        assert "in the batch of step" in raised.value.__notes__[0]
        pathlib.Path(path).write_bytes(data)
        feed.set_state(feed.get_state())
        step = feed.get_state()["step"]
        expected = [batches.read(step) for step in range(step, batches.steps)]
        assert list(feed) == expected
