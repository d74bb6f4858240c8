"""Batches that change at steps: fed, resumed, refused where they do not fit."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset.base.errors import (
    GristmillError,
    InputError,
    StateMismatchError,
)
from gristmill.loader.feed.state import batches_of_state, state_of
from tests.support.datasets import convert
from tests.support.json_changes import ODD_VALUES, VALUES, changes
from tests.support.records import text_records

WEB = [text_records(40, seed=1), text_records(29, seed=2)]
WEEKS = [text_records(23, seed=3), text_records(31, seed=4)]
CODE = [text_records(37, seed=5)]
HOST = {"process_index": 0, "process_count": 1}


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> dict[str, str]:
    files = {"web": WEB, "week1": WEEKS[:1], "week2": WEEKS[1:], "code": CODE}
    return {
        name: convert(tmp_path_factory.mktemp(name), lists)
        for name, lists in files.items()
    }


@pytest.fixture(scope="module")
def web(places) -> list[loader.Dataset]:
    """A dataset, and what it is after one week and after two."""
    names = ["web", "week1", "week2"]
    joined = [[places[name] for name in names[:count]] for count in (1, 2, 3)]
    return [loader.open(paths, "train") for paths in joined]


@pytest.fixture(scope="module")
def code(places) -> loader.Dataset:
    return loader.open(places["code"])


def batches_of(kind, web, code) -> loader.GlobalBatches:
    options = {"batch_size": 12, "seed": 5, "epochs": 3, "drop_remainder": False}
    if kind == "single":
        batches = loader.global_batches(web[0], shuffle="block", **options)
        batches = batches.resized(24, step=6).extended(web[1], step=2)
        return batches.extended(web[2], step=6).resized(6, step=9)
    batches = loader.global_batches({"web": web[0], "code": code}, **options)
    batches = batches.extended({"web": web[1]}, step=3)
    batches = batches.with_weights({"web": 1, "code": 1}, step=6)
    return batches.resized(24, step=5).extended({"web": web[2]}, step=4)


@pytest.fixture(scope="module", params=["single", "mixture"])
def batches(request, web, code) -> loader.GlobalBatches:
    return batches_of(request.param, web, code)


def feed_of(batches, **options):
    return batches.feed(**{**HOST, **options})


@pytest.mark.slow
def test_every_record_is_seen_once_an_epoch_and_found(batches) -> None:
    seen: dict[Any, list[tuple[int, int, int]]] = {}
    for step in range(batches.steps):
        found = batches.indices(step)
        rows = zip(*found, strict=True) if batches.names else ((0, n) for n in found)
        for row, (number, record) in enumerate(rows):
            place = batches.locate(step, row)
            assert place.record == record
            seen.setdefault((number, record), []).append((place.epoch, step, row))
    sizes = [len(dataset) for dataset in batches.datasets]
    for (number, record), sightings in seen.items():
        epochs = [epoch for epoch, _, _ in sightings]
        assert len(set(epochs)) == len(epochs)
        name = batches.names[number] if batches.names else None
        assert batches.find(int(record), name) == sightings
        assert record < sizes[number]
    web = {record for number, record in seen if number == 0}
    assert web == set(range(sizes[0]))
    if not batches.names:
        # The first epoch has the second week too: it began in it.
        first = [key for key, places in seen.items() if places[0][0] == 0]
        assert len(first) == sizes[0]
        assert sum(map(len, seen.values())) == 3 * sizes[0]


def rest_of(batches, state, hosts, **options):
    """The rest of the stream of all hosts together, and their states at each step."""
    feeds = [
        batches.feed(process_index=host, process_count=hosts, **options)
        for host in range(hosts)
    ]
    rest, states = [], []
    for feed in feeds:
        feed.set_state(json.loads(state))
    while True:
        (written,) = {json.dumps(feed.get_state()) for feed in feeds}
        states.append(written)
        parts = [next(feed, None) for feed in feeds]
        if parts == [None] * hosts:
            for feed in feeds:
                feed.close()
            return rest, states
        rest.append([record for part in parts for record in part])


@pytest.mark.slow
def test_changed_batches_resume_at_every_step_on_any_hosts(batches) -> None:
    whole = [batches.read(step) for step in range(batches.steps)]
    everything, states = rest_of(batches, json.dumps(state_of(batches, 0)), 1)
    assert everything == whole
    for step, state in enumerate(states):
        assert json.loads(state)["version"] == 1
        hosts = (1, 2, 3, 6)[step % 4]
        assert rest_of(batches, state, hosts) == (whole[step:], states[step:])
        again = state_of(batches_of_state(named(batches), json.loads(state)), step)
        assert again == json.loads(state)


def named(batches) -> Any:
    if not batches.names:
        return batches.datasets[0]
    return dict(zip(batches.names, batches.datasets, strict=True))


@pytest.mark.slow
def test_changed_batches_do_not_depend_on_workers(batches) -> None:
    whole = [batches.read(step) for step in range(batches.steps)]
    state = json.dumps(state_of(batches, 2))
    rest, _ = rest_of(batches, state, 1, workers=2)
    assert rest == whole[2:]


def test_hosts_must_divide_the_sizes_from_the_step_on(web) -> None:
    batches = loader.global_batches(web[0], batch_size=6, epochs=9).resized(8, step=4)
    with pytest.raises(InputError, match="does not divide among the hosts") as refused:
        batches.feed(process_index=0, process_count=4)
    assert "later start_step" in refused.value.__notes__[0]
    feed = batches.feed(process_index=1, process_count=4, start_step=4)
    assert next(feed) == batches.read(4)[2:4]
    with pytest.raises(InputError, match="does not divide among the hosts"):
        feed.set_state(state_of(batches, 3))
    assert feed.get_state()["step"] == 5
    assert next(feed) == batches.read(5)[2:4]
    feed.set_state(state_of(batches, 4))
    assert next(feed) == batches.read(4)[2:4]
    assert "host 1 of 4, rows [2, 4)" in repr(feed)
    feed.close()
    # Given rows are those of one size, or a function of it.
    with pytest.raises(InputError, match="rows are of one size only"):
        batches.feed(rows=[0, 1])
    feed = batches.feed(rows=lambda size: [0, size - 1], start_step=3)
    for step in (3, 4):
        assert next(feed) == [batches.read(step)[0], batches.read(step)[-1]]
    feed.close()


def test_changes_of_the_past_must_be_the_same(web) -> None:
    told = []

    def accepts(batches, writer, step):
        state = feed_of(writer, start_step=step).get_state()
        try:
            feed_of(batches).set_state(state)
        except StateMismatchError as e:
            told.append(str(e))
            return False
        return True

    plain = loader.global_batches(web[0], batch_size=10)
    grown = plain.extended(web[1], step=4)
    assert accepts(grown, grown, 7)
    assert accepts(grown, plain, 4)  # It grows at this very step.
    assert accepts(grown, plain, 2)
    assert not accepts(grown, plain, 5)
    assert "state is of a dataset with other extensions" in told[-1]
    assert "expected: from step 4 92 records" in told[-1]
    assert "got:      no change" in told[-1]
    assert "extended(..., step=5)" in told[-1]
    assert not accepts(plain, grown, 7)
    assert not accepts(plain, grown, 3)  # It would be forgotten.
    assert accepts(plain.extended(web[2], step=3), grown, 3)
    assert not accepts(plain.extended(web[2], step=3), grown, 4)
    assert not accepts(plain.extended(web[2], step=6), grown, 3)
    assert accepts(grown.extended(web[2], step=7), grown, 7)
    larger = plain.resized(20, step=4)
    assert accepts(larger, plain, 4)
    assert not accepts(larger, plain, 5)
    assert "expected: from step 0 10 rows; from step 4 20 rows" in told[-1]
    assert "resized(..., step=5)" in told[-1]
    assert not accepts(plain, larger, 3)
    assert not accepts(larger, plain.resized(30, step=4), 5)
    assert accepts(larger.resized(40, step=6), larger, 6)
    assert accepts(larger.extended(web[1], step=5), larger, 5)
    assert not accepts(larger.extended(web[1], step=5), larger, 6)


def test_weights_stay_at_their_steps_where_sizes_change(web, code) -> None:
    plain = loader.global_batches({"web": web[0], "code": code}, batch_size=10)
    even = {"web": 1, "code": 1}
    one = plain.with_weights(even, step=6).resized(20, step=3)
    other = plain.resized(20, step=3).with_weights(even, step=6)
    assert one.schedule == other.schedule
    state = feed_of(plain.with_weights(even, step=6), start_step=3).get_state()
    with feed_of(one) as feed:
        feed.set_state(state)  # The size changes at this very step.
        assert next(feed) == one.read(3)
    assert one.resized(10, step=3).schedule == plain.with_weights(even, step=6).schedule


@pytest.mark.slow
@settings(max_examples=100)
@given(data=st.data())
def test_a_damaged_changed_state_is_an_error_or_gives_what_it_says(
    web, code, data
) -> None:
    batches = batches_of(data.draw(st.sampled_from(["single", "mixture"])), web, code)
    good = state_of(batches, 7)
    state = data.draw(changes(good, values=[*VALUES, *ODD_VALUES]))
    feed = feed_of(batches, start_step=1)
    try:
        feed.set_state(state)
    except GristmillError:
        assert feed.get_state() == good | {"step": 1}
    else:
        step = feed.get_state()["step"]
        assert step == state["step"]
        for name in ("resized", "extended"):
            for own, other in itertools.zip_longest(good[name], state[name]):
                if own != other:  # Changed later, and replaced.
                    assert own is not None
                    assert own["step"] >= step
                    break
    try:
        made = batches_of_state(named(batches), state)
    except GristmillError:
        return
    assert state_of(made, state["step"]) == state
