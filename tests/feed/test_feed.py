"""The batches of hosts: their records, masks, counts, and the errors of a step."""

import collections
import functools
import os
import pathlib
import pickle
import shutil
import time

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset import (
    CorruptShardError,
    DecodeError,
    InputError,
    OutOfRangeError,
)
from tests.feed.conftest import FILES
from tests.support.datasets import convert
from tests.support.records import text_records
from tests.support.told import told

RECORDS = [*FILES[0], *FILES[1]]
CODE = text_records(11, seed=3)
UNEVEN = {"epochs": 1, "drop_remainder": False}


@pytest.fixture(scope="module")
def web(path):
    return loader.open(path)


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    return loader.open(convert(tmp_path_factory.mktemp("code"), [CODE]))


@pytest.fixture(scope="module")
def damaged(path, tmp_path_factory):
    """The same as `web`, but for some bytes of record 70."""
    copy = shutil.copytree(path, tmp_path_factory.mktemp("damaged") / "data")
    dataset = loader.open(copy)
    shard = pathlib.Path(dataset.shard(1).path)
    data, at = bytearray(shard.read_bytes()), dataset.stored.offset_bytes(70) + 60
    data[at : at + 8] = bytes(byte ^ 0xFF for byte in data[at : at + 8])
    shard.write_bytes(data)
    return dataset


def fail_at(bad, records):
    if bad in records:
        raise DecodeError("no good", row=records.index(bad))
    return [*map(len, records)]


@given(data=st.data())
@settings(max_examples=100)
def test_a_feed_has_its_rows_of_each_step_and_fails_at_its_step(
    web, code, damaged, data
):
    def drawn(*values):
        return data.draw(st.sampled_from(values))

    size, hosts, start = drawn(2, 6), drawn(1, 3), drawn(0, 3)
    dataset, failing = drawn((web, set()), (damaged, {RECORDS[70]}))
    batches = loader.global_batches(
        drawn(dataset, {"web": dataset, "code": code}),
        batch_size=size * hosts,
        epochs=1,
        shuffle=drawn("global", "block", "none"),
    )
    decode, bad = None, data.draw(st.none() | st.sampled_from(RECORDS))
    if bad is not None:
        decode, failing = functools.partial(fail_at, bad), {bad, *failing}
    how = {"host": (hosts - 1, hosts), "prefetch": drawn(1, 9), "start_step": start}
    with batches.feed(decode=decode, **how) as feed:
        for step in range(start, batches.steps):
            rows = slice((hosts - 1) * size, hosts * size)
            numbers = zip(*batches.schedule.batch(step, rows), strict=True)
            records = [(CODE if which else RECORDS)[n] for which, n in numbers]
            if failing & {*records}:
                with pytest.raises((CorruptShardError, DecodeError)) as caught:
                    next(feed)
                assert caught.value.__notes__[0] == f"in the batch of step {step:,}"
                assert feed.get_state()["step"] == step
                return
            assert next(feed) == ([*map(len, records)] if decode else records)
            assert batches.read(step, rows) == records
        assert next(feed, None) is None


def test_a_mixture_is_in_proportion_to_weights_or_lengths(web, code):
    both = {"web": web, "code": code}
    batches = loader.global_batches(both, batch_size=110, epochs=1)
    assert batches.steps == 1
    assert sorted(batches.read(0)) == sorted(RECORDS + CODE)
    weights = {"code": 0.3, "web": 0.7}
    batches = loader.global_batches(both, batch_size=10, weights=weights)
    for step in range(12):
        assert np.bincount(batches.indices(step).datasets).tolist() == [7, 3]
    data = pickle.dumps(batches)
    assert len(data) < 2500
    assert pickle.loads(data).read(3) == batches.read(3)


def test_a_batch_that_the_records_do_not_fill_is_refused(web, code):
    message = (
        r"(?s)there is no batch.* at least 100 records.* 99\n.*drop_remainder=False"
    )
    with pytest.raises(InputError, match=message):
        loader.global_batches(web, batch_size=100, epochs=1)
    # An epoch is joined to the next.
    assert loader.global_batches(web, batch_size=100, epochs=2).steps == 1
    # A mixture ends where its first dataset does.
    weights = {"web": 1, "code": 1}
    with pytest.raises(InputError, match="there is no batch"):
        loader.global_batches(
            {"web": web, "code": code}, batch_size=30, epochs=1, weights=weights
        )


def test_a_batch_with_more_rows_than_records_is_told_once(web, code, caplog):
    made = loader.global_batches(web, batch_size=99)
    loader.global_batches(web, batch_size=100, epochs=1, drop_remainder=False)
    assert not caplog.records
    made.then(batch_size=1_000, step=2)
    both, weights = {"web": web, "code": code}, {"web": 1, "code": 1}
    loader.global_batches(both, batch_size=22, weights=weights)
    loader.global_batches(both, batch_size=30, weights=weights)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == [
        "1,000 of its 1,000 rows are from the dataset, which has 99 records",
        "15 of its 30 rows are from code, which has 11 records",
    ]


