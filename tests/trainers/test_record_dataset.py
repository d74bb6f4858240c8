"""The records of a host are those of its rows, through any pipeline."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable

import cloudpickle
import grain
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset.base.errors import InputError, StateMismatchError
from tests.support.datasets import convert
from tests.support.records import text_records
from tests.support.started import started
from tests.support.waiting import until

# Some shards, and in a mixture some datasets.
FILES = [text_records(count, seed=count) for count in (60, 25, 45)]
SHUFFLES = ["global", "none", loader.BlockShuffle(block_records=4, window_blocks=3)]


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> loader.Dataset:
    return loader.open(convert(tmp_path_factory.mktemp("single"), FILES))


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> dict[str, loader.Dataset]:
    return {
        name: loader.open(convert(tmp_path_factory.mktemp(name), [records]))
        for name, records in zip("abc", FILES, strict=True)
    }


def steps_of(
    batches: loader.GlobalBatches, steps: int | None = None
) -> list[list[bytes]]:
    """Returns the records of the global batches, found by their numbers alone."""
    flat = [record for records in FILES for record in records]
    found = []
    for step in range(batches.steps or steps):
        indices = batches.indices(step)
        if batches.names:
            pairs = zip(*indices, strict=True)
            found.append([FILES[dataset][record] for dataset, record in pairs])
        else:
            found.append([flat[record] for record in indices])
    return found


def of_host(steps: list[list[bytes]], host: int, hosts: int) -> list[list[bytes]]:
    """Returns what a host has of each step: as many rows as others, or one more."""
    return [
        [r for row, r in enumerate(step) if host_of(row, len(step), hosts) == host]
        for step in steps
    ]


def host_of(row: int, rows: int, hosts: int) -> int:
    """Returns the first host whose rows end behind a row."""
    return next(h for h in range(hosts) if (h + 1) * rows // hosts > row)


def joined(steps: Iterable[Iterable[bytes]]) -> list[bytes]:
    return [record for step in steps for record in step]


def through_json(state: object) -> object:
    return json.loads(json.dumps(state))


@pytest.mark.slow
@given(
    shuffle=st.sampled_from(SHUFFLES),
    epochs=st.integers(1, 2),
    hosts=st.integers(1, 4),
    rows=st.integers(1, 9),
    workers=st.integers(1, 5),
    mixed=st.booleans(),
    resized=st.booleans(),
    drop_remainder=st.booleans(),
    data=st.data(),
)
@settings(max_examples=40)
def test_any_host_worker_and_state_has_the_records_of_its_rows(
    single,
    several,
    shuffle,
    epochs,
    hosts,
    rows,
    workers,
    mixed,
    resized,
    drop_remainder,
    data,
) -> None:
    batches = loader.global_batches(
        several if mixed else single,
        batch_size=hosts * rows,
        seed=3,
        shuffle=shuffle,
        epochs=epochs,
        drop_remainder=drop_remainder,
    )
    if resized:
        batches = batches.then(batch_size=2 * hosts, step=data.draw(st.integers(0, 9)))
    host = data.draw(st.integers(0, hosts - 1))
    worker = data.draw(st.integers(0, workers - 1))
    dataset = batches.records(host=(host, hosts))
    if workers > 1:
        dataset.set_slice(slice(worker, None, workers))
    expected = joined(of_host(steps_of(batches), host, hosts)[worker::workers])
    iterator = iter(dataset)
    states, records = [through_json(iterator.get_state())], []
    for record in iterator:
        records.append(record)
        states.append(through_json(iterator.get_state()))
    assert records == expected
    for place in data.draw(st.lists(st.integers(0, len(records)), max_size=3)):
        iterator.set_state(states[place])
        assert iterator.get_state() == states[place]
        assert list(iterator) == expected[place:]
    iterator.close()


def test_every_host_has_the_weights_of_a_mixture(several) -> None:
    batches = loader.global_batches(
        several, batch_size=32, weights={"a": 4, "b": 3, "c": 1}
    )
    named = {
        record: name for name, part in zip("abc", FILES, strict=True) for record in part
    }
    for host in range(2):
        iterator = iter(batches.records(host=(host, 2)))
        for _ in range(6):
            names = [named[next(iterator)] for _ in range(16)]
            assert [names.count(name) for name in "abc"] == [8, 6, 2]


def test_a_dataset_begins_anew_pickles_and_leaves_nothing(single) -> None:
    batches = loader.global_batches(single, batch_size=8, seed=1)
    dataset = batches.records(host=(1, 2))
    expected = joined(of_host(steps_of(batches, 5), 1, 2))
    for copied in (dataset, pickle.loads(cloudpickle.dumps(dataset)), dataset):
        with started() as own:
            iterator = iter(copied)
            assert not own.threads  # Not before the first record.
            assert [next(iterator) for _ in expected] == expected
            assert own.alive()
            assert not hasattr(iterator, "_parent")
            del iterator  # Trainers drop iterators without closing them.
            own.wait_until_ended()
    with started() as own:
        iterator = iter(dataset)
        iterator.start_prefetch()
        assert next(iterator) == expected[0]
        state = iterator.get_state()
        iterator.close()
        iterator.close()
        own.wait_until_ended()
    assert iterator.get_state() == state
    with pytest.raises(ValueError, match="closed"):
        next(iterator)
    assert "host 1 of 2" in str(dataset)
    assert "host 1 of 2" in str(iterator)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: {"next_index": 4}, "Grain's own order"),
        (lambda state: {"step": 1}, "not the state of the records"),
        (lambda state: {"version": 1, "step": 1}, "not as it was written"),
        (lambda state: [1], "not the state of the records"),
        (lambda state: state | {"more": 1}, "not the state of the records"),
        (lambda state: state | {"next_row": 4}, "next_row"),
        (lambda state: state | {"next_row": -1}, "next_row"),
        (lambda state: state | {"next_row": "1"}, "next_row"),
        (lambda state: state | {"hosts": 4}, "run 4 hosts"),
        (lambda state: state | {"host": 0}, "wrote itself"),
        (lambda state: state | {"workers": 3, "worker": 1}, "run 3 workers"),
        (lambda state: state | {"feed": state["feed"] | {"seed": 4}}, "as it was"),
        (lambda state: state | {"feed": state["feed"] | {"step": 99}}, "step"),
        (lambda state: state | {"feed": 1}, "feed"),
    ],
)
def test_another_state_is_refused_and_changes_nothing(single, change, message) -> None:
    batches = loader.global_batches(single, batch_size=8, epochs=1)
    iterator = iter(batches.records(host=(1, 2)))
    for _ in range(10):
        next(iterator)
    state = through_json(iterator.get_state())
    with pytest.raises((InputError, StateMismatchError), match=message):
        iterator.set_state(change(state))
    assert iterator.get_state() == state
    assert next(iterator) == steps_of(batches)[2][4 + 2]


def test_the_state_of_other_workers_is_refused(single) -> None:
    batches = loader.global_batches(single, batch_size=8, epochs=1)

    def of_worker(worker: int, workers: int) -> grain.DatasetIterator:
        dataset = batches.records(host=(0, 1))
        dataset.set_slice(slice(worker, None, workers))
        return iter(dataset)

    alone = iter(batches.records(host=(0, 1)))
    start = alone.get_state()
    next(alone)
    second = of_worker(1, 2)
    second.set_state(start)  # As Grain gives it to workers that have not begun.
    assert next(second) == steps_of(batches)[1][0]
    other = batches.records(host=(1, 2))
    with pytest.raises(StateMismatchError, match="run 1 hosts"):
        iter(other).set_state(start)
    with pytest.raises(StateMismatchError, match="one worker, or none"):
        second.set_state(alone.get_state())
    with pytest.raises(StateMismatchError, match="run 2 workers"):
        of_worker(0, 2).set_state(second.get_state())
    with pytest.raises(StateMismatchError, match="run 2 workers"):
        of_worker(0, 3).set_state(second.get_state())
    state = second.get_state()
    odd = state | {"feed": state["feed"] | {"step": 2}}
    with pytest.raises(InputError, match=r"feed\.step"):
        second.set_state(odd)


@given(
    step=st.integers(0, 17),
    hosts=st.integers(1, 3),
    workers=st.integers(1, 4),
    data=st.data(),
)
@settings(max_examples=20)
def test_all_hosts_and_workers_go_to_the_step_of_a_feed(
    single, step, hosts, workers, data
) -> None:
    batches = loader.global_batches(
        single, batch_size=6 * hosts, epochs=1, drop_remainder=False
    )
    step = min(step, batches.steps)
    feed = batches.feed(host=(0, 1), start_step=step)
    state = through_json(feed.get_state())
    host = data.draw(st.integers(0, hosts - 1))
    worker = data.draw(st.integers(0, workers - 1))
    dataset = batches.records(host=(host, hosts))
    dataset.set_slice(slice(worker, None, workers))
    iterator = iter(dataset)
    iterator.set_state(state)
    own = enumerate(of_host(steps_of(batches), host, hosts))
    rest = [rows for at, rows in own if at >= step and at % workers == worker]
    assert iterator.get_state()["next_row"] == 0
    assert list(iterator) == joined(rest)


@pytest.mark.parametrize("host", [(2, 2), (0, 3)])
def test_hosts_that_do_not_divide_the_batch_are_refused(single, host) -> None:
    batches = loader.global_batches(single, batch_size=8)
    with pytest.raises(InputError, match=r"index of the host|does not divide"):
        batches.records(host=host)


def test_a_state_of_an_earlier_edition_goes_on_with_that(tmp_path) -> None:
    def records() -> grain.IterDataset:
        dataset = loader.open(str(tmp_path / "out"))
        batches = loader.global_batches({"x": dataset}, batch_size=4, epochs=1)
        return batches.records(host=(0, 1))

    convert(tmp_path, [text_records(30, seed=7)])
    iterator = iter(records())
    for _ in range(6):
        next(iterator)
    state = through_json(iterator.get_state())
    rest = list(iterator)
    convert(tmp_path, [text_records(9, seed=8)], edition=2)
    assert len(list(records())) == 36
    later = iter(records())
    later.set_state(state)
    assert list(later) == rest
    assert later.batches.datasets[0].facts.edition == 1


@pytest.mark.slow
def test_workers_give_the_same_global_batches_and_go_on(single) -> None:
    batches = loader.global_batches(
        single, batch_size=12, epochs=2, drop_remainder=False
    )
    expected = of_host(steps_of(batches), 1, 2)
    pipeline = (
        batches.records(host=(1, 2))
        .batch(6, batch_fn=list)
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    )
    with started() as own:
        iterator = iter(pipeline)
        start = through_json(iterator.get_state())
        iterator.set_state(start)
        assert [next(iterator) for _ in range(7)] == expected[:7]
        state = through_json(iterator.get_state())
        assert [next(iterator) for _ in range(3)] == expected[7:10]
        iterator.set_state(state)
        assert list(iterator) == expected[7:]
    assert own.processes
    until(lambda: not any(worker.is_alive() for worker in own.processes))
