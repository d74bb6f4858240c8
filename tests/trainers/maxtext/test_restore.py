"""Checkpoints: on other hosts, and whose states are of other data or weights."""

import itertools
import json
import re
import types

import grain
import grain.experimental
import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import InputError, StateMismatchError
from gristmill.loader.maxtext.restore import (
    ElasticRecords,
    changed_batches,
    explained_restore,
    places_of,
)


def elastic_of(batches, hosts):
    """Returns the iterators of hosts to which MaxText deals the records."""
    found = []
    for host in range(hosts):
        shard = grain.sharding.ShardOptions(shard_index=host, shard_count=hosts)
        dealt = (batches, batches.map_dataset(), batches.batch_size, shard)
        found.append(iter(ElasticRecords(*dealt)))
    return found


def test_another_number_of_hosts_goes_on_with_the_same_records(records):
    dataset = loader.open(records, "train")
    batches = loader.global_batches(dataset, batch_size=8, seed=2, epochs=2)
    steps = [batches.read(step) for step in range(batches.steps)]
    two, (one,) = elastic_of(batches, 2), elastic_of(batches, 1)
    for number, host in enumerate(two):
        assert list(next(host)) == steps[0][number::2]
    state = two[0].get_state()
    assert state == two[1].get_state()
    # Other weights would begin with the next step.
    assert [feed["step"] for feed, _ in places_of(state)] == [1]
    for other in ({"global_next_index": 8}, state | {"next_row": 0}, None):
        with pytest.raises(InputError, match="not the state of an elastic iterator"):
            one.set_state(other)
    one.set_state(state)
    assert [list(step) for step in one] == steps[1:]
    one.set_state(one.get_state())  # The end is a state too.


def test_elastic_records_are_saved_in_one_file(make, maxtext, records):
    settings = {"packing": False, "grain_use_elastic_iterator": True}
    train, _ = make(grain_train_files=records, **settings)
    # MaxText writes the state of these into process_0.json, of any number of hosts.
    kinds = maxtext["maxtext.common.grain_utility"].ElasticIterator
    assert isinstance(train.local_iterator, kinds)


def test_a_dataset_that_has_grown_is_refused(records, others):
    def of(*paths):
        dataset = loader.open(list(paths), "train")
        return elastic_of(loader.global_batches(dataset, batch_size=4), 1)[0]

    with pytest.raises(StateMismatchError):
        of(records, others).set_state(of(records).get_state())


def write_states(folder, states):
    """Writes the states of a checkpoint of step 7, and returns their manager."""
    directory = folder / "7" / "iter"
    directory.mkdir(parents=True, exist_ok=True)
    for name, state in states.items():
        (directory / name).write_text(json.dumps(state, indent=4))
    return types.SimpleNamespace(directory=folder)


def iterator_of(kind, dataset):
    """Returns MaxText's iterator of a kind of data."""
    batches = loader.global_batches(loader.open(dataset, "train"), batch_size=4)
    if kind == "elastic":
        (local,) = elastic_of(batches, 1)
    elif kind == "feed":
        local = batches.feed(host=(0, 1))
    else:
        local = iter(batches.records(host=(0, 1)))
    return types.SimpleNamespace(local_iterator=local)


OF_HOSTS, OF_ALL = ("process_0-of-2.json", "process_1-of-2.json"), ("process_0.json",)
OF_GRAIN = {"parent": {"next_index": 4}}
OF_GRISTMILL = {"parent": {"feed": {"step": 4}, "next_row": 0}}
OF_FEED = {"version": 1, "step": 4, "phases": []}
# A mixture may call a dataset so.
OF_NAMED_FEED = {"parents": {"feed": {"next_index": 4}}}
DATA, OWN = "with the data of that run", "by MaxText alone"


@pytest.mark.parametrize(
    ("names", "state", "kind", "cure"),
    [
        (OF_HOSTS, OF_GRISTMILL, "records", None),
        (OF_HOSTS, OF_GRAIN, "records", OWN),
        (OF_HOSTS, OF_NAMED_FEED, "records", OWN),
        (OF_HOSTS, OF_GRAIN, "feed", OWN),
        (OF_HOSTS, OF_GRISTMILL, "feed", DATA),
        (OF_HOSTS, OF_GRISTMILL, "elastic", DATA),
        (OF_ALL, OF_FEED, "feed", None),
        (OF_ALL, OF_FEED, "elastic", None),
        (OF_ALL, OF_FEED, "records", DATA),
        ((), {}, "feed", None),
    ],
)
def test_states_of_another_kind_are_refused_with_what_to_do(
    tmp_path, records, names, state, kind, cure
):
    manager = write_states(tmp_path, dict.fromkeys(names, state))
    restore = explained_restore(lambda *given: given)
    given = (manager, 7, iterator_of(kind, records), -1)
    if cure is None:
        assert restore(*given) == given
        return
    path = re.escape(f"load_full_state_path={tmp_path}/7/items")
    with pytest.raises(StateMismatchError, match=f"to do: +continue {cure}.*{path}"):
        restore(*given)


