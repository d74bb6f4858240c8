"""What a feed counts, and its spans in a trace of JAX."""

import pathlib
import time
from collections.abc import Iterator

import jax
import numpy as np
import pytest

from gristmill import loader
from tests.support.datasets import convert
from tests.support.records import text_records


@pytest.fixture(scope="module")
def batches(tmp_path_factory) -> loader.GlobalBatches:
    path = convert(tmp_path_factory.mktemp("data"), [text_records(180, seed=1)])
    return loader.global_batches(loader.open(path), batch_size=20, seed=1, epochs=1)


def slow(records):
    time.sleep(0.05)
    return {"bytes": np.array([len(record) for record in records])}


@pytest.mark.alone
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_slow_decode_makes_the_trainer_wait(batches, workers):
    with batches.feed(host=(1, 2), workers=workers, prefetch=1, decode=slow) as feed:
        first = int(next(feed)["bytes"].sum())
        before = feed.stats
        assert (before.batches, before.records, before.record_bytes) == (1, 10, first)
        read = [int(size) for batch in feed for size in batch["bytes"]]
        stats = feed.stats - before
    assert (stats.batches, stats.records) == (batches.steps - 1, len(read)) == (8, 80)
    assert stats.record_bytes == sum(read)
    assert stats.decode_seconds >= 8 * 0.05
    assert stats.wait_seconds >= 4 * 0.05
    assert stats.read_seconds > 0
    assert before + stats == feed.stats
    assert str(loader.FeedStats(batches=1234, record_bytes=3 << 19)) == (
        "1,234 batches, 0 records, 1.5 MiB; waited 0.0 s, read 0.0 s, decoded 0.0 s"
    )


def test_batches_that_are_only_on_their_way_to_devices_do_not_count(batches):
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    feed = batches.feed(decode=slow, host=(0, 1))
    with loader.to_jax(feed, sharding, ahead=2) as arrays:
        sizes = [int(next(arrays)["bytes"].sum()) for _ in range(3)]
        assert arrays.stats.batches == 3
        assert arrays.stats.record_bytes == sum(sizes)
        assert arrays.stats.wait_seconds >= 0.05
    mine = iter([{"x": np.zeros(2)}] * 2)
    with loader.to_jax(mine, sharding) as arrays:
        next(arrays)
        assert (arrays.stats.batches, arrays.stats.records) == (1, 0)


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
    with loader.to_jax(batches.feed(decode=slow, host=(0, 1)), sharding) as arrays:
        next(arrays)  # No trace runs: this one is in none.
        with jax.profiler.trace(tmp_path):
            for _ in range(5):
                next(arrays)
    seen = list(spans(tmp_path))
    named = {
        name: [(fields, line) for at, fields, line in seen if at == name]
        for name in ("gristmill.wait", "gristmill.send")
    }
    waited = [
        fields["batch"] for fields, _ in named["gristmill.wait"] if "batch" in fields
    ]
    assert sorted(waited) == [1, 2, 3, 4, 5]
    assert {3, 4, 5} <= {fields["batch"] for fields, _ in named["gristmill.send"]}
    # The thread that sends waits for the feed.
    steps = {fields["step"] for _, fields, _ in seen if "step" in fields}
    assert {3, 4, 5} <= steps
