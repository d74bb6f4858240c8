"""The state of a feed: resumed anywhere, refused if it does not fit or is damaged."""

import itertools
import json
import logging

import pytest
from hypothesis import given, settings

from gristmill import loader
from gristmill.dataset import (
    FormatVersionError,
    GristmillError,
    InputError,
    StateMismatchError,
)
from gristmill.loader.accounting.account import GONE, account
from gristmill.loader.feed.state import batches_of_state, state_of
from gristmill.loader.provenance.trace import locate
from tests.feed.json_changes import ODD_VALUES, VALUES, changes
from tests.support.datasets import convert
from tests.support.records import text_records
from tests.support.removals import remove
from tests.support.told import told

WEB = [text_records(40, seed=1), text_records(29, seed=2)]
MORE = [text_records(31, seed=4)]
CODE = [text_records(37, seed=5)]
OPTIONS = {"batch_size": 12, "seed": 5, "epochs": 3, "drop_remainder": False}


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A dataset of two editions."""
    folder = tmp_path_factory.mktemp("web")
    convert(folder, WEB)
    return convert(folder, MORE, edition=2)


@pytest.fixture(scope="module")
def web(grown):
    return loader.open(grown, edition=1)


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    return loader.open(convert(tmp_path_factory.mktemp("code"), CODE))


@pytest.fixture(scope="module", params=["single", "mixture", "joined"])
def batches(request, grown, web, code):
    """Batches of several phases."""
    if request.param == "mixture":
        made = loader.global_batches({"web": web, "code": code}, **OPTIONS)
        made = made.then({"web": loader.open(grown)}, step=3, batch_size=6)
        return made.then(weights={"web": 1, "code": 1}, step=5)
    made = loader.global_batches(web, shuffle="block", **OPTIONS)
    if request.param == "single":
        made = made.then(loader.open(grown), step=3, at="epoch")
        return made.then(batch_size=24, step=8)
    joined = loader.open([grown, code.path], "train", edition=[1, None])
    return made.then(joined, step=3, batch_size=6)


def newest(batches):
    if batches.names:
        return dict(zip(batches.names, batches.datasets, strict=True))
    return batches.datasets[-1]


def feed_of(batches, **options):
    return batches.feed(**{"host": (0, 1), **options})


def rest_of(batches, state, hosts):
    """Returns the rest of the stream of all hosts, and the states from there on."""
    rest, states = [], []
    for host in range(hosts):
        with feed_of(batches, host=(host, hosts)) as feed:
            feed.set_state(json.loads(state))
            states.append([json.dumps(feed.get_state())])
            rest.append([])
            for rows in feed:
                rest[-1].append(rows)
                states[-1].append(json.dumps(feed.get_state()))
    assert all(own == states[0] for own in states)  # Any host's is that of all.
    whole = [[*itertools.chain(*parts)] for parts in zip(*rest, strict=True)]
    return whole, states[0]


@pytest.mark.slow
def test_any_step_is_resumed_on_any_hosts(batches):
    whole = [batches.read(step) for step in range(batches.steps)]
    everything, states = rest_of(batches, json.dumps(state_of(batches, 0)), 1)
    assert everything == whole
    for step, state in enumerate(states):
        hosts = (1, 2, 3, 6)[step % 4]
        assert rest_of(batches, state, hosts) == (whole[step:], states[step:])
        again = batches_of_state(newest(batches), json.loads(state))
        assert state_of(again, step) == json.loads(state)
        if step < batches.steps:
            assert again.read(step) == whole[step]


@pytest.mark.parametrize("examples", [100, pytest.param(8000, marks=pytest.mark.soak)])
def test_a_changed_state_is_an_error_or_another_step(batches, examples):
    good = state_of(batches, 4)
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
        again = batches_of_state(newest(batches), state)
        assert state_of(again, state["step"]) == state

    check()
    feed.close()


@pytest.mark.parametrize(
    ("name", "change", "value"),
    [
        ("seed", {"seed": 6}, "6"),
        ("shuffle.kind", {"shuffle": "none"}, "'none'"),
        (
            "shuffle.window_blocks",
            {"shuffle": loader.BlockShuffle(window_blocks=2)},
            "2",
        ),
        ("epochs", {"epochs": 2}, "2"),
        ("phases[0].batch_size", {"batch_size": 11}, "11"),
        ("drop_remainder", {"drop_remainder": True}, "True"),
    ],
)
def test_another_order_is_refused_and_named(web, name, change, value):
    options = OPTIONS | {"shuffle": "block"}
    state = feed_of(loader.global_batches(web, **options)).get_state()
    feed = feed_of(loader.global_batches(web, **options | change), start_step=2)
    with pytest.raises(StateMismatchError, match="the records or the order") as caught:
        feed.set_state(state)
    lines = str(caught.value).splitlines()
    assert all(name in line for line in lines[1:4])
    assert f"{name} {value}" in lines[2]
    assert feed.get_state()["step"] == 2  # As it was.


def test_other_records_are_refused_and_named(web, tmp_path):
    plain = loader.global_batches(web, batch_size=4)
    state = state_of(plain, 3)
    for name, files, how in (
        ("moved", WEB, {"compression": "brotli:1", "group_size": 7}),
        ("swapped", WEB[::-1], {}),
        ("changed", [WEB[0], [*WEB[1][:-1], b"x"]], {}),
    ):
        other = loader.open(convert(tmp_path / name, files, **how))
        feed = feed_of(loader.global_batches(other, batch_size=4))
        if name == "moved":
            feed.set_state(state)
            assert next(feed) == plain.read(3)
            continue
        with pytest.raises(StateMismatchError) as caught:
            feed.set_state(state)
        said = str(caught.value)
        assert "phases[0].datasets[0].order_digest" in said
        assert ("records_digest" in said) == (name == "changed")
        assert "datasets[0].records " not in said


def test_what_is_no_state_of_this_version_or_was_cut_is_named(web):
    feed = feed_of(loader.global_batches(web, **OPTIONS))
    good = feed.get_state()
    with told(FormatVersionError, "expected: 1\n  got:      2"):
        feed.set_state(good | {"version": 2})
    for nothing in ({}, {"step": 3}, None, [1]):
        with told(InputError, "not the state of a feed"):
            feed.set_state(nothing)
    for change in ({"seed": 6}, {"phases": good["phases"][:0]}, {"digest": None}):
        message = r"(?s)is not as it was written.*restore the checkpoint"
        with pytest.raises(InputError, match=message):
            feed.set_state(good | change)
    for step in ("7", 99, -1, None, 0.5):
        with told(InputError, "step of the state is"):
            feed.set_state(good | {"step": step})


def test_a_run_goes_on_with_its_edition_after_an_append(grown, web, caplog):
    plain = loader.global_batches(web, **OPTIONS)
    state = state_of(plain, 4)
    latest = loader.global_batches(loader.open(grown), **OPTIONS)
    with feed_of(latest) as feed, caplog.at_level(logging.WARNING):
        feed.set_state(state)
        assert next(feed) == plain.read(4)
        assert feed.get_state() == state | {"step": 5}
        records, before = (iter(b.records(host=(0, 1))) for b in (latest, plain))
        next(before)
        records.set_state(json.loads(json.dumps(before.get_state())))
        assert [*records] == [*before]
    assert all("edition 1" in line.getMessage() for line in caplog.records)
    assert len(caplog.records) == 2
    # The batches take the newer one when they say so.
    with feed_of(latest.then(loader.open(grown), step=4)) as feed:
        feed.set_state(state)
        assert next(feed) == plain.then(loader.open(grown), step=4).read(4)
        later = feed.get_state()
        assert [one["datasets"][0]["edition"] for one in later["phases"]] == [1, 2]
        feed.set_state(later)
        assert feed.get_state() == later


def test_a_run_of_removed_records_goes_on_in_a_new_epoch(tmp_path):
    path = convert(tmp_path, WEB)
    plain = loader.global_batches(loader.open(path), **OPTIONS)
    remove(tmp_path, [3, 17], erase=True)
    latest = loader.global_batches(loader.open(path), **OPTIONS)
    message = r"(?s)not there any more.*batches = batches\.then\(step=4\)"
    with pytest.raises(StateMismatchError, match=message):
        feed_of(latest).set_state(state_of(plain, 4))
    batches = latest.then(step=4)
    with feed_of(batches) as feed:
        feed.set_state(state_of(plain, 4))
        assert next(feed) == batches.read(4)
        later = json.loads(json.dumps(feed.get_state()))
    # The state says what was read before, and that it cannot be read again.
    assert [one["datasets"][0]["records"] for one in later["phases"]] == [69, 67]
    then = batches_of_state(loader.open(path), later)
    assert then.indices(2).tolist() == plain.indices(2).tolist()
    assert then.read(5) == batches.read(5)
    for gone in (lambda: then.read(2), lambda: locate(then, 2, 0)):
        with told(InputError, "not there any more"):
            gone()
    lost, *left = account(then, 6)
    assert (lost.note, lost.counts.documents) == (GONE, 48)
    assert sum(part.counts.documents for part in left) == 24
    # The same script goes on when it is started again.
    with feed_of(batches, host=(1, 2)) as feed:
        feed.set_state(later)
        assert next(feed) == batches.read(5)[6:]


def test_another_past_or_a_forgotten_phase_is_refused(grown, web):
    plain = loader.global_batches(web, **OPTIONS)
    changed = plain.then(loader.open(grown), step=4)
    smaller = plain.then(batch_size=6, step=3)
    latest = loader.global_batches(loader.open(grown), **OPTIONS)
    for batches, writer, step, says in (
        (changed, changed, 7, None),
        (changed, plain, 4, None),  # It changes at this very step.
        (changed, plain, 2, None),
        (changed, plain, 5, "batches.then(step=5)"),
        (plain, changed, 7, ""),
        (plain, changed, 3, "a later phase"),
        (plain, latest, 3, ""),
        (smaller, changed, 3, None),
        (smaller, changed, 4, ""),
        (plain.then(batch_size=6, step=6), changed, 3, ""),
        (changed.then(batch_size=6, step=7), changed, 7, None),
        (changed.then(batch_size=6, step=6), changed, 7, ""),
    ):
        feed = feed_of(batches)
        if says is None:
            feed.set_state(state_of(writer, step))
            continue
        with told(StateMismatchError, says):
            feed.set_state(state_of(writer, step))


def test_hosts_must_divide_the_sizes_from_the_step_on(web):
    batches = loader.global_batches(web, batch_size=6, epochs=9)
    batches = batches.then(batch_size=8, step=4)
    refusal = "does not divide among the hosts"
    with pytest.raises(InputError, match=refusal) as caught:
        feed_of(batches, host=(0, 4))
    assert "later start_step" in caught.value.__notes__[0]
    with feed_of(batches, host=(1, 4), start_step=4) as feed:
        assert next(feed) == batches.read(4)[2:4]
        with pytest.raises(InputError, match=refusal):
            feed.set_state(state_of(batches, 3))
        assert next(feed) == batches.read(5)[2:4]


def test_changes_that_fit_no_batches_are_refused(web, code):
    plain = loader.global_batches(web, **OPTIONS)
    ones = loader.global_batches(web, batch_size=1, epochs=1)
    mixed = loader.global_batches({"web": web, "code": code}, **OPTIONS)
    weighed = mixed.then(weights={"web": 1, "code": 2}, step=1)
    for batches, change, message in (
        *((one, {"step": one.steps}, "end before the step") for one in (plain, ones)),
        (plain, {"step": -1}, "step is out of range"),
        (plain, {"datasets": "web"}, "not a dataset"),
        (plain, {"datasets": {"web": web}}, "single dataset has no name"),
        (plain, {"weights": {"web": 1}}, "has no weights"),
        (plain, {"at": "end"}, "unknown place"),
        (plain, {"batch_size": 0}, "batch_size"),
        (mixed, {"datasets": web}, "say which dataset"),
        (mixed, {"at": "epoch"}, "epochs of its own"),
        (mixed, {"weights": {"web": 1}}, "not those of the mixture"),
        (weighed, {"datasets": {"books": web}}, "weight is not given"),
    ):
        with pytest.raises(InputError, match=message):
            batches.then(**{"step": 2} | change)
    more = mixed.then({"books": web}, step=2)
    assert [*more.names] == ["web", "code", "books"]
    assert {*more.indices(2).datasets.tolist()} == {0, 1, 2}


def test_a_number_that_means_other_records_needs_its_edition(tmp_path):
    path = convert(tmp_path, WEB)
    remove(tmp_path, [3])
    first, last = loader.open(path, edition=1), loader.open(path)
    batches = loader.global_batches(first, **OPTIONS).then(last, step=4)
    with told(InputError, "other numbers in an earlier phase"):
        batches.find(10)
    seen = 0
    for edition, dataset in ((1, first), (last.facts.edition, last)):
        for record in range(0, 67, 5):
            for _, step, row in batches.find(record, edition=edition):
                assert batches.read(step)[row] == dataset[record]
                assert (step < 4) == (edition == 1)
                seen += edition == 1
    assert seen
