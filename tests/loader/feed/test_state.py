"""The state of a feed: resumed anywhere, refused if it does not fit or is damaged."""

import json
from typing import Any

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset.base.errors import (
    FormatVersionError,
    GristmillError,
    InputError,
    StateMismatchError,
)
from gristmill.loader.feed.state import batches_of_state, state_of
from gristmill.loader.order.mixture import Mixture
from tests.support.datasets import convert
from tests.support.json_changes import ODD_VALUES, VALUES, changes
from tests.support.records import text_records

FILES = [text_records(20, seed=1), text_records(29, seed=2)]
HOSTS = (1, 2, 4, 3)


@pytest.fixture(scope="module")
def web(tmp_path_factory) -> loader.Dataset:
    return loader.open(convert(tmp_path_factory.mktemp("web"), FILES))


@pytest.fixture(scope="module")
def code(tmp_path_factory) -> loader.Dataset:
    files = [text_records(17, seed=3)]
    return loader.open(convert(tmp_path_factory.mktemp("code"), files))


@pytest.fixture(scope="module", params=["single", "mixture"])
def batches(request, web, code) -> loader.GlobalBatches:
    options = {"batch_size": 12, "seed": 5, "epochs": 2, "drop_remainder": False}
    if request.param == "single":
        return loader.global_batches(web, shuffle="block", **options)
    mixed = loader.global_batches({"web": web, "code": code}, **options)
    return mixed.with_weights({"web": 1, "code": 1}, step=3)


def rest_of(batches, state, hosts):
    """The rest of the stream of all hosts together, and their states at each step."""
    feeds = [
        batches.feed(process_index=host, process_count=hosts) for host in range(hosts)
    ]
    rest, states = [], []
    for feed in feeds:
        if state is not None:
            feed.set_state(json.loads(state))
    while True:
        (written,) = {json.dumps(feed.get_state()) for feed in feeds}
        states.append(written)
        parts = [next(feed, None) for feed in feeds]
        if parts == [None] * hosts:
            return rest, states
        rest.append([record for part in parts for record in part])


@pytest.mark.slow
def test_resumed_at_every_step_on_any_hosts_the_rest_is_the_same(batches):
    whole = [batches.read(step) for step in range(batches.steps)]
    everything, states = rest_of(batches, None, 1)
    assert everything == whole
    assert len(whole[-1]) != 12
    for step, state in enumerate(states):
        for hosts in HOSTS:
            rest, states_then = rest_of(batches, state, hosts)
            assert rest == whole[step:]
            assert states_then == states[step:]


def test_batches_that_were_read_ahead_do_not_count(web):
    batches = loader.global_batches(web, batch_size=4)
    with batches.feed(process_index=0, process_count=1, prefetch=5) as feed:
        next(feed)
        while feed.stats.ready_batches < 5:
            pass
        state = feed.get_state()
        assert state["step"] == 1
        assert next(feed) == batches.read(1)
        feed.set_state(state)
        assert feed.get_state() == state
        assert next(feed) == batches.read(1)


