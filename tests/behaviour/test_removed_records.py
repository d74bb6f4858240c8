"""Runs that go on when records are removed from their datasets."""

from __future__ import annotations

import collections
import json
import pathlib
import pickle
import shutil

import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
    InputError,
    InvalidDatasetError,
    OutOfRangeError,
    StateMismatchError,
)
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.loader.feed.state import batches_of_state
from tests.support.datasets import convert
from tests.support.records import text_records
from tests.support.removals import remove

FIRST = text_records(60, seed=1)
MORE = text_records(30, seed=2)
LOST = [3, 17, 18, 40, 59]
LATER = [0, 1, 30, 54, 55, 70, 84]  # Numbers after `LOST` and `MORE`.
OPTIONS = {"batch_size": 6, "seed": 3, "epochs": 3, "drop_remainder": False}
STEPS = (4, 9, 12)  # Of the first removal, of what is appended, of the second.


def make(folder: pathlib.Path, *, erase: bool) -> str:
    """A dataset: [1], without some [2], with more [2, 3], without some [4, 5]."""
    convert(folder, [FIRST[:25], FIRST[25:]])
    remove(folder, LOST, erase=erase)
    convert(folder, [MORE[:8], MORE[8:]], edition=3)
    return remove(folder, LATER, erase=erase)


@pytest.fixture(scope="module", params=["kept", "erased"])
def changed(request, tmp_path_factory) -> str:
    return make(tmp_path_factory.mktemp("d"), erase=request.param == "erased")


@pytest.fixture(scope="module")
def states() -> dict[int, list[bytes]]:
    """The records after each change, by the newest edition."""
    without = [r for n, r in enumerate(FIRST) if n not in LOST]
    longer = without + MORE
    last = [r for n, r in enumerate(longer) if n not in LATER]
    return {1: FIRST, 2: without, 3: longer, 5: last}


def grown(path: str, editions=(1, 2, 3, 5), **options) -> loader.GlobalBatches:
    batches = loader.global_batches(
        loader.open(path, edition=editions[0]), **{**OPTIONS, **options}
    )
    for edition, step in zip(editions[1:], STEPS, strict=False):
        batches = batches.extended(loader.open(path, edition=edition), step=step)
    return batches


def stream(batches, *, hosts=1, state=None, start_step=0):
    """What the steps of a feed have, over all hosts."""
    feeds = [
        batches.feed(process_index=h, process_count=hosts, start_step=start_step)
        for h in range(hosts)
    ]
    if state is not None:
        for feed in feeds:
            feed.set_state(json.loads(json.dumps(state)))
    return [[r for part in step for r in part] for step in zip(*feeds, strict=True)]


class TestEditions:
    def test_each_is_as_it_was(self, changed, states):
        dataset = loader.open(changed)
        assert list(dataset) == states[5]
        assert (dataset.edition, len(dataset)) == (5, 78)
        for edition, records in states.items():
            past = loader.open(changed, edition=edition)
            assert past.edition == edition == dataset.as_of(edition).edition
            assert len(past) == len(records)
            for same in (past, pickle.loads(pickle.dumps(past))):
                assert [
                    same[number]
                    for number in range(len(same))
                    if not same.is_removed(number)
                ] == [r for r in records if r in states[5] or not is_past(same)]

    def test_a_removed_record_is_not_read(self, changed, states):
        past = loader.open(changed, edition=1)
        if not is_past(past):
            assert past.read(LOST) == [FIRST[number] for number in LOST]
            return
        with pytest.raises(OutOfRangeError, match="was removed") as caught:
            past.read([2, 17])
        assert "record 17 of edition 1" in str(caught.value)
        for failing in (past.find, past.offset_bytes, past.__getitem__):
            with pytest.raises(OutOfRangeError, match="was removed"):
                failing(17)
        assert past[2] == FIRST[2]
        assert past[-3] == FIRST[57]
        assert past.order_digest is None
        assert past.records_digest is not None
        assert "as edition 1: 60 records" in repr(past)
        shard, number = (int(found[0]) for found in past.find([57]))
        now = loader.open(changed)
        assert now[now.shard(shard).first_record + number] == FIRST[57]


def is_past(dataset: loader.Dataset) -> bool:
    return dataset.order_digest is None


