"""Checkpoints whose states are of other data or weights than are read."""

import json
import types

import grain
import grain.experimental
import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import StateMismatchError
from gristmill.loader.maxtext.restore import (
    changed_batches,
    explained_restore,
    places_of,
)


def checkpoint_of(folder, names, state):
    directory = folder / "7" / "iter"
    directory.mkdir(parents=True)
    for name in names:
        (directory / name).write_text(json.dumps(state, indent=4))
    return types.SimpleNamespace(directory=folder)


def iterator_of(kind: str, dataset: str):
    """Returns MaxText's iterator of a kind of data."""
    batches = loader.global_batches(loader.open(dataset, "train"), batch_size=4)
    if kind == "feed":
        local = batches.feed(host=(0, 1))
    elif kind == "elastic":
        shard = grain.sharding.ShardOptions(shard_index=0, shard_count=1)
        local = grain.experimental.ElasticIterator(batches.map_dataset(), 4, shard)
    else:
        local = iter(batches.records(host=(0, 1)))
    return types.SimpleNamespace(local_iterator=local)


OF_HOSTS = ["process_0-of-2.json", "process_1-of-2.json"]
OF_ALL = ["process_0.json"]
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
        ([], {}, "feed", None),
    ],
)
def test_states_of_another_kind_are_refused_with_what_to_do(
    tmp_path, records, names, state, kind, cure
):
    manager = checkpoint_of(tmp_path, names, state)
    restore = explained_restore(lambda *given: given)
    iterator = iterator_of(kind, records)
    if cure is None:
        assert restore(manager, 7, iterator, -1) == (manager, 7, iterator, -1)
        return
    with pytest.raises(StateMismatchError) as refused:
        restore(manager, 7, iterator, -1)
    assert refused.value.cure.startswith(f"continue {cure}")
    assert f"load_full_state_path={tmp_path}/7/items" in refused.value.cure


def mixture_of(
    records: str, others: str, batch_size: int = 4, **weights
) -> loader.GlobalBatches:
    datasets = {"a": loader.open(records, "train"), "b": loader.open(others)}
    return loader.global_batches(
        {name: datasets[name] for name in weights},
        batch_size=batch_size,
        weights=weights,
        seed=3,
    )


class Loaded:
    """As MaxText's iterator, over what reads batches."""

    def __init__(self, reads) -> None:
        self.reads = reads
        self.gristmill_readers = [reads]
        self.reset()

    def reset(self) -> None:
        self.local_iterator = iter(self.reads)


def test_hosts_change_weights_at_one_step(tmp_path, records, others, caplog):
    def restarted(number: int) -> Loaded:
        batches = mixture_of(records, others, 4, a=3, b=1)
        return Loaded(batches.records(host=(number, 2)))

    old = mixture_of(records, others, a=1, b=1)
    hosts = [iter(old.records(host=(i, 2))) for i in range(2)]
    # Behind packing they stop at other steps.
    for host, given in zip(hosts, (3, 10), strict=True):
        for _ in range(given):
            next(host)
    directory = tmp_path / "7" / "iter"
    directory.mkdir(parents=True)
    for number, host in enumerate(hosts):
        state = {"parent": host.get_state(), "next_row": 0}
        (directory / f"process_{number}-of-2.json").write_text(json.dumps(state))
    expected = old.then(weights={"a": 3, "b": 1}, step=5)  # The second begins step 5.
    manager = types.SimpleNamespace(directory=tmp_path)
    restore = explained_restore(lambda *_: None)
    for number, host in enumerate(hosts):
        again = restarted(number)
        restore(manager, 7, again, -1)
        again.local_iterator.set_state(host.get_state())
        rest = [next(again.local_iterator) for _ in range(20)]
        own = slice(2 * number, 2 * number + 2)
        order = [each for step in range(16) for each in expected.read(step, own)]
        first = (3, 10)[number]
        assert rest == order[first : first + 20]
    assert "weights of the state up to step 5" in caplog.text
    assert "a 0.75, b 0.25" in caplog.text
    # Once more: the change is part of the states now.
    caplog.clear()
    state = json.loads(json.dumps(again.local_iterator.get_state()))
    (directory / "process_1-of-2.json").write_text(json.dumps(state))
    (directory / "process_0-of-2.json").unlink()
    again = restarted(1)
    restore(manager, 7, again, -1)
    again.local_iterator.set_state(state)
    assert not caplog.text


def test_a_mixture_of_other_datasets_is_refused_with_what_to_do(records, others):
    old = mixture_of(records, others, a=1)
    state = old.feed(host=(0, 1)).get_state()
    new = mixture_of(records, others, a=1, b=1)
    with pytest.raises(StateMismatchError, match="other datasets") as refused:
        changed_batches(new, [(state, 0)])
    assert (refused.value.expected, refused.value.got) == ("a, b", "a")
    assert "0 as the weight" in refused.value.cure


class Chunks(grain.experimental.FlatMapTransform):
    """Parts of a record, as MaxText makes them without truncation."""

    max_fan_out = 4

    def flat_map(self, element):
        return [{"ids": element["ids"][at : at + 2]} for at in range(0, 6, 2)]


@pytest.mark.slow
@pytest.mark.parametrize("operation", ["chunks", "concat_then_split"])
def test_what_is_left_of_a_record_is_not_of_other_weights(records, others, operation):
    length = {"ids": 5}

    def rows_of(batches):
        ids = batches.records(host=(0, 1)).map(
            lambda record: {"ids": np.frombuffer(record, np.uint8)}
        )
        if operation == "chunks":
            return iter(grain.experimental.FlatMapIterDataset(ids, Chunks()))
        return iter(
            grain.experimental.ConcatThenSplitIterDataset(ids, length_struct=length)
        )

    old, new = (
        mixture_of(records, others, a=3, b=1),
        mixture_of(records, others, a=1, b=3),
    )
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
