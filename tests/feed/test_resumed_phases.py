"""Runs whose data change: phases that are fed, resumed, and refused."""

import json
import logging
from typing import Any

import pytest

from gristmill import loader
from gristmill.dataset.base.errors import InputError, StateMismatchError
from gristmill.loader.accounting.account import GONE, account
from gristmill.loader.feed.state import batches_of_state, state_of
from gristmill.loader.provenance.trace import locate
from tests.support.datasets import convert
from tests.support.records import text_records
from tests.support.removals import remove

WEB = [text_records(40, seed=1), text_records(29, seed=2)]
MORE = [text_records(31, seed=4)]
CODE = [text_records(37, seed=5)]
HOST = {"host": (0, 1)}
OPTIONS = {"batch_size": 12, "seed": 5, "epochs": 3, "drop_remainder": False}


@pytest.fixture(scope="module")
def grown(tmp_path_factory) -> str:
    """A dataset of two editions."""
    folder = tmp_path_factory.mktemp("web")
    convert(folder, WEB)
    return convert(folder, MORE, edition=2)


@pytest.fixture(scope="module")
def code(tmp_path_factory) -> str:
    return convert(tmp_path_factory.mktemp("code"), CODE)


@pytest.fixture(scope="module")
def week(tmp_path_factory) -> str:
    return convert(tmp_path_factory.mktemp("week"), MORE)


@pytest.fixture(scope="module", params=["single", "mixture", "joined"])
def batches(request, grown, code, week) -> loader.GlobalBatches:
    first, both = loader.open(grown, edition=1), loader.open(grown)
    if request.param == "joined":
        made = loader.global_batches(first, shuffle="block", **OPTIONS)
        joined = loader.open([grown, week], "train", edition=[1, None])
        return made.then(joined, step=3, batch_size=6)
    if request.param == "single":
        made = loader.global_batches(first, shuffle="block", **OPTIONS)
        return made.then(both, step=3, at="epoch").then(batch_size=24, step=8)
    made = loader.global_batches({"web": first, "code": loader.open(code)}, **OPTIONS)
    made = made.then({"web": both}, step=3, batch_size=6)
    return made.then(weights={"web": 1, "code": 1}, step=5)


def rest_of(batches, state, hosts, **options):
    """The rest of the stream of all hosts together, and their states at each step."""
    feeds = [batches.feed(host=(host, hosts), **options) for host in range(hosts)]
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
def test_phases_resume_at_every_step_on_any_hosts(batches) -> None:
    whole = [batches.read(step) for step in range(batches.steps)]
    everything, states = rest_of(batches, json.dumps(state_of(batches, 0)), 1)
    assert everything == whole
    newest: Any = batches.datasets[-1]
    if batches.names:
        newest = dict(zip(batches.names, batches.datasets, strict=True))
    for step, state in enumerate(states):
        hosts = (1, 2, 3, 6)[step % 4]
        assert rest_of(batches, state, hosts) == (whole[step:], states[step:])
        again = batches_of_state(newest, json.loads(state))
        assert state_of(again, step) == json.loads(state)
        if step < batches.steps:
            assert again.read(step) == whole[step]


def test_a_run_goes_on_with_its_edition_after_an_append(grown, caplog) -> None:
    plain = loader.global_batches(loader.open(grown, edition=1), **OPTIONS)
    state = state_of(plain, 4)
    newest = loader.global_batches(loader.open(grown), **OPTIONS)
    with newest.feed(**HOST) as feed, caplog.at_level(logging.WARNING):
        feed.set_state(state)
        assert next(feed) == plain.read(4)
        assert feed.get_state() == state | {"step": 5}
    (line,) = [one.getMessage() for one in caplog.records]
    assert "edition 1" in line
    # The batches take the newer one when they say so.
    changed = newest.then(loader.open(grown), step=4)
    with changed.feed(**HOST) as feed:
        feed.set_state(state)
        assert next(feed) == plain.then(loader.open(grown), step=4).read(4)
        later = feed.get_state()
    assert [one["datasets"][0]["edition"] for one in later["phases"]] == [1, 2]
    with changed.feed(**HOST) as feed:
        feed.set_state(later)
        assert feed.get_state() == later