class TestRun:
    def test_every_record_that_stays_is_seen_once_an_epoch(self, changed, states):
        batches = grown(changed)
        plain = loader.global_batches(loader.open(changed, edition=1), **OPTIONS)
        names = {record: number for number, record in enumerate(FIRST + MORE)}
        now = [names[record] for record in states[5]]
        seen = collections.defaultdict(list)
        for step in range(batches.steps):
            for row, number in enumerate(batches.indices(step).tolist()):
                record = now[number] if number >= 0 else -1 - number
                epoch = batches.locate(step, row).epoch
                seen[epoch].append(record)
                assert (number < 0) == (record not in now)
        for records in seen.values():
            assert len({*records}) == len(records)
        running = min(e for e, records in seen.items() if any(r >= 60 for r in records))
        for epoch, records in seen.items():
            if epoch >= running:
                assert set(now) <= set(records)
        # Before the first change they are those of the first edition.
        before = [names[FIRST[n]] for step in range(4) for n in plain.indices(step)]
        assert seen[0][:24] == before

    def test_what_is_removed_is_not_read_from_its_step_on(self, changed, states):
        batches = grown(changed)
        for step in range(4, batches.steps):
            numbers = batches.indices(step)
            read = batches.datasets[0].read(numbers[numbers >= 0])
            assert not {FIRST[number] for number in LOST} & {*read}
            if step >= STEPS[-1]:
                assert batches.read(step) == read == [states[5][n] for n in numbers]

    def test_steps_before_are_read_from_what_is_kept(self, changed):
        batches = grown(changed)
        plain = loader.global_batches(loader.open(changed, edition=1), **OPTIONS)
        failed, past = 0, is_past(loader.open(changed, edition=1))
        for step in range(4):
            if (batches.indices(step) >= 0).all() or not past:
                assert batches.read(step) == plain.read(step)
                continue
            with pytest.raises(OutOfRangeError, match="was removed from the dataset"):
                batches.read(step)
            failed += 1
        assert (failed > 0) == past

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize("hosts", [1, 2, 3])
    def test_it_resumes_on_any_hosts(self, changed, hosts):
        batches = grown(changed)
        whole = stream(batches, start_step=12)
        assert stream(batches, hosts=hosts, start_step=12) == whole
        for step in (12, 15, 20):
            feed = batches.feed(process_index=0, process_count=1, start_step=step)
            state = feed.get_state()
            again = stream(grown(changed), hosts=hosts, state=state)
            assert again == whole[step - 12 :]

    def test_the_state_of_before_goes_on_with_the_removal(self, changed):
        plain = loader.global_batches(loader.open(changed, edition=1), **OPTIONS)
        state = plain.feed(process_index=0, process_count=1, start_step=4).get_state()
        batches = grown(changed, (1, 5))
        feed = batches.feed(process_index=0, process_count=1)
        feed.set_state(state)
        assert next(feed) == batches.read(4)

    def test_a_mixture(self, changed, states):
        def mixed(edition, step=None):
            parts = {"d": loader.open(changed, edition=edition)}
            parts["e"] = loader.open(changed, edition=5)
            return parts

        options = {**OPTIONS, "weights": {"d": 2, "e": 1}, "epochs": None}
        batches = loader.global_batches(mixed(1), **options)
        batches = batches.extended({"d": loader.open(changed)}, step=7)
        for step in range(7, 40):
            numbers, records = batches.indices(step)
            wanted = [states[5][record] for record in records]
            assert batches.read(step) == wanted
            assert collections.Counter(numbers.tolist()) == {0: 4, 1: 2}
        state = batches.feed(
            process_index=0, process_count=1, start_step=20
        ).get_state()
        assert [entry["dataset"] for entry in state["extended"]] == ["d"]
        again = batches_of_state(mixed(5), json.loads(json.dumps(state)))
        assert again.schedule == batches.schedule

    def test_the_order_is_not_read_by_windows_or_position(self, changed, states):
        batches = grown(changed, shuffle="block")
        order = batches.map_dataset()
        rows = [order[p] for p in range(72, 90)]
        assert rows == [r for step in (12, 13, 14) for r in batches.read(step)]


class TestState:
    def state(self, changed, step=15):
        feed = grown(changed).feed(process_index=0, process_count=1, start_step=step)
        return json.loads(json.dumps(feed.get_state()))

    def test_it_names_what_was_removed(self, changed):
        state = self.state(changed)
        entries = state["extended"]
        assert [entry["edition"] for entry in entries] == [2, 3, 5]
        assert [entry.get("removed", {}).get("records") for entry in entries] == [
            *(5, None, 7),
        ]
        assert [entry["records"] for entry in entries] == [55, 85, 78]

    def test_batches_are_made_of_it(self, changed):
        batches, state = grown(changed), self.state(changed)
        again = batches_of_state(loader.open(changed), state)
        assert again.schedule == batches.schedule
        assert [again.indices(n).tolist() for n in range(20)] == [
            batches.indices(n).tolist() for n in range(20)
        ]

    def test_what_was_removed_later_has_no_part_in_it(self, changed):
        batches = grown(changed, (1, 2, 3))
        feed = batches.feed(process_index=0, process_count=1, start_step=15)
        again = batches_of_state(loader.open(changed), feed.get_state())
        (dataset,) = again.datasets
        assert (dataset.edition, len(dataset)) == (3, 85)
        assert again.schedule == batches.schedule
        numbers = again.indices(15).tolist()
        there = [n for n in numbers if n >= 0 and not dataset.is_removed(n)]
        assert dataset.read(there) == batches.datasets[0].read(there)

    @pytest.mark.one_in(3)
    @pytest.mark.parametrize(
        "removed", [None, 1, {}, {"records": 0, "digest": ""}, {"records": 1}]
    )
    def test_a_damaged_entry_is_named(self, changed, removed):
        state = self.state(changed)
        state["extended"][0]["removed"] = removed
        with pytest.raises(InputError, match=r"extended\[0\].removed"):
            stream(grown(changed), state=state)

    def test_batches_without_the_removal_say_how_to_go_on(self, changed):
        plain = loader.global_batches(loader.open(changed, edition=1), **OPTIONS)
        state = plain.feed(process_index=0, process_count=1, start_step=4).get_state()
        newest = loader.global_batches(loader.open(changed), **OPTIONS)
        feed = newest.feed(process_index=0, process_count=1)
        if not is_past(loader.open(changed, edition=1)):
            feed.set_state(state)  # It goes on with the edition that is kept.
            assert next(feed) == plain.read(4)
            return
        with pytest.raises(
            StateMismatchError, match="does not match the records"
        ) as caught:
            feed.set_state(state)
        assert "edition=1), as in the run" in str(caught.value)
        assert "extended(dataset, step=4)" in str(caught.value)


