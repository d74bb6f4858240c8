"""Global arrays of feeds: on any mesh, from any number of processes."""

import time

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from gristmill import loader
from gristmill.dataset import GristmillError, InputError
from tests.feed.jax_arrays import sharding
from tests.feed.jax_processes import run
from tests.support.started import started
from tests.support.waiting import until


@pytest.fixture(scope="module")
def batches(path):
    return loader.global_batches(loader.open(path), batch_size=16, seed=5, epochs=3)


def numbers(records):
    return np.array([int.from_bytes(record[:3], "big") for record in records], np.int32)


def feed_of(batches, decode=numbers, **options):
    return batches.feed(decode=decode, host=(0, 1), **options)


ROWS = sharding("data", data=8)


class Counted:
    """A feed of n batches, each of its own number, that fails at one of them."""

    def __init__(self, count, fail_at=None):
        self.count, self.fail_at, self.taken, self.closed = count, fail_at, 0, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.taken += 1
        if self.taken - 1 == self.fail_at:
            raise OSError(f"no batch {self.fail_at}")
        if self.taken > self.count:
            raise StopIteration
        return np.full(8, self.taken - 1)

    def close(self):
        self.closed += 1


@pytest.mark.parametrize(
    "processes",
    [
        pytest.param(1, marks=pytest.mark.soak),
        pytest.param(2, marks=pytest.mark.slow),
        pytest.param(4, marks=pytest.mark.soak),
    ],
)
def test_global_arrays_are_the_batch_on_any_mesh_from_any_processes(
    path, processes, tmp_path
):
    job = ["-m", "tests.feed.jax_arrays", path, "{job}"]
    run(job, tmp_path, processes=processes, devices=8)


@pytest.mark.parametrize("ahead", [0, 1, 3])
def test_batches_are_taken_ahead_of_the_caller_and_no_further(ahead):
    source = Counted(10)
    with loader.to_jax(source, ROWS, ahead=ahead) as feed:
        for step in range(10):
            assert next(feed)[0] == step
            until(lambda: source.taken >= min(step + 1 + ahead, 11))  # noqa: B023
            time.sleep(0.005)
            assert source.taken == min(step + 1 + ahead, 11)
        for _ in range(2):
            assert next(feed, None) is None
        assert source.taken == 11


def test_a_failing_feed_stays_failed_and_closing_it_leaves_no_thread():
    source = Counted(10, fail_at=2)
    with started() as own:
        feed = loader.to_jax(source, ROWS, ahead=3)
        assert [int(next(feed)[0]) for _ in range(2)] == [0, 1]
        assert own.threads
        for _ in range(2):
            with pytest.raises(OSError, match="no batch 2"):
                next(feed)
        feed.close()
        feed.close()
    assert (source.taken, source.closed) == (3, 1)
    own.wait_until_ended()
    with pytest.raises(InputError, match="closed"):
        next(feed)


@pytest.mark.parametrize("ahead", [0, 2])
def test_the_state_is_the_callers_and_any_step_can_be_resumed(batches, ahead):
    # Arrays are of the sizes of their batches.
    ramp = batches.then(batch_size=32, step=2).then(batch_size=8, step=4)
    bare = feed_of(ramp)
    with loader.to_jax(ramp.feed(decode=numbers, host=ROWS), ROWS, ahead=ahead) as feed:
        states, whole = [feed.get_state()], []
        for batch, expected in zip(feed, bare, strict=True):
            np.testing.assert_array_equal(batch, expected)
            whole.append(expected)
            states.append(feed.get_state())
            assert states[-1] == bare.get_state()
        assert {len(batch) for batch in whole} == {8, 16, 32}
        steps = [*zip(whole, states[1:], strict=True)]
        for first in [*range(len(steps), -1, -1), 5]:
            feed.set_state(states[first])
            for expected, after in steps[first : first + 3]:
                np.testing.assert_array_equal(next(feed), expected)
                with pytest.raises(GristmillError, match="not the state of a feed"):
                    feed.set_state({"what": "is this"})
                assert feed.get_state() == after


def test_what_the_devices_do_not_divide_is_refused(path):
    batches = loader.global_batches(loader.open(path), batch_size=12)
    message = r"does not divide among the devices(.|\n)*\(12,\)(.|\n)*batch_size"
    for refused in (
        lambda: next(loader.to_jax(feed_of(batches), ROWS)),
        lambda: batches.feed(host=ROWS),
    ):
        with pytest.raises(InputError, match=message):
            refused()
    # A last batch that is not full, before it comes.
    options = {"epochs": 8, "drop_remainder": False}
    batches = loader.global_batches(loader.open(path), batch_size=40, **options)
    message = r"got:      32 rows in step 19(.|\n)*"
    message += r'drop_remainder=True(.|\n)*mask="mask"'
    with pytest.raises(InputError, match=message):
        loader.to_jax(feed_of(batches), ROWS)
    full = loader.global_batches(loader.open(path), batch_size=88, **options)
    assert len(list(loader.to_jax(feed_of(full), ROWS))) == 9


@pytest.mark.parametrize(
    ("batch", "given", "message"),
    [
        ({"x": [1] * 8}, ROWS, "cannot be sent to a device"),
        ({"x": np.array(["a"] * 8)}, ROWS, "cannot be sent to a device"),
        ({"x": np.zeros(8), "y": np.zeros(7)}, ROWS, "one row for each record"),
        ({"x": np.full(8, 1 << 40)}, ROWS, "int64 to int32, which is too narrow"),
        ({"x": np.zeros(8)}, {"y": ROWS}, "tree of shardings does not match"),
        ({"x": np.zeros(8)}, {"x": "data"}, "not a sharding"),
    ],
)
def test_what_no_device_holds_is_refused(batch, given, message):
    with pytest.raises(InputError, match=message):
        next(loader.to_jax(iter([batch]), given))


def test_rows_of_another_host_are_refused(batches):
    feed = batches.feed(decode=numbers, host=(1, 2))
    with pytest.raises(InputError, match=r"rows \[0, 16\)\n.*rows \[8, 16\)"):
        next(loader.to_jax(feed, ROWS))


def test_rows_of_a_single_device_and_of_a_replicated_batch_are_all(batches):
    for given in (sharding(data=8), SingleDeviceSharding(jax.devices()[0]), ROWS):
        rows = batches.schedule.host_rows(given)
        assert rows.tolist() == list(range(batches.batch_size))
    with pytest.raises(InputError, match="records come one by one"):
        batches.records(host=ROWS)
