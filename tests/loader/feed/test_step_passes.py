"""Passes over steps: their order, their sizes, and what is in memory meanwhile."""

import pytest

from gristmill import loader
from gristmill.dataset import Writer
from gristmill.loader.feed.read_ahead import Passes
from gristmill.loader.feed.step_reads import StepReads


@pytest.fixture(scope="module")
def batches(tmp_path_factory) -> loader.GlobalBatches:
    path = tmp_path_factory.mktemp("data") / "out"
    with Writer(path) as writer:
        for number in range(1000):
            writer.write(b"%d" % number)
    return loader.global_batches(loader.open(path), batch_size=10, seed=1)


def passes_of(batches, *, decode=None, **options) -> Passes:
    rows = slice(None)
    reads = StepReads(batches, rows=rows, decode=decode)
    return Passes(reads.read, iter(range(90)), **options)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_all_steps_come_once_in_order(batches, threads):
    passes = passes_of(batches, threads=threads)
    try:
        found = list(passes)
    finally:
        passes.close()
    assert [batch.step for batch in found] == list(range(90))
    assert [batch.batch for batch in found] == [batches.read(n) for n in range(90)]


def test_a_failed_pass_gives_the_batches_before_the_error(batches):
    bad = batches.read(33)[5]

    def decode(records):
        if bad in records:
            raise ValueError("not this one")
        return records

    with batches.feed(decode=decode, host=(0, 1)) as feed:
        got = [next(feed) for _ in range(33)]
        for _ in range(2):
            with pytest.raises(ValueError, match="not this one") as raised:
                next(feed)
            assert "in the batch of step 33" in raised.value.__notes__
        assert feed.get_state()["step"] == 33
        assert feed.stats.records == 330
    assert got == [batches.read(step) for step in range(33)]