class TestRefused:
    def test_what_never_had_the_records(self, changed, tmp_path):
        other = loader.open(convert(tmp_path, [text_records(90, seed=9)]))
        plain = loader.global_batches(loader.open(changed, edition=1), **OPTIONS)
        with pytest.raises(InputError, match="does not begin with the records"):
            plain.extended(other, step=4)
        own = loader.global_batches(loader.open(changed), **OPTIONS)
        with pytest.raises(InputError, match="no more records than before"):
            own.extended(loader.open(changed), step=4)
        with pytest.raises(InputError, match="no more records than before"):
            own.extended(loader.open(changed, edition=1), step=4)

    @pytest.mark.parametrize(
        ("field", "value"),
        [("records", "5"), ("records_digest", 7), ("edition", None)],
    )
    def test_a_damaged_description(self, changed, tmp_path, field, value):
        own = pathlib.Path(shutil.copytree(changed, tmp_path / "own"))
        document = json.loads((own / "dataset.json").read_bytes())
        (first, _) = document["splits"]["train"]["editions"]
        first["removed"][field] = value
        (own / "dataset.json").write_text(json.dumps(document))
        plain = loader.global_batches(loader.open(changed, edition=1), **OPTIONS)
        with pytest.raises((InvalidDatasetError, InputError)):
            plain.extended(loader.open(own), step=4)

    def test_a_lost_list(self, changed, tmp_path):
        own = pathlib.Path(shutil.copytree(changed, tmp_path / "own"))
        (split,) = open_manifest(str(own)).splits.values()
        (own / split.parts[0].removed["list"]).write_bytes(b"none")
        plain = loader.global_batches(loader.open(changed, edition=2), **OPTIONS)
        with pytest.raises(InvalidDatasetError):
            plain.extended(loader.open(own), step=4)

    def test_joined_datasets_lose_records_too(self, changed, tmp_path):
        other = convert(tmp_path, [text_records(7, seed=9)], name="o")
        places = [other, changed]
        if is_past(loader.open(changed, edition=3)):
            with pytest.raises(InputError, match="not kept is joined"):
                loader.open(places, "train", edition=[None, 3])
            return
        then, now = (
            loader.open(places, "train", edition=[None, edition]) for edition in (3, 5)
        )
        batches = loader.global_batches(then, **OPTIONS).extended(now, step=2)
        (change,) = batches.schedule.extensions
        assert change.removed.numbers.tolist() == [7 + number for number in LATER]
        first = loader.global_batches(
            loader.open(places, "train", edition=[None, 2]), **OPTIONS
        )
        with pytest.raises(InputError, match="does not begin with the records"):
            # What was appended to the first comes in between.
            loader.global_batches(
                loader.open(places[::-1], "train", edition=[2, None]), **OPTIONS
            ).extended(loader.open(places[::-1], "train"), step=2)
        assert first.extended(then, step=2).schedule.extensions[0].num_records == 92


class TestProvenance:
    def test_locate_says_removed(self, changed):
        batches = grown(changed)
        plain = loader.global_batches(loader.open(changed, edition=1), **OPTIONS)
        gone = 0
        for step in range(4):
            for row, number in enumerate(batches.indices(step).tolist()):
                found, before = batches.locate(step, row), plain.locate(step, row)
                if number >= 0:
                    assert found.removed_from is None
                    assert found.record == number
                    continue
                gone += 1
                record = int(plain.indices(step)[row])
                if record in LOST:
                    assert (found.removed_from, found.record) == (1, record)
                    assert found.source_path == before.source_path
                else:
                    assert found.removed_from == 3
                assert (found.shard is None) == is_past(loader.open(changed, edition=1))
        assert gone
