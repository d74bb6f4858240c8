"""Steps and rows, compared with what a feed of the loader gives a trainer."""

from __future__ import annotations

import collections
import itertools
import tracemalloc

import pytest

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.view.answers.addresses import ask
from gristmill.pipelines.view.answers.opened_datasets import Opened
from tests.support.datasets import convert


@pytest.fixture(scope="module")
def mixed(tmp_path_factory) -> Opened:
    """Two datasets whose weights change at step 6, and the batch size at step 9."""
    folder = tmp_path_factory.mktemp("mixed")
    sizes = {"web": (20, 11), "code": (9, 0, 8)}
    datasets = {}
    for name, shards in sizes.items():
        files = [
            [b"%b %d.%d" % (name.encode(), n, i) for i in range(records)]
            for n, records in enumerate(shards)
        ]
        datasets[name] = loader.open(convert(folder / name, files, name=name))
    batches = loader.global_batches(
        datasets, batch_size=4, seed=3, weights={"web": 3, "code": 1}
    )
    batches = batches.with_weights({"web": 1, "code": 1}, step=6).resized(6, step=9)
    return Opened(datasets, batches)


def test_rows_are_those_of_the_feed(mixed: Opened) -> None:
    batches = mixed.ordered()
    seen = collections.defaultdict(set)
    with batches.feed(process_index=0, process_count=1) as feed:
        for step in range(14):
            found = ask(mixed, f"api/step?step={step}&previews=1")
            rows = list(next(feed))
            assert found["num_rows"] == len(rows) == (6 if step >= 9 else 4)
            assert [row["row"] for row in found["rows"]] == list(range(len(rows)))
            for row, data in zip(found["rows"], rows, strict=True):
                dataset = mixed.datasets[row["of"]]
                assert dataset[row["record"]] == data
                assert dataset.shard(row["shard"]).path == row["file"]
                assert row["size_bytes"] == len(data)
                assert row["preview"] == data.decode()
                at = row["of"], row["record"]
                seen[at].add((row["epoch"], step, row["row"]))
    assert {epoch for at in seen.values() for epoch, _, _ in at} == {0, 1}
    for (of, record), at in seen.items():
        query = f"api/seen?record={record}&of={of}&stop_epoch=5"
        sightings = ask(mixed, query)["sightings"]
        places = [(one["epoch"], one["step"], one["row"]) for one in sightings]
        assert {place for place in places if place[1] < 14} == at


def test_rows_come_some_at_a_time(opened) -> None:
    batches = loader.global_batches(opened.datasets[""], batch_size=600, seed=1)
    large = Opened(opened.datasets, batches)
    pages = [ask(large, f"api/step?step=1&first_row={n}") for n in (0, 256, 512)]
    assert [len(page["rows"]) for page in pages] == [256, 256, 88]
    rows = [row for page in pages for row in page["rows"]]
    assert [row["row"] for row in rows] == list(range(600))
    assert [row["record"] for row in rows] == batches.indices(1).tolist()
    assert {(row["size_bytes"], row["preview"]) for row in rows} == {(None, None)}
    with pytest.raises(InputError, match="no such row"):
        ask(large, "api/step?step=1&first_row=600")


def test_a_row_is_of_the_host_that_gets_it(mixed: Opened) -> None:
    batches = mixed.ordered()
    for step, hosts in ((2, 2), (9, 3), (11, 6)):
        found = ask(mixed, f"api/step?step={step}&hosts={hosts}")["rows"]
        for host in range(hosts):
            here = {"process_index": host, "process_count": hosts}
            with batches.feed(start_step=step, **here) as feed:
                wanted = list(next(feed))
            rows = [row for row in found if row["host"] == host]
            assert [mixed.datasets[row["of"]][row["record"]] for row in rows] == wanted
    assert {row["host"] for row in ask(mixed, "api/step?step=2")["rows"]} == {None}
    with pytest.raises(InputError, match="does not divide among the hosts"):
        ask(mixed, "api/step?step=2&hosts=3")
    with pytest.raises(InputError, match="hosts is not a whole number"):
        ask(mixed, "api/step?step=2&hosts=-1")


def test_a_preview_is_the_longest_text_or_the_first_tokens(opened, packed) -> None:
    for row in ask(opened, "api/step?step=3&previews=1")["rows"]:
        words = "word " * (row["record"] % 9)
        assert row["preview"] == words.strip()
    for row in ask(packed, "api/step?step=3&previews=1")["rows"]:
        record = ask(packed, f"api/record?record={row['record']}")
        tokens = record["segments"][0]["tokens"]
        assert row["preview"] == " ".join(str(token) for token, _ in tokens)[:80]


@pytest.mark.slow
def test_large_records_are_not_all_in_memory_for_their_previews(tmp_path) -> None:
    records = [b"%d " % number * (1 << 19) for number in range(10, 58)]
    dataset = loader.open(convert(tmp_path, [records]))
    batches = loader.global_batches(dataset, batch_size=48, shuffle="none")
    tracemalloc.start()
    rows = ask(Opened({"": dataset}, batches), "api/step?step=0&previews=1")["rows"]
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [row["preview"][:2] for row in rows] == [f"{n}" for n in range(10, 58)]
    assert [row["size_bytes"] for row in rows] == [len(one) for one in records]
    assert peak_bytes < sum(map(len, records)) / 2


def test_what_is_out_of_range_is_told(opened) -> None:
    with pytest.raises(InputError, match="stop_epoch is out of range"):
        ask(opened, "api/seen?record=0&stop_epoch=1001")
    with pytest.raises(InputError, match="no such record"):
        ask(opened, "api/seen?record=100")
    with pytest.raises(InputError, match="order of the records is not known"):
        ask(Opened(opened.datasets), "api/step?step=0")


def test_shares_of_a_mixture_are_counted(mixed: Opened) -> None:
    batches = mixed.ordered()
    found = ask(mixed, "api/mixture")
    assert found["steps"][0] == 0
    for window, (first, stop) in enumerate(itertools.pairwise(found["steps"])):
        counts = collections.Counter(
            batches.names[number]
            for step in range(first, stop)
            for number in batches.indices(step).datasets.tolist()
        )
        for name in batches.names:
            share = counts[name] / counts.total()
            assert found["shares"][name][window] == pytest.approx(share)
            weight = 0.5 if first >= 6 else {"web": 0.75, "code": 0.25}[name]
            assert found["weights"][name][window] == weight
    ends = {name: found["epochs"][name][-1] for name in batches.names}
    assert min(ends.values()) >= 1
    assert ask(mixed, "api/overview")["order"]["epoch_steps"] == found["steps"][-1]
    datasets = ask(mixed, "api/overview?of=code")["datasets"]
    assert [one["name"] for one in datasets] == ["web", "code"]
    assert [one["weight"] for one in datasets] == [0.75, 0.25]


def test_one_dataset_is_no_mixture(opened) -> None:
    with pytest.raises(InputError, match="there is no mixture"):
        ask(opened, "api/mixture")
