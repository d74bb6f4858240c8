"""Passes over steps: their order, their sizes, and what is in memory meanwhile."""

import itertools

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import Writer
from gristmill.loader.feed.read_ahead import Passes, steps_of_next
from gristmill.loader.feed.step_reads import StepReads
from gristmill.loader.stats.feed_stats import BatchesRead, ReadBatch


@pytest.fixture(scope="module")
def batches(tmp_path_factory) -> loader.GlobalBatches:
    path = tmp_path_factory.mktemp("data") / "out"
    with Writer(path) as writer:
        for number in range(1000):
            writer.write(b"%d" % number)
    return loader.global_batches(loader.open(path), batch_size=10, seed=1)


def passes_of(batches, *, decode=None, **options) -> Passes:
    rows = slice(None)
    reads = StepReads(batches, rows=rows, decode=decode, in_turn=(0, 1))
    return Passes(reads.read, iter(range(90)), **options)


def batch_of(
    step=0, *, record_bytes=0, read=0.0, decode=0.0, queued=(0.0, 0.0)
) -> ReadBatch:
    return ReadBatch(
        step=step,
        batch=None,
        records=1,
        record_bytes=record_bytes,
        read_seconds=read,
        read_cpu_seconds=0.0,
        decode_seconds=decode,
        read_queued_seconds=queued[0],
        decode_queued_seconds=queued[1],
    )


@pytest.mark.parametrize(
    ("count", "times", "steps"),
    [
        (1, {"record_bytes": 1000, "read": 1e-4}, 16),
        (4, {"record_bytes": 1000, "read": 0.002}, 5),
        (4, {"record_bytes": 1000, "read": 0.001, "decode": 0.001}, 5),
        (2, {"record_bytes": 1000, "read": 0.001, "decode": 0.08}, 1),
        # While it only waited for a processor.
        (2, {"read": 0.003, "decode": 0.08, "queued": (0.0, 0.08)}, 3),
        (2, {"read": 0.08, "decode": 0.003, "queued": (0.08, 0.0)}, 3),
        (3, {"record_bytes": 1 << 19, "read": 1e-4}, 4),
        (1, {"record_bytes": 50 << 20, "read": 1e-4}, 1),
        (1, {"record_bytes": 0}, 16),
        (0, {"record_bytes": 0}, 1),
    ],
)
def test_a_pass_is_as_many_steps_as_are_read_soon_and_are_small(count, times, steps):
    read = BatchesRead([batch_of(**times) for _ in range(count)])
    assert steps_of_next(read) == steps


@pytest.mark.parametrize(
    ("threads", "sizes"), [(1, [1, 2, 4, 8, 16, 16]), (2, [1, 1, 2, 4, 8, 16])]
)
def test_passes_grow_and_there_are_as_many_at_a_time_as_threads(threads, sizes):
    def read(steps):
        return BatchesRead([batch_of(step) for step in steps])

    steps = itertools.count()
    passes = Passes(read, steps, threads=threads)
    found = [len(next(passes).batches)]
    assert next(steps) == threads
    found += [len(next(passes).batches) for _ in sizes[1:]]
    passes.close()
    assert found == sizes


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_all_steps_come_once_in_order(batches, threads):
    passes = passes_of(batches, threads=threads)
    try:
        read = list(passes)
    finally:
        passes.close()
    found = list(itertools.chain.from_iterable(one.batches for one in read))
    assert [batch.step for batch in found] == list(range(90))
    assert [batch.batch for batch in found] == [batches.read(n) for n in range(90)]


def test_a_failed_pass_gives_the_batches_before_the_error(batches):
    bad = batches.read(33)[5]

    def decode(records):
        if bad in records:
            raise ValueError("not this one")
        return records

    with batches.feed(decode=decode, process_index=0, process_count=1) as feed:
        got = [next(feed) for _ in range(33)]
        for _ in range(2):
            with pytest.raises(ValueError, match="not this one") as raised:
                next(feed)
            assert "in the batch of step 33" in raised.value.__notes__
        assert feed.get_state()["step"] == 33
        assert feed.stats.records == 330
    assert got == [batches.read(step) for step in range(33)]


def test_a_trainer_may_write_into_batches_that_were_read_together(batches):
    def decode(records):
        return np.array([int(record) for record in records])

    with batches.feed(decode=decode, process_index=0, process_count=1) as feed:
        kept = []
        for _ in range(60):
            kept.append(next(feed))
            kept[-1] += 1
    for step, batch in enumerate(kept):
        assert batch.tolist() == [int(record) + 1 for record in batches.read(step)]


def test_a_single_thread_makes_no_more_than_is_asked_for(batches):
    made = []

    def decode(records):
        made.append(1)
        return records

    reads = StepReads(batches, rows=slice(None), decode=decode, in_turn=(0, 1))
    passes = Passes(reads.read, iter(range(90)), threads=1)
    sizes = [len(next(passes).batches) for _ in range(6)]
    assert len(made) == sum(sizes)