CHANGES = {
    "datasets[0].seed": {"seed": 6},
    "datasets[0].shuffle.kind": {"shuffle": "none"},
    "datasets[0].shuffle.window_blocks": {
        "shuffle": loader.BlockShuffle(window_blocks=2)
    },
    "datasets[0].epochs": {"epochs": 3},
    "batch_size": {"batch_size": 11},
    "drop_remainder": {"drop_remainder": True},
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_order_is_refused_and_named(name, web):
    options = {
        "batch_size": 12,
        "seed": 5,
        "shuffle": "block",
        "epochs": 2,
        "drop_remainder": False,
    }
    state = feed_of(loader.global_batches(web, **options)).get_state()
    feed = feed_of(loader.global_batches(web, **options | CHANGES[name]), start_step=2)
    with pytest.raises(
        StateMismatchError, match="does not match the records or the order"
    ) as refused:
        feed.set_state(state)
    lines = str(refused.value).splitlines()
    assert name in lines[1]
    (value,) = CHANGES[name].values()
    assert f"{name} " in lines[2]
    assert f"{name} " in lines[3]
    if not isinstance(value, loader.BlockShuffle):
        assert f"{name} {value!r}" in lines[2]
    assert feed.get_state()["step"] == 2  # as it was


def feed_of(batches, **options):
    return batches.feed(process_index=0, process_count=1, **options)


def test_another_dataset_is_refused_and_named(web, tmp_path):
    state = feed_of(loader.global_batches(web, batch_size=4)).get_state()
    swapped = convert(tmp_path / "swapped", FILES[::-1])
    changed = convert(tmp_path / "changed", [FILES[0], [*FILES[1][:-1], b"other"]])
    for path, names, same in [
        (swapped, ["order_digest"], ["records_digest", "datasets[0].records "]),
        (changed, ["records_digest", "order_digest"], ["datasets[0].records "]),
    ]:
        feed = feed_of(loader.global_batches(loader.open(path), batch_size=4))
        with pytest.raises(StateMismatchError) as refused:
            feed.set_state(state)
        assert all(f"datasets[0].{name}" in str(refused.value) for name in names)
        assert not any(name in str(refused.value) for name in same)


def test_a_dataset_may_move_and_be_compressed_otherwise(web, tmp_path):
    state = feed_of(loader.global_batches(web, batch_size=4), start_step=3).get_state()
    moved = loader.open(convert(tmp_path, FILES, compression="brotli:1", group_size=7))
    feed = feed_of(loader.global_batches(moved, batch_size=4))
    feed.set_state(state)
    assert next(feed) == loader.global_batches(web, batch_size=4).read(3)


def test_datasets_of_a_mixture_are_told_by_name(web, code):
    state = feed_of(
        loader.global_batches({"web": web, "code": code}, batch_size=4)
    ).get_state()
    others = loader.global_batches({"web": web, "books": code}, batch_size=4)
    with pytest.raises(StateMismatchError, match=r"datasets\[books\].name 'books'"):
        feed_of(others).set_state(state)
    with pytest.raises(StateMismatchError, match="where:    datasets"):
        feed_of(loader.global_batches(web, batch_size=4)).set_state(state)


def test_weights_may_change_from_the_step_of_the_state_on_only(web, code):
    plain = loader.global_batches(
        {"web": web, "code": code}, batch_size=10, weights={"web": 3, "code": 1}
    )
    even, odd = {"web": 1, "code": 1}, {"web": 1, "code": 2}
    changed = plain.with_weights(even, step=4)

    told = []

    def accepts(batches, writer, step):
        state = feed_of(writer, start_step=step).get_state()
        try:
            feed_of(batches).set_state(state)
        except StateMismatchError as e:
            told.append(str(e))
            return False
        return True

    assert accepts(changed, changed, 7)
    assert accepts(changed, plain, 4)  # they change at this very step
    assert accepts(changed, plain, 2)
    assert not accepts(changed, plain, 5)  # step 4 was of other weights
    assert not accepts(plain, changed, 7)
    assert not accepts(plain, changed, 3)  # the change would be forgotten
    assert accepts(plain.with_weights(odd, step=3), changed, 3)  # replaced on purpose
    assert not accepts(plain.with_weights(odd, step=3), changed, 4)
    assert not accepts(plain.with_weights(odd, step=6), changed, 3)
    assert accepts(changed.with_weights(odd, step=7), changed, 7)
    assert not accepts(changed.with_weights(odd, step=6), changed, 7)
    assert all("other weights" in text for text in told)
    assert "expected: from step 0 web 3/4, code 1/4; from step 4 web 1/2" in told[0]
    assert "with_weights(..., step=5)" in told[0]


def test_state_of_another_version_or_of_nothing_is_refused(web, code):
    batches = loader.global_batches({"web": web, "code": code}, batch_size=4)
    feed = feed_of(batches)
    with pytest.raises(FormatVersionError, match="expected: 1\n  got:      2"):
        feed.set_state(feed.get_state() | {"version": 2})
    mixture = Mixture.of([1, 1]).to_state() | {"version": 7}
    with pytest.raises(FormatVersionError, match="mixture's state"):
        feed.set_state(feed.get_state() | {"mixture": mixture})
    for nothing in ({}, {"step": 3}, None, [1]):
        with pytest.raises(InputError, match="not the state of a feed"):
            feed.set_state(nothing)


@settings(max_examples=100)
@given(data=st.data())
def test_a_damaged_state_is_an_error_or_gives_the_right_batches(batches, data):
    feed = feed_of(batches, start_step=4)
    good = feed.get_state()
    state = data.draw(changes(good, values=[*VALUES, *ODD_VALUES]))
    try:
        feed.set_state(state)
    except GristmillError:
        assert feed.get_state() == good
    else:
        # Accepted: what decides the order is ours up to its step, and from there on.
        accepted = feed.get_state()
        assert accepted == good | {"step": state["step"]}
        assert 0 <= accepted["step"] <= batches.steps
        assert {**state, "step": 4, "mixture": None} == good | {"mixture": None}
        if state["mixture"] != good["mixture"]:
            written = Mixture.from_state(state["mixture"])
            before = np.arange(accepted["step"] * batches.batch_size)
            ours = batches.schedule.mixture.locate(before)
            for one, other in zip(written.locate(before), ours, strict=True):
                np.testing.assert_array_equal(one, other)
    feed.close()


@settings(max_examples=100)
@given(data=st.data())
def test_batches_of_a_damaged_state_are_those_that_it_says_or_an_error(batches, data):
    good = state_of(batches, 4)
    state = data.draw(changes(good, values=[*VALUES, *ODD_VALUES]))
    datasets: Any = batches.datasets[0]
    if batches.names:
        datasets = dict(zip(batches.names, batches.datasets, strict=True))
    try:
        made = batches_of_state(datasets, state)
    except GristmillError:
        return
    assert state_of(made, state["step"]) == state


@pytest.mark.parametrize(
    ("change", "where", "expected", "got"),
    [
        ({"step": "7"}, "step", "an integer from 0", "'7'"),
        ({"step": 9}, "step", "an integer from 0 to 8", "9"),
        ({"step": True}, "step", "an integer from 0", "True"),
        ({"step": None}, "step", "an integer from 0", "None"),
        ({"batch_size": 0}, "batch_size", "an integer from 1", "0"),
        ({"drop_remainder": 0}, "drop_remainder", "true or false", "0"),
        ({"datasets": "web"}, "datasets", "a list", "'web'"),
        ({"datasets": ["web"]}, "datasets[0]", "an object", "'web'"),
        ({"version": "1"}, "version", "an integer", "'1'"),
        ({"mixture": [1]}, "mixture", "an object", "[1]"),
        ({"mixture": {"version": 1}}, "mixture.phases", "a value", "no such field"),
    ],
)
def test_a_wrong_field_is_named(web, code, change, where, expected, got):
    mixed = {"web": web, "code": code}
    batches = loader.global_batches(
        mixed, batch_size=12, epochs=2, weights={"web": 2, "code": 1}
    )
    assert batches.steps == 8
    feed = feed_of(batches)
    with pytest.raises(InputError, match="a field of the state") as refused:
        feed.set_state(feed.get_state() | change)
    assert refused.value.where == where
    assert expected in refused.value.expected
    assert got in refused.value.got
    assert "restore the checkpoint" in refused.value.cure
    feed.close()


def test_the_checkpoint_handlers_of_grain_save_and_restore_a_feed(web, tmp_path):
    import orbax.checkpoint as ocp

    batches = loader.global_batches(web, batch_size=6)
    with (
        ocp.CheckpointManager(tmp_path / "checkpoints") as manager,
        feed_of(batches) as feed,
        feed_of(batches) as resumed,
    ):
        for _ in range(5):
            next(feed)
        manager.save(5, args=grain.checkpoint.CheckpointSave(feed))
        manager.wait_until_finished()
        assert next(feed) == batches.read(5)
        manager.restore(5, args=grain.checkpoint.CheckpointRestore(resumed))
        assert resumed.get_state() == feed.get_state() | {"step": 5}
        assert next(resumed) == batches.read(5)
