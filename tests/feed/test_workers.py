"""A feed with worker processes: its batches, errors and ends."""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref

import jax
import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import InputError, UserFunctionError, WorkerDiedError
from gristmill.loader.feed.step_reads import StepReads
from gristmill.loader.feed.workers import batch_of, message_of
from tests.feed import decoders
from tests.support.started import started
from tests.support.told import told
from tests.support.waiting import until


@pytest.fixture(scope="module")
def batches(path):
    return loader.global_batches(
        loader.open(path), batch_size=12, epochs=1, drop_remainder=False
    )


def feed_of(batches, **options):
    return batches.feed(host=(0, 1), **options)


def sent(batches, decode, step):
    reads = StepReads(batches, rows=slice(None), decode=decode)
    return batch_of(message_of(reads, step, prefix="unused-"))


def exhaust(feed):
    for _ in feed:
        pass


def dtype_and_shape(array):
    return array.dtype, array.shape


def ended(own):
    """Waits until no worker runs; nothing of them is left."""
    until(lambda: not any(worker.is_alive() for worker in own.processes))
    assert shared_memory_of(f"gristmill-{os.getpid()}-") == []


@pytest.mark.slow
def test_the_stream_does_not_depend_on_the_workers(batches):
    expected = [decoders.lengths(batches.read(step)) for step in range(batches.steps)]
    state, got = feed_of(batches).get_state(), []
    for workers, steps in [(2, 3), (0, 2), (1, 9)]:
        with feed_of(batches, workers=workers, decode=decoders.lengths) as feed:
            feed.set_state(state)
            for _, batch in zip(range(steps), feed, strict=False):
                got.append(batch)
                aligned = batch["lengths"].ctypes.data % 64 == 0
                assert aligned or not workers
                state = json.loads(json.dumps(feed.get_state()))
            if len(got) == batches.steps:
                assert next(feed, None) is None
    assert len(got) == len(expected)
    for one, other in zip(got, expected, strict=True):
        assert jax.tree.map(dtype_and_shape, one) == jax.tree.map(
            dtype_and_shape, other
        )
        jax.tree.map(np.testing.assert_array_equal, one, other)
        one["lengths"][0] = 7  # the batch is the trainer's own


@pytest.mark.slow
def test_a_feed_that_nobody_keeps_leaves_no_worker(batches):
    with started() as own:
        feed = feed_of(batches, workers=2)
        next(feed)
        del feed
        gc.collect()
    assert len(own.processes) == 2
    ended(own)


@pytest.mark.slow
def test_a_dead_worker_is_an_error_within_seconds_and_the_state_is_good(path):
    batches = loader.global_batches(loader.open(path), batch_size=12)
    with started() as own, feed_of(batches, workers=2, decode=decoders.large) as feed:
        for end, cure in (
            (signal.SIGKILL, "whether the kernel ran out of memory (dmesg)"),
            (signal.SIGBUS, "check the dataset with `gristmill verify`"),
            (signal.SIGTERM, "the feed continues with new workers"),
        ):
            next(feed)
            os.kill(own.processes[-1].pid, end)
            with told(WorkerDiedError, cure, match=f"code -{end:d}"):
                exhaust(feed)
            expected = decoders.large(batches.read(feed.get_state()["step"]))
            np.testing.assert_array_equal(next(feed), expected)
    ended(own)


@pytest.mark.slow
def test_a_feed_with_a_worker_that_hangs_can_be_closed(batches):
    decode = decoders.Failing(batches.read(1)[3], "hang")
    with started() as own, feed_of(batches, workers=2, decode=decode) as feed:
        next(feed)
        begun = time.monotonic()
    assert time.monotonic() - begun < 30
    ended(own)


def shared_memory_of(prefix):
    return [name for name in os.listdir("/dev/shm") if name.startswith(prefix)]


SMALL_SHARED_MEMORY = """
import ctypes, os, sys

libc, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
new_namespaces = 0x00020000 | 0x10000000  # of mounts, and of users
if libc.unshare(new_namespaces):
    sys.exit(os.strerror(ctypes.get_errno()))
for name, text in [
    ("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")
]:
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
if libc.mount(b"none", b"/dev/shm", b"tmpfs", 0, b"size=1m"):
    sys.exit(os.strerror(ctypes.get_errno()))

import numpy as np
from gristmill.dataset.base.errors import StorageError
from gristmill.loader.feed.workers import pack, unpack

kept = pack(np.zeros(700_000, np.uint8), prefix="kept-")
try:
    pack(np.zeros(700_000, np.uint8), prefix="more-")
except StorageError as e:
    assert len(os.listdir("/dev/shm")) == 1
    print(e)
unpack(kept)
assert os.listdir("/dev/shm") == []
"""


