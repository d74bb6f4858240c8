"""Records that MaxText deals to any number of hosts itself."""

import json

import grain
import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import InputError, StateMismatchError
from gristmill.loader.maxtext import install
from gristmill.loader.maxtext.restore import ElasticRecords
from tests.trainers.maxtext.maxtext import config_of

ELASTIC = {"packing": False, "grain_use_elastic_iterator": True}


@pytest.fixture
def made(maxtext, mesh):
    interface = maxtext["maxtext.input_pipeline.input_pipeline_interface"]

    def make(**changes):
        config = config_of(**(ELASTIC | changes))
        return interface.create_data_iterator(config, mesh)[0].local_iterator

    return make


def test_its_state_is_one_file_and_says_of_which_order_it_is(made, maxtext, records):
    install()
    whole = made(grain_train_files=records, num_epoch=3)
    # MaxText writes the state of these into process_0.json, of any number of hosts.
    kinds = maxtext["maxtext.common.grain_utility"].ElasticIterator
    assert isinstance(whole, kinds)
    next(whole)
    state = json.loads(json.dumps(whole.get_state()))
    expected = next(whole)["inputs"]
    again = made(grain_train_files=records, num_epoch=3)
    for changed in ({"data_shuffle_seed": 1}, {"num_epoch": 2}):
        other = made(grain_train_files=records, **{"num_epoch": 3} | changed)
        with pytest.raises(StateMismatchError, match=r"seed|epochs"):
            other.set_state(state)
    for other in ({"global_next_index": 8}, state | {"next_row": 0}, None):
        with pytest.raises(InputError, match="not the state of an elastic iterator"):
            again.set_state(other)
    again.set_state(state)
    np.testing.assert_array_equal(next(again)["inputs"], expected)
    again.close()


def of_hosts(batches: loader.GlobalBatches, hosts: int) -> list:
    return [
        iter(
            ElasticRecords(
                batches,
                batches.map_dataset(),
                batches.batch_size,
                grain.sharding.ShardOptions(shard_index=host, shard_count=hosts),
            )
        )
        for host in range(hosts)
    ]


def test_another_number_of_hosts_goes_on_with_the_same_records(records):
    dataset = loader.open(records, "train")
    batches = loader.global_batches(dataset, batch_size=8, seed=2, epochs=2)
    two = of_hosts(batches, 2)
    given = [record for host in two for record in next(host)]
    assert two[0].get_state() == two[1].get_state()
    (one,) = of_hosts(batches, 1)
    one.set_state(two[0].get_state())
    given += [record for batch in one for record in batch]
    assert sorted(given) == sorted(
        record for step in range(batches.steps) for record in batches.read(step)
    )
    one.set_state(one.get_state())  # The end is a state too.


def test_a_dataset_that_has_grown_is_refused(records, others):
    def of(*paths):
        dataset = loader.open(list(paths), "train")
        return of_hosts(loader.global_batches(dataset, batch_size=4), 1)[0]

    with pytest.raises(StateMismatchError):
        of(records, others).set_state(of(records).get_state())
