"""A shard or an index that is another one is refused, by all that is known of both."""

from __future__ import annotations

import pathlib

import pytest

from gristmill.dataset.base.errors import CorruptShardError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.shard_files import (
    ShardFacts,
    check_shard,
    read_index,
    stored_footer,
)
from gristmill.dataset.metadata.shard_index import map_index
from tests.support.datasets import convert


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, str]]:
    """The shards of a dataset, and their indexes."""
    folder: pathlib.Path = tmp_path_factory.mktemp("opened")
    dataset = pathlib.Path(convert(folder, [[b"a", b"b"], [b"c"]], group_size=1))
    names = sorted(path.name for path in dataset.glob("*array_record*"))
    return [(str(dataset / n), str(dataset / layout.index_path(n))) for n in names]


def test_an_index_of_the_shard_is_opened(paths) -> None:
    path, index_path = paths[0]
    size = pathlib.Path(path).stat().st_size
    own = map_index(index_path)
    described = ShardFacts(2, size, own.file_crc32c)
    assert read_index(index_path, described).crc32cs.tolist() == own.crc32cs.tolist()
    assert read_index(index_path, ShardFacts()).records == 2
    assert stored_footer(path, size).records == 2


@pytest.mark.parametrize("field", ["records", "file_bytes", "file_crc32c"])
def test_an_index_of_another_shard_is_refused_with_what_differs(paths, field) -> None:
    index = map_index(paths[0][1])
    value = getattr(index, field) + 1
    with pytest.raises(CorruptShardError, match="not the one of this shard") as raised:
        read_index(index.path, ShardFacts(**{field: value}))
    assert raised.value.where == index.path
    assert raised.value.expected == str(ShardFacts(**{field: value}))
    assert raised.value.got == str(ShardFacts(**{field: value - 1}))


def test_only_facts_that_both_know_are_compared() -> None:
    check_shard(ShardFacts(3, None, 7), ShardFacts(3, 100), where="s")
    with pytest.raises(CorruptShardError, match="that the dataset describes") as raised:
        check_shard(ShardFacts(3, 99, 7), ShardFacts(3, 100), where="s")
    assert (raised.value.where, raised.value.cure is not None) == ("s", True)
    assert raised.value.expected == "3 records, 99 bytes"
    assert raised.value.got == "3 records, 100 bytes"
