"""Records in pipelines of Grain: those of a host, positions of the order, files."""

import json
import pickle

import cloudpickle
import grain
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset import InputError, OutOfRangeError, StateMismatchError
from tests.support.datasets import convert
from tests.support.records import text_records
from tests.support.started import started
from tests.support.waiting import until

# Some shards, and in a mixture some datasets.
FILES = [text_records(count, seed=count) for count in (60, 25, 45)]
SHUFFLES = ["global", "none", loader.BlockShuffle(block_records=4, window_blocks=3)]
UNEVEN = {"epochs": 1, "drop_remainder": False}


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    return loader.open(convert(tmp_path_factory.mktemp("single"), FILES))


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    return {
        name: loader.open(convert(tmp_path_factory.mktemp(name), [records]))
        for name, records in zip("abc", FILES, strict=True)
    }


def steps_of(batches, host=0, hosts=1):
    """Returns what a host has of each step: as many rows as others, or one more."""
    found = []
    for step in range(batches.steps):
        rows = batches.read(step)
        begin, end = (len(rows) * part // hosts for part in (host, host + 1))
        found.append(rows[begin:end])
    return found


def joined(steps):
    return [record for step in steps for record in step]


def through_json(state):
    return json.loads(json.dumps(state))


def records_of(batches, host=0, hosts=1, worker=0, workers=1):
    dataset = batches.records(host=(host, hosts))
    if workers > 1:
        dataset.set_slice(slice(worker, None, workers))
    return iter(dataset)


@pytest.mark.slow
@given(
    shuffle=st.sampled_from(SHUFFLES),
    hosts=st.integers(1, 4),
    rows=st.integers(1, 9),
    workers=st.integers(1, 5),
    mixed=st.booleans(),
    uneven=st.booleans(),
    data=st.data(),
)
@settings(max_examples=60)
def test_any_host_worker_and_state_has_the_records_of_its_rows(
    single, several, shuffle, hosts, rows, workers, mixed, uneven, data
):
    options = {"batch_size": hosts * rows, "seed": 3, "shuffle": shuffle}
    options |= UNEVEN if uneven else {"epochs": 2}
    batches = loader.global_batches(several if mixed else single, **options)
    if data.draw(st.booleans()):
        step = data.draw(st.integers(0, min(9, batches.steps - 1)))
        batches = batches.then(batch_size=2 * hosts, step=step)
    host = data.draw(st.integers(0, hosts - 1))
    worker = data.draw(st.integers(0, workers - 1))
    iterator = records_of(batches, host, hosts, worker, workers)
    steps = steps_of(batches, host, hosts)
    expected = joined(steps[worker::workers])
    states = [through_json(iterator.get_state())]
    for record, wanted in zip(iterator, expected, strict=True):
        assert record == wanted
        states.append(through_json(iterator.get_state()))
    for place in data.draw(st.lists(st.integers(0, len(expected)), max_size=3)):
        iterator.set_state(states[place])
        assert iterator.get_state() == states[place]
        assert list(iterator) == expected[place:]
    # All hosts and workers go to the step of a feed.
    step = data.draw(st.integers(0, batches.steps))
    feed = batches.feed(host=(0, 1), start_step=step)
    iterator.set_state(through_json(feed.get_state()))
    assert iterator.get_state()["next_row"] == 0
    first = step + (worker - step) % workers
    assert list(iterator) == joined(steps[first::workers])
    iterator.close()


def test_a_dataset_begins_anew_pickles_and_leaves_nothing(single):
    batches = loader.global_batches(single, batch_size=8, epochs=1)
    dataset = batches.records(host=(1, 2))
    expected = joined(steps_of(batches, 1, 2)[:5])
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


def test_another_state_is_refused_and_changes_nothing(single):
    batches = loader.global_batches(single, batch_size=8, epochs=1)
    iterator = records_of(batches, 1, 2)
    expected = joined(steps_of(batches, 1, 2))
    assert [next(iterator) for _ in range(10)] == expected[:10]
    state = through_json(iterator.get_state())
    for other, message in (
        ({"next_index": 4}, "Grain's own order"),
        ({"version": 1, "step": 1}, "not as it was written"),
        ([1], "not the state of the records"),
        (state | {"more": 1}, "not the state of the records"),
        (state | {"next_row": 4}, "next_row"),
        (state | {"next_row": "1"}, "next_row"),
        (state | {"hosts": 4}, "run 4 hosts"),
        (state | {"host": 0}, "wrote itself"),
        (state | {"workers": 3, "worker": 1}, "run 3 workers"),
        (state | {"feed": state["feed"] | {"seed": 4}}, "as it was"),
        (state | {"feed": state["feed"] | {"step": 99}}, "step"),
        (state | {"feed": 1}, "feed"),
    ):
        with pytest.raises((InputError, StateMismatchError), match=message):
            iterator.set_state(other)
        assert iterator.get_state() == state
    assert next(iterator) == expected[10]


def test_the_state_of_other_workers_is_refused(single):
    batches = loader.global_batches(single, batch_size=8, epochs=1)
    alone = records_of(batches)
    start = alone.get_state()
    next(alone)
    second = records_of(batches, worker=1, workers=2)
    second.set_state(start)  # As Grain gives it to workers that have not begun.
    assert next(second) == steps_of(batches)[1][0]
    for iterator, state, message in (
        (records_of(batches, 1, 2), start, "run 1 hosts"),
        (second, alone.get_state(), "one worker, or none"),
        (records_of(batches, workers=2), second.get_state(), "run 2 workers"),
    ):
        with pytest.raises(StateMismatchError, match=message):
            iterator.set_state(state)
    state = second.get_state()
    with pytest.raises(InputError, match=r"feed\.step"):
        second.set_state(state | {"feed": state["feed"] | {"step": 2}})


@pytest.mark.slow
def test_workers_give_the_same_global_batches_and_go_on(single):
    batches = loader.global_batches(single, batch_size=12, **UNEVEN)
    expected = steps_of(batches, 1, 2)
    pipeline = batches.records(host=(1, 2)).batch(6, batch_fn=list)
    options = grain.MultiprocessingOptions(num_workers=2)
    with started() as own:
        iterator = iter(pipeline.mp_prefetch(options))
        iterator.set_state(through_json(iterator.get_state()))
        assert [next(iterator) for _ in range(7)] == expected[:7]
        state = through_json(iterator.get_state())
        assert [next(iterator) for _ in range(3)] == expected[7:10]
        iterator.set_state(state)
        assert list(iterator) == expected[7:]
    assert own.processes
    until(lambda: not any(worker.is_alive() for worker in own.processes))


@pytest.mark.parametrize("drop_remainder", [True, False])
def test_elements_of_the_order_are_the_rows_of_the_steps(single, drop_remainder):
    batches = loader.global_batches(
        single, batch_size=10, epochs=2, drop_remainder=drop_remainder
    )
    batches = batches.then(batch_size=7, step=3)
    expected = joined(steps_of(batches))
    order = batches.map_dataset()
    assert list(order) == expected
    assert list(order[5:80:3]) == expected[5:80:3]
    copied = cloudpickle.loads(cloudpickle.dumps(order))
    assert list(copied[1::2].to_iter_dataset()) == expected[1::2]
    with pytest.raises(OutOfRangeError, match="repeat"):
        order[len(order)]
    with pytest.raises(OutOfRangeError):
        order[-1]
