"""The clocks of a thread, and spans of feeds in a trace of JAX."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import jax
import numpy as np
import pytest

from gristmill import loader
from gristmill.loader.stats import feed_stats
from gristmill.loader.stats.feed_stats import (
    RECEIVE,
    SEND,
    WAIT,
    ThreadTimes,
    span,
    thread_times,
)
from tests.support.datasets import convert
from tests.support.records import text_records


def test_sleeping_is_neither_work_nor_waiting_for_a_processor():
    before = thread_times()
    time.sleep(0.05)
    slept = thread_times().since(before)
    assert slept.passed >= 0.05
    assert slept.cpu < slept.passed
    before = thread_times()
    end = time.thread_time() + 0.02
    while time.thread_time() < end:
        pass
    worked = thread_times().since(before)
    assert worked.passed >= worked.cpu >= 0.02
    assert ThreadTimes(3, 2, 1).since(ThreadTimes(1, 1, 1)) == ThreadTimes(2, 1, 0)


def test_each_thread_has_its_own_counts():
    found = []

    def count() -> None:
        found.append(feed_stats.this_thread.counts)
        assert thread_times().cpu < 5

    for _ in range(2):
        thread = threading.Thread(target=count)
        thread.start()
        thread.join()
    assert found[0] is not found[1]
    assert feed_stats.this_thread.counts not in found


@pytest.fixture(scope="module")
def batches(tmp_path_factory) -> loader.GlobalBatches:
    path = convert(tmp_path_factory.mktemp("data"), [text_records(200, seed=1)])
    return loader.global_batches(loader.open(path), batch_size=8, seed=1)


def lengths(records) -> dict[str, np.ndarray]:
    return {"bytes": np.array([len(record) for record in records])}


def spans(folder: pathlib.Path) -> Iterator[tuple[str, dict[str, int], str]]:
    """Yields our spans of a trace: name, fields, and the line, which is a thread."""
    (path,) = folder.rglob("*.xplane.pb")
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        for number, line in enumerate(plane.lines):
            for event in line.events:
                if event.name.startswith("gristmill"):
                    yield event.name, dict(event.stats), f"{line.name} {number}"


def test_a_trace_shows_waiting_and_sending_by_name(batches, tmp_path):
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    feed = batches.feed(decode=lengths, host=(0, 1))
    with loader.to_jax(feed, sharding) as arrays:
        next(arrays)  # No trace runs: this one is in none.
        with jax.profiler.trace(tmp_path):
            for _ in range(5):
                next(arrays)
    seen = list(spans(tmp_path))
    waited = [
        fields["batch"]
        for name, fields, _ in seen
        if "batch" in fields and name == WAIT
    ]
    assert sorted(waited) == [1, 2, 3, 4, 5]
    sent = {fields["batch"] for name, fields, _ in seen if name == SEND}
    assert {3, 4, 5} <= sent
    # The thread that sends waits for the feed.
    steps = {fields["step"] for name, fields, _ in seen if "step" in fields}
    assert {3, 4, 5} <= steps
    threads = {
        name: {line for at, _, line in seen if at == name} for name in (WAIT, SEND)
    }
    assert threads[SEND] < threads[WAIT]


@pytest.mark.slow
def test_a_trace_shows_what_comes_from_workers(batches, tmp_path):
    with batches.feed(decode=lengths, host=(0, 1), workers=1) as feed:
        next(feed)
        with jax.profiler.trace(tmp_path):
            for _ in range(5):
                next(feed)
    seen = list(spans(tmp_path))
    waited = [fields["step"] for name, fields, _ in seen if name == WAIT]
    assert waited == [1, 2, 3, 4, 5]
    assert {4, 5} <= {fields["step"] for name, fields, _ in seen if name == RECEIVE}


@pytest.mark.slow
def test_without_jax_there_is_no_span_and_jax_is_not_imported():
    program = (
        "import sys\n"
        "from gristmill.loader.stats.feed_stats import span\n"
        "with span('x', step=1) as made:\n"
        "    assert made is None\n"
        "assert 'jax' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
    with span("x") as made:
        assert isinstance(made, jax.profiler.TraceAnnotation)