def mixture_of(records, others, **weights):
    datasets = {"a": loader.open(records, "train"), "b": loader.open(others)}
    datasets = {name: datasets[name] for name in weights}
    options = {"batch_size": 4, "seed": 3, "weights": weights}
    return loader.global_batches(datasets, **options)


class Loaded:
    """As MaxText's iterator, over what reads batches."""

    def __init__(self, reads):
        self.reads = reads
        self.gristmill_readers = [reads]
        self.reset()

    def reset(self):
        self.local_iterator = iter(self.reads)


def test_hosts_change_weights_at_one_step(tmp_path, records, others, caplog):
    old, new = (mixture_of(records, others, a=a, b=1) for a in (1, 3))
    hosts = [iter(old.records(host=(i, 2))) for i in range(2)]
    # Behind packing they stop at other steps.
    given, states = (3, 10), {}
    for host, name, count in zip(hosts, OF_HOSTS, given, strict=True):
        for _ in range(count):
            next(host)
        states[name] = {"parent": host.get_state(), "next_row": 0}
    manager = write_states(tmp_path, states)
    expected = old.then(weights={"a": 3, "b": 1}, step=5)  # The second begins step 5.
    restore = explained_restore(lambda *_: None)
    for number, host in enumerate(hosts):
        again = Loaded(new.records(host=(number, 2)))
        restore(manager, 7, again, -1)
        again.local_iterator.set_state(host.get_state())
        rest = [next(again.local_iterator) for _ in range(20)]
        own = expected.records(host=(number, 2))
        assert rest == [*itertools.islice(own, given[number], given[number] + 20)]
    assert "weights of the state up to step 5" in caplog.text
    assert "a 0.75, b 0.25" in caplog.text
    # Once more: the change is part of the states now.
    caplog.clear()
    state = json.loads(json.dumps(again.local_iterator.get_state()))
    manager = write_states(tmp_path / "later", {OF_HOSTS[1]: state})
    again = Loaded(new.records(host=(1, 2)))
    restore(manager, 7, again, -1)
    again.local_iterator.set_state(state)
    assert not caplog.text


def test_a_mixture_of_other_datasets_is_refused_with_what_to_do(records, others):
    state = mixture_of(records, others, a=1).feed(host=(0, 1)).get_state()
    message = r"(?s)other datasets.* a, b\n.* a\n.*0 as the weight"
    with pytest.raises(StateMismatchError, match=message):
        changed_batches(mixture_of(records, others, a=1, b=1), [(state, 0)])


class Chunks(grain.experimental.FlatMapTransform):
    """Parts of a record, as MaxText makes them without truncation."""

    max_fan_out = 4

    def flat_map(self, element):
        return [{"ids": element["ids"][at : at + 2]} for at in range(0, 6, 2)]


def in_chunks(ids):
    return grain.experimental.FlatMapIterDataset(ids, Chunks())


def split(ids):
    return grain.experimental.ConcatThenSplitIterDataset(ids, length_struct={"ids": 5})


@pytest.mark.slow
@pytest.mark.parametrize("operation", [in_chunks, split])
def test_what_is_left_of_a_record_is_not_of_other_weights(records, others, operation):
    def rows_of(batches):
        ids = batches.records(host=(0, 1)).map(
            lambda record: {"ids": np.frombuffer(record, np.uint8)}
        )
        return iter(operation(ids))

    old, new = (mixture_of(records, others, a=a, b=4 - a) for a in (3, 1))
    before = rows_of(old)
    for given in range(1, 30):
        next(before)
        state = before.get_state()
        found = changed_batches(new, list(places_of(state)))
        mixtures = [phase.mixture for phase in found.schedule.phases]
        assert mixtures == [one.schedule.phases[0].mixture for one in (old, new)]
        # As if they had always been these batches.
        whole, again = rows_of(found), rows_of(found)
        for _ in range(given):
            next(whole)
        again.set_state(state)
        for _ in range(8):
            np.testing.assert_array_equal(next(again)["ids"], next(whole)["ids"])
