"""The state of a feed: resumed anywhere, refused if it does not fit or is damaged."""

from typing import Any

import pytest
from hypothesis import given, settings

from gristmill import loader
from gristmill.dataset.base.errors import (
    FormatVersionError,
    GristmillError,
    InputError,
    StateMismatchError,
)
from gristmill.loader.feed.state import batches_of_state, state_of
from gristmill.loader.order.mixture import Mixture
from tests.feed.json_changes import ODD_VALUES, VALUES, changes
from tests.support.datasets import convert
from tests.support.records import text_records

FILES = [text_records(20, seed=1), text_records(29, seed=2)]


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
    return mixed.then(weights={"web": 1, "code": 1}, step=3)


CHANGES = {
    "seed": {"seed": 6},
    "shuffle.kind": {"shuffle": "none"},
    "shuffle.window_blocks": {"shuffle": loader.BlockShuffle(window_blocks=2)},
    "epochs": {"epochs": 3},
    "phases[0].batch_size": {"batch_size": 11},
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
    return batches.feed(host=(0, 1), **options)


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
        assert all(
            f"phases[0].datasets[0].{name}" in str(refused.value) for name in names
        )
        assert not any(name in str(refused.value) for name in same)


def test_a_dataset_may_move_and_be_compressed_otherwise(web, tmp_path):
    state = feed_of(loader.global_batches(web, batch_size=4), start_step=3).get_state()
    moved = loader.open(convert(tmp_path, FILES, compression="brotli:1", group_size=7))
    feed = feed_of(loader.global_batches(moved, batch_size=4))
    feed.set_state(state)
    assert next(feed) == loader.global_batches(web, batch_size=4).read(3)


def test_state_of_another_version_or_of_nothing_is_refused(web, code):
    batches = loader.global_batches({"web": web, "code": code}, batch_size=4)
    feed = feed_of(batches)
    with pytest.raises(FormatVersionError, match="expected: 1\n  got:      2"):
        feed.set_state(feed.get_state() | {"version": 2})
    with pytest.raises(FormatVersionError, match="mixture's state"):
        Mixture.from_state(Mixture.of([1, 1]).to_state() | {"version": 7})
    for nothing in ({}, {"step": 3}, None, [1]):
        with pytest.raises(InputError, match="not the state of a feed"):
            feed.set_state(nothing)


@pytest.mark.parametrize("examples", [100, pytest.param(8000, marks=pytest.mark.soak)])
def test_a_changed_state_is_an_error_unless_it_is_another_step(batches, examples):
    good = state_of(batches, 4)
    datasets: Any = batches.datasets[0]
    if batches.names:
        datasets = dict(zip(batches.names, batches.datasets, strict=True))
    feed = feed_of(batches, start_step=4)

    @settings(max_examples=examples, deadline=None)
    @given(state=changes(good, values=[*VALUES, *ODD_VALUES]))
    def check(state):
        feed.set_state(good)
        try:
            feed.set_state(state)
        except GristmillError:
            assert feed.get_state() == good
            return
        assert 0 <= state["step"] <= batches.steps
        assert state == good | {"step": state["step"]}
        assert feed.get_state() == state
        assert state_of(batches_of_state(datasets, state), state["step"]) == state

    check()
    feed.close()


def test_a_cut_state_and_a_wrong_step_are_named(batches):
    feed = feed_of(batches)
    good = feed.get_state()
    for change in ({"seed": 6}, {"phases": good["phases"][:0]}, {"digest": None}):
        with pytest.raises(InputError, match="is not as it was written") as refused:
            feed.set_state(good | change)
        assert "restore the checkpoint" in refused.value.cure
    for step in ("7", 99, -1, None, 0.5):
        with pytest.raises(InputError, match="step of the state is"):
            feed.set_state(good | {"step": step})
    feed.close()
