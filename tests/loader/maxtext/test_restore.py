"""Checkpoints whose states are of another kind than the data that are read."""

import json
import types

import grain
import grain.experimental
import pytest

from gristmill import loader
from gristmill.dataset import StateMismatchError
from gristmill.loader.maxtext.restore import explained_restore


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
        local = batches.feed(process_index=0, process_count=1)
    elif kind == "elastic":
        shard = grain.sharding.ShardOptions(shard_index=0, shard_count=1)
        local = grain.experimental.ElasticIterator(batches.map_dataset(), 4, shard)
    else:
        local = iter(batches.records(process_index=0, process_count=1))
    return types.SimpleNamespace(local_iterator=local)


OF_HOSTS = ["process_0-of-2.json", "process_1-of-2.json"]
OF_ALL = ["process_0.json"]
OF_GRAIN = {"parent": {"next_index": 4}}
OF_GRISTMILL = {"parent": {"feed": {"step": 4}}}


@pytest.mark.parametrize(
    ("names", "state", "kind", "order", "cure"),
    [
        (OF_HOSTS, OF_GRISTMILL, "records", "gristmill", None),
        (OF_HOSTS, OF_GRAIN, "records", "grain", None),
        (OF_HOSTS, OF_GRAIN, "records", "gristmill", "gristmill_order=grain"),
        (OF_HOSTS, OF_GRISTMILL, "records", "grain", "gristmill_order=gristmill"),
        (OF_HOSTS, OF_GRAIN, "feed", "gristmill", "the data of that run"),
        (OF_HOSTS, OF_GRAIN, "elastic", "grain", "the data of that run"),
        (OF_ALL, {"step": 4}, "feed", "gristmill", None),
        (OF_ALL, {"step": 4}, "elastic", "grain", None),
        (OF_ALL, {"step": 4}, "records", "gristmill", "the data of that run"),
        ([], {}, "feed", "gristmill", None),
    ],
)
def test_states_of_another_kind_are_refused_with_what_to_do(
    tmp_path, records, names, state, kind, order, cure
):
    manager = checkpoint_of(tmp_path, names, state)
    restore = explained_restore(lambda *given: given, order)
    iterator = iterator_of(kind, records)
    if cure is None:
        assert restore(manager, 7, iterator, -1) == (manager, 7, iterator, -1)
        return
    with pytest.raises(StateMismatchError) as refused:
        restore(manager, 7, iterator, -1)
    assert refused.value.cure.startswith(f"go on with {cure}; or begin")
    assert f"load_full_state_path={tmp_path}/7/items" in refused.value.cure
