"""Element p of the order is the record at position p."""

import cloudpickle
import grain
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import OutOfRangeError
from tests.support.datasets import convert
from tests.support.records import text_records

FILES = [text_records(count, seed=count) for count in (30, 17)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> loader.Dataset:
    return loader.open(convert(tmp_path_factory.mktemp("order"), FILES))


def positions_of(batches: loader.GlobalBatches, steps: int) -> list[bytes]:
    return [record for step in range(steps) for record in batches.read(step)]


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_elements_are_the_rows_of_the_steps(dataset, drop_remainder) -> None:
    batches = loader.global_batches(
        dataset, batch_size=10, epochs=2, drop_remainder=drop_remainder
    ).then(batch_size=7, step=3)
    expected = positions_of(batches, batches.steps)
    order = batches.map_dataset()
    assert len(order) == len(expected) == (121 if drop_remainder else 124)
    assert list(order) == expected
    assert list(order[5:80:3]) == expected[5:80:3]
    copied = cloudpickle.loads(cloudpickle.dumps(order))
    assert copied[17] == expected[17]
    assert list(order[1::2].to_iter_dataset()) == expected[1::2]
    with pytest.raises(OutOfRangeError, match="repeat"):
        order[len(order)]
    with pytest.raises(OutOfRangeError):
        order[-1]


@pytest.mark.slow
def test_elastic_hosts_go_on_in_other_numbers(dataset) -> None:
    batches = loader.global_batches(dataset, batch_size=8, seed=5)
    expected = positions_of(batches, 6)

    def hosts(count: int) -> list[grain.experimental.ElasticIterator]:
        return [
            grain.experimental.ElasticIterator(
                batches.map_dataset().map(lambda record: record.decode()),
                8,
                grain.sharding.ShardOptions(shard_index=host, shard_count=count),
            )
            for host in range(count)
        ]

    pair = hosts(2)
    two = [[next(host) for _ in range(2)] for host in pair]
    assert [list(batch) for batch in two[1]] == [
        [record.decode() for record in expected[8 * step + 1 : 8 * step + 8 : 2]]
        for step in range(2)
    ]
    state = pair[0].get_state()
    assert state == pair[1].get_state()
    (alone,) = hosts(1)
    alone.set_state(state)
    assert list(next(alone)) == [record.decode() for record in expected[16:24]]
    for each in (*pair, alone):
        each.close()