@pytest.mark.slow
def test_a_batch_for_which_there_is_no_shared_memory_is_an_error():
    """In a container with little of it, which kills the process that writes there."""
    ended = subprocess.run(
        [sys.executable, "-c", SMALL_SHARED_MEMORY], capture_output=True, text=True
    )
    if "not permitted" in ended.stderr:
        pytest.skip("this user may not make namespaces")
    assert ended.returncode == 0, ended.stderr
    assert "room for 700," in ended.stdout
    assert "No space left on device" in ended.stdout
    assert "--shm-size" in ended.stdout


@pytest.mark.parametrize(
    ("how", "in_thread", "in_worker", "message"),
    [
        ("value_error", ValueError, ValueError, "not a cat"),
        ("unpicklable_error", Exception, UserFunctionError, "not a dog"),
        ("stop_iteration", UserFunctionError, UserFunctionError, "decode ended"),
        ("leave", UserFunctionError, UserFunctionError, r"SystemExit\(0\)"),
        ("panic", UserFunctionError, UserFunctionError, "index out of bounds"),
    ],
)
def test_whatever_decode_raises_says_its_step(
    batches, how, in_thread, in_worker, message
):
    decode = decoders.Failing(batches.read(1)[3], how)
    with feed_of(batches, decode=decode) as feed:
        assert next(feed) == [len(record) for record in batches.read(0)]
        for _ in range(2):
            with pytest.raises(in_thread, match=message) as raised:
                next(feed)
            assert "in the batch of step 1" in raised.value.__notes__
        assert feed.get_state()["step"] == 1
    with pytest.raises(in_worker, match=message) as raised:
        sent(batches, decode, 1)
    notes = getattr(raised.value, "__notes__", ())
    assert "step 1" in "".join([str(raised.value), *notes])


@pytest.mark.slow
def test_an_error_comes_back_from_a_worker_with_its_place(batches):
    decode = decoders.Failing(batches.read(1)[3], "value_error")
    with feed_of(batches, workers=1, decode=decode) as feed:
        with pytest.raises(ValueError, match="not a cat") as raised:
            exhaust(feed)
        assert feed.get_state()["step"] == 1
    assert raised.value.__notes__[0] == "in the batch of step 1"
    assert "decoders.py" in "".join(traceback.format_exception(raised.value))


def test_what_does_not_pickle_is_refused_before_workers_start(batches):
    lock = threading.Lock()
    with feed_of(batches, workers=2, decode=lambda _: lock) as feed:
        with started() as own, pytest.raises(InputError, match="does not pickle"):
            next(feed)
        assert own.processes == []


@pytest.mark.parametrize(
    ("decode", "got"),
    [
        (decoders.lazily, "cannot pickle 'generator' object"),
        (decoders.with_function, "<lambda>"),
        (lambda _: threading.Lock(), "cannot pickle '_thread.lock' object"),
    ],
)
def test_a_batch_that_does_not_pickle_says_its_step_and_what_to_do(
    batches, decode, got
):
    with pytest.raises(UserFunctionError, match="does not pickle") as raised:
        sent(batches, decode, 5)
    error = raised.value
    assert error.__notes__ == ["in the batch of step 5"]
    assert error.where == f"worker process {os.getpid()}"
    assert got in error.got
    assert "workers=0" in error.cure
    assert shared_memory_of("unused-") == []
    with feed_of(batches, decode=decode) as feed:  # In threads it is fine.
        next(feed)


def test_only_the_trainer_has_the_batches_that_it_got(batches):
    with feed_of(batches, decode=lambda records: np.zeros(len(records))) as feed:
        kept = [weakref.ref(next(feed)) for _ in range(3)]
        until(lambda: all(reference() is None for reference in kept))


def test_a_feed_that_another_thread_closes_ends_with_an_error(batches):
    hold, reading = threading.Event(), threading.Event()

    def decode(records):
        reading.set()
        hold.wait()

    feed = feed_of(batches, decode=decode)
    closing = threading.Thread(target=lambda: (reading.wait(), feed.close()))
    closing.start()
    try:
        with pytest.raises(InputError, match="closed"):
            next(feed)
    finally:
        hold.set()
        closing.join()


@pytest.mark.slow
def test_a_feed_may_be_closed_before_its_first_batch_is_there(batches):
    with started() as own:
        with feed_of(batches, workers=2) as feed:
            feed.start_prefetch()
            assert len(own.processes) == 2
        ended(own)
    assert own.threads == []