def test_a_run_of_removed_records_goes_on_in_a_new_epoch(tmp_path) -> None:
    path = convert(tmp_path, WEB)
    plain = loader.global_batches(loader.open(path), **OPTIONS)
    state = state_of(plain, 4)
    remove(tmp_path, [3, 17], erase=True)
    newest = loader.global_batches(loader.open(path), **OPTIONS)
    with newest.feed(**HOST) as feed:
        with pytest.raises(StateMismatchError, match="not there any more") as refused:
            feed.set_state(state)
        assert "batches = batches.then(step=4)" in refused.value.cure
    batches = newest.then(step=4)
    with batches.feed(**HOST) as feed:
        feed.set_state(state)
        assert next(feed) == batches.read(4)
        later = json.loads(json.dumps(feed.get_state()))
        assert next(feed) == batches.read(5)
    # The state says what was read before, and that it cannot be read again.
    assert [one["datasets"][0]["records"] for one in later["phases"]] == [69, 67]
    then = batches_of_state(loader.open(path), later)
    assert then.indices(2).tolist() == plain.indices(2).tolist()
    assert then.read(5) == batches.read(5)
    with pytest.raises(InputError, match="not there any more"):
        then.read(2)
    with pytest.raises(InputError, match="not there any more"):
        locate(then, 2, 0)
    gone, *left = account(then, 6)
    assert (gone.note, gone.counts.documents) == (GONE, 48)
    assert sum(part.counts.documents for part in left) == 24
    # The same script goes on when it is started again.
    with batches.feed(host=(1, 2)) as feed:
        feed.set_state(later)
        assert next(feed) == batches.read(5)[6:]


def test_another_past_or_a_forgotten_phase_is_refused(grown) -> None:
    first, both = loader.open(grown, edition=1), loader.open(grown)
    plain = loader.global_batches(first, **OPTIONS)
    told = []

    def accepts(batches, writer, step) -> bool:
        with batches.feed(**HOST) as feed:
            try:
                feed.set_state(state_of(writer, step))
            except StateMismatchError as e:
                told.append(str(e))
                return False
        return True

    changed = plain.then(both, step=4)
    assert accepts(changed, changed, 7)
    assert accepts(changed, plain, 4)  # It changes at this very step.
    assert accepts(changed, plain, 2)
    assert not accepts(changed, plain, 5)
    assert "batches.then(step=5)" in told[-1]
    assert not accepts(plain, changed, 7)
    assert not accepts(plain, changed, 3)
    assert "a later phase" in told[-1]
    assert accepts(plain.then(batch_size=6, step=3), changed, 3)
    assert not accepts(plain.then(batch_size=6, step=3), changed, 4)
    assert not accepts(plain.then(batch_size=6, step=6), changed, 3)
    assert accepts(changed.then(batch_size=6, step=7), changed, 7)
    assert not accepts(changed.then(batch_size=6, step=6), changed, 7)


def test_hosts_must_divide_the_sizes_from_the_step_on(grown) -> None:
    batches = loader.global_batches(loader.open(grown), batch_size=6, epochs=9)
    batches = batches.then(batch_size=8, step=4)
    with pytest.raises(InputError, match="does not divide among the hosts") as refused:
        batches.feed(host=(0, 4))
    assert "later start_step" in refused.value.__notes__[0]
    feed = batches.feed(host=(1, 4), start_step=4)
    assert next(feed) == batches.read(4)[2:4]
    with pytest.raises(InputError, match="does not divide among the hosts"):
        feed.set_state(state_of(batches, 3))
    assert next(feed) == batches.read(5)[2:4]
    feed.close()


def test_changes_that_fit_no_batches_are_refused(grown, code) -> None:
    web, other = loader.open(grown), loader.open(code)
    plain = loader.global_batches(web, **OPTIONS)
    mixed = loader.global_batches({"web": web, "code": other}, **OPTIONS)
    weighed = mixed.then(weights={"web": 1, "code": 2}, step=1)
    for make, message in [
        (lambda: plain.then(step=99), "end before the step"),
        (lambda: plain.then(step=-1), "step is out of range"),
        (lambda: plain.then("web", step=1), "not a dataset"),
        (lambda: plain.then({"web": web}, step=1), "single dataset has no name"),
        (lambda: plain.then(weights={"web": 1}, step=1), "has no weights"),
        (lambda: plain.then(step=1, at="end"), "unknown place"),
        (lambda: plain.then(step=1, batch_size=0), "batch_size"),
        (lambda: mixed.then(web, step=1), "say which dataset"),
        (lambda: mixed.then(step=1, at="epoch"), "epochs of its own"),
        (lambda: mixed.then(weights={"web": 1}, step=1), "not those of the mixture"),
        (lambda: weighed.then({"books": web}, step=2), "its weight is not given"),
    ]:
        with pytest.raises(InputError, match=message):
            make()
    more = mixed.then({"books": web}, step=2)
    assert [*more.names] == ["web", "code", "books"]
    assert {*more.indices(2).datasets.tolist()} == {0, 1, 2}


def test_a_number_that_means_other_records_needs_its_edition(tmp_path) -> None:
    path = convert(tmp_path, WEB)
    remove(tmp_path, [3], erase=False)
    first, last = loader.open(path, edition=1), loader.open(path)
    batches = loader.global_batches(first, **OPTIONS).then(last, step=4)
    with pytest.raises(InputError, match="other numbers in an earlier phase"):
        batches.find(10)
    seen = 0
    for edition, dataset in ((1, first), (last.facts.edition, last)):
        for record in range(0, 67, 5):
            for _, step, row in batches.find(record, edition=edition):
                assert batches.read(step)[row] == dataset[record]
                assert (step < 4) == (edition == 1)
                seen += edition == 1
    assert seen