@pytest.mark.parametrize(
    "host", [None, "tpu", 0, (0,), (2, 2), (-1, 2), ("0", 2), (0, 3)]
)
def test_another_host_than_there_is_is_refused(web, host):
    batches = loader.global_batches(web, batch_size=10)
    message = "does not divide among the hosts" if host == (0, 3) else "host"
    for made in (batches.feed, batches.records):
        with pytest.raises(InputError, match=message):
            made(host=host)
        with pytest.raises(InputError, match=r"(?s)not said which.*host=\(0, 1\)"):
            made()


def test_what_cannot_be_is_refused(web, code, tmp_path):
    make = loader.global_batches
    of_web = functools.partial(make, web, batch_size=10, epochs=1)
    mixed = functools.partial(make, {"web": web, "code": code}, batch_size=10)
    empty = loader.open(convert(tmp_path, [[]]))

    def feed(decode):
        return of_web().feed(decode=decode, host=(0, 1))

    for asked, message in (
        (lambda: make("c4", batch_size=1), "loader.open"),
        (lambda: make({}, batch_size=1), "no datasets"),
        (lambda: make(empty, batch_size=1), "no records"),
        (lambda: of_web(shuffle=True), "pass 'global'"),
        (lambda: of_web(shuffle=loader.BlockShuffle), r"pass BlockShuffle\(\)"),
        (lambda: of_web(shuffle="random"), "'none', 'global', 'block', or a"),
        (lambda: loader.BlockShuffle(block_records=0), "block_records"),
        (lambda: of_web(weights={"web": 1}), "weights are for a mixture"),
        (lambda: [*of_web()], r"iterate over a feed(.|\n)*batches\.feed\("),
        (lambda: of_web()[1], r"batches\.read\(step\)"),
        (lambda: of_web().locate(2, 10), "row is out of range"),
        (lambda: of_web().find(1, "web"), "single dataset has no name"),
        (lambda: of_web().read(-1), "0 <= step < 9"),
        (lambda: of_web().read(1, np.array([3, 12])), "row is out of range"),
        (lambda: feed(loader.PackedRows), r"give loader\.PackedRows\.of\(dataset\)"),
        (lambda: feed(loader.TokenDecoder), r"give loader\.TokenDecoder\(length="),
        (lambda: feed("rows"), "decode is not a function"),
        (lambda: mixed(weights={}), "a weight for each of web, code"),
        (lambda: mixed().find(1), "which dataset of the mixture"),
        (lambda: mixed().find(1, "books"), "no such dataset"),
    ):
        with pytest.raises((InputError, OutOfRangeError), match=message):
            asked()


# --- A last batch that is not full is filled up.


def arrays(records):
    """Arrays of each kind; it is never called without a record."""
    sizes = np.array([len(record) for record in records])
    return {
        "texts": np.array(records, object),
        "inner": {"sizes": sizes, "all": sizes[:, None].max(axis=0) + sizes[:, None]},
    }


# Of 99 records; one size divides them, and one is larger than all of them.
@pytest.mark.parametrize(
    ("batch_size", "hosts", "shuffle"),
    [(24, 1, "none"), (33, 3, "global"), (36, 12, "block"), (120, 2, "none")],
)
def test_every_record_is_once_on_some_host(web, batch_size, hosts, shuffle):
    options = UNEVEN | {"shuffle": shuffle}
    batches = loader.global_batches(web, batch_size=batch_size, **options)
    rows, seen = batch_size // hosts, []
    for host in range(hosts):
        with batches.feed(decode=arrays, host=(host, hosts), mask="mask") as feed:
            got = [*feed]
        assert len(got) == batches.steps
        assert feed.stats.records == sum(batch["mask"].sum() for batch in got)
        for step, batch in enumerate(got):
            own = batches.read(step, slice(host * rows, (host + 1) * rows))
            seen += own
            own += [b""] * (rows - len(own))  # Rows of padding are behind the others.
            assert batch["texts"].tolist() == own
            assert batch["mask"].dtype == bool
            assert batch["mask"].tolist() == [text != b"" for text in own]
            assert batch["inner"]["sizes"].tolist() == [*map(len, own)]
            assert batch["inner"]["all"].shape == (rows, 1)
    assert sorted(seen) == sorted(RECORDS)


def test_filling_goes_on_at_a_step_and_where_sizes_change(web):
    batches = loader.global_batches(web, batch_size=24, **UNEVEN)
    batches = batches.then(batch_size=48, step=2)
    with batches.feed(decode=arrays, host=(1, 2), mask="mask") as feed:
        assert [int(batch["mask"].sum()) for batch in feed] == [12, 12, 24, 24, 0]
        feed.set_state({**feed.get_state(), "step": 2})
        assert [len(batch["mask"]) for batch in feed] == [24, 24, 24]


