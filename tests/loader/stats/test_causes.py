"""What a trainer waits for: numbers of every cause, and causes made in real feeds."""

import dataclasses

import pytest

from benchmarks import waiting
from gristmill import loader
from gristmill.loader.stats.feed_stats import FeedStats

# 100 steps of 10 ms, for each of which the trainer waits 30 ms; see `stats_of`.
HELD_UP = FeedStats(
    batches=100,
    wait_seconds=3.0,
    busy_seconds=1.0,
    makers=4,
    workers=4,
    processors=8,
)


def stats_of(**changes: float) -> FeedStats:
    """Returns stats of a trainer that is held up."""
    fields: dict[str, object] = dict(changes)
    return dataclasses.replace(HELD_UP, **fields)


THREADS = {"workers": 0, "makers": 4}
TABLE = {
    "waits for storage": ("storage", stats_of(read_seconds=12, read_cpu_seconds=2)),
    "waits for storage, in threads": (
        "storage",
        stats_of(**THREADS, read_seconds=12, read_cpu_seconds=1),
    ),
    "waits for the lock, in threads": (
        "workers",
        stats_of(**THREADS, read_seconds=12, read_cpu_seconds=3.9),
    ),
    "reading has all processors": (
        "read",
        stats_of(read_seconds=16, read_cpu_seconds=16, workers=8, makers=8),
    ),
    "decode needs more than all processors": (
        "decode",
        stats_of(decode_seconds=16, decode_cpu_seconds=16),
    ),
    "decode waits for something": ("decode", stats_of(decode_seconds=16)),
    "decode needs some more workers": ("workers", stats_of(decode_seconds=6.5)),
    "there are enough workers, and yet it waits": (
        "decode",
        stats_of(decode_seconds=3),
    ),
    "threads need to be some more": (
        "workers",
        stats_of(workers=0, makers=1, decode_seconds=4),
    ),
    "large batches are copied": (
        "transfer",
        stats_of(decode_seconds=2, transfer_seconds=5),
    ),
    "others have the processors": (
        "host",
        stats_of(decode_seconds=16, decode_cpu_seconds=2, decode_queued_seconds=13),
    ),
    "own workers have the processors": (
        "decode",
        stats_of(
            decode_seconds=100, decode_cpu_seconds=31, decode_queued_seconds=65,
            workers=32, makers=32,
        ),
    ),
    "others read": (
        "host",
        stats_of(read_seconds=16, read_cpu_seconds=2, read_queued_seconds=13),
    ),
    "hardly waits": (
        "trainer",
        stats_of(wait_seconds=0.04, read_seconds=12, read_cpu_seconds=2),
    ),
    "an iterator that counts nothing": ("unknown", stats_of()),
    "no second batch": ("unknown", FeedStats(batches=1, startup_seconds=9)),
    "no time between batches": (
        "read",
        stats_of(busy_seconds=0, read_seconds=12, read_cpu_seconds=11),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_the_cause_of_numbers(case):
    cause, stats = TABLE[case]
    found = loader.waits_for(stats)
    assert found.cause == cause, found
    assert found.waiting_share == stats.waiting_share
    assert 0 <= found.share <= 1
    assert str(found) == f"{found.cause}: {found.text}; {found.cure}"
    assert found.host is None
    # Only ratios count: a machine of half the speed gets the same verdict.
    slower = {
        name: 2 * value
        for name, value in vars(stats).items()
        if name.endswith("_seconds")
    }
    assert loader.waits_for(dataclasses.replace(stats, **slower)).cause == cause


SLOW = stats_of(decode_seconds=6.5)
WELL = stats_of(wait_seconds=0.01, busy_seconds=3.99, decode_seconds=6.5)


def test_a_slow_host_is_named():
    found = loader.waits_for({"a": WELL, "b": SLOW, "c": WELL})
    assert (found.cause, found.host) == ("host", "b")
    assert found.text.startswith("b of 3 hosts: there the trainer waits 75% of its")
    assert found.text.endswith("on the host in the middle 0%")
    assert found.cure == "compare it with the others (workers): use workers=7"
    found = loader.waits_for({"a": WELL, "b": SLOW})
    assert (found.cause, found.host) == ("host", "b")
    found = loader.waits_for({"a": WELL, "b": SLOW, "c": SLOW, "d": WELL, "e": WELL})
    assert found.text.startswith("b and 1 more of 5 hosts")


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize(
    "injection",
    [each for each in waiting.INJECTIONS if each.run in waiting.QUICK],
    ids=lambda each: each.cause,
)
def test_a_cause_that_is_injected_is_named(injection, place):
    where = "host-2" if injection.cause == "host" else None
    for _ in range(5):
        found = loader.waits_for(injection.run(place))
        if (found.cause, found.host) == (injection.cause, where):
            return
    # Other processes have the processors all the while: then that is the cause.
    assert found.cause == "host" != injection.cause, found


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> waiting.Place:
    return waiting.Place(tmp_path_factory.mktemp("place"))