# --- Errors and counts.


def test_a_record_that_does_not_decode_is_named(tmp_path, workers):
    records = [bytes(8)] * 13 + [bytes(7)] + [bytes(8)] * 16
    dataset = loader.open(convert(tmp_path, [records[:20], records[20:]]))
    batches = loader.global_batches(dataset, batch_size=16, shuffle="none")
    message = (
        r"out, record 13 \(record 13 of .*00000-of-00002\), row 13 of step 0\n"
        r"  expected: 8 bytes(.|\n)*got:      7 bytes"
    )
    decode = loader.TokenDecoder(length=2)
    with (
        batches.feed(decode=decode, workers=workers, host=(1, 2)) as feed,
        told(DecodeError, match=message, row=5),
    ):
        next(feed)


def test_also_where_a_host_has_padding_alone(web):
    batches = loader.global_batches(web, batch_size=240, shuffle="none", **UNEVEN)
    decode = loader.TokenDecoder(length=3)
    with (
        batches.feed(decode=decode, host=(1, 2), mask="mask") as feed,
        pytest.raises(DecodeError, match=r"record 0 .*row 0 of step 0"),
    ):
        next(feed)


def test_the_trainer_survives_and_goes_on_when_a_shard_is_back(tmp_path, workers):
    dataset = loader.open(convert(tmp_path, [FILES[0] * 10, FILES[1] * 10]))
    batches = loader.global_batches(dataset, batch_size=90, epochs=2)
    shard = pathlib.Path(dataset.shard(1).path)
    data = shard.read_bytes()
    with batches.feed(host=(0, 1), workers=workers) as feed:
        assert next(feed) == batches.read(0)
        os.truncate(shard, 0)
        with pytest.raises(CorruptShardError) as caught:
            list(feed)
        assert caught.value.where == str(shard)
        shard.write_bytes(data)
        step = feed.get_state()["step"]
        assert caught.value.__notes__[0] == f"in the batch of step {step}"
        assert [*feed] == [batches.read(n) for n in range(step, batches.steps)]


def slow(records):
    time.sleep(0.05)
    return {"bytes": np.array([len(record) for record in records])}


@pytest.mark.alone
def test_a_slow_decode_makes_the_trainer_wait(web, workers):
    batches = loader.global_batches(web, batch_size=20, epochs=2)
    with batches.feed(host=(1, 2), workers=workers, prefetch=1, decode=slow) as feed:
        first = int(next(feed)["bytes"].sum())
        before = feed.stats
        assert (before.batches, before.records, before.record_bytes) == (1, 10, first)
        read = [int(size) for batch in feed for size in batch["bytes"]]
        stats = feed.stats - before
    assert (stats.batches, stats.records) == (8, len(read)) == (8, 80)
    assert stats.record_bytes == sum(read)
    assert min(stats.decode_seconds, 2 * stats.wait_seconds) >= 8 * 0.05
    assert stats.read_seconds > 0
    assert before + stats == feed.stats
    said = "1,234 batches, 0 records, 1.5 MiB; waited 0.0 s, read 0.0 s, decoded 0.0 s"
    assert str(loader.FeedStats(batches=1234, record_bytes=3 << 19)) == said


def spans(folder):
    """Yields what our spans of a trace say: the name, a field, and its value."""
    (path,) = folder.rglob("*.xplane.pb")
    for plane in jax.profiler.ProfileData.from_file(str(path)).planes:
        for line in plane.lines:
            for event in line.events:
                if event.name.startswith("gristmill"):
                    for field, value in event.stats:
                        yield event.name, field, value


def test_on_devices_what_is_on_its_way_does_not_count_and_a_trace_shows_it(
    web, tmp_path
):
    batches = loader.global_batches(web, batch_size=20)
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with loader.to_jax(batches.feed(decode=slow, host=(0, 1)), sharding) as feed:
        sizes = [int(next(feed)["bytes"].sum())]
        with jax.profiler.trace(tmp_path):
            sizes += [int(next(feed)["bytes"].sum()) for _ in range(5)]
        assert (feed.stats.batches, feed.stats.record_bytes) == (6, sum(sizes))
        assert feed.stats.wait_seconds >= 0.05
    seen = collections.defaultdict(set)
    for name, field, value in spans(tmp_path):
        seen[name, field].add(value)
    assert seen["gristmill.wait", "batch"] == {1, 2, 3, 4, 5}
    assert {3, 4, 5} <= seen["gristmill.send", "batch"]
    # The thread that sends waits for the feed.
    assert {3, 4, 5} <= seen["gristmill.wait", "step"]
    with loader.to_jax(iter([{"x": np.zeros(2)}] * 2), sharding) as feed:
        next(feed)
        assert (feed.stats.batches, feed.stats.records) == (1, 0)
