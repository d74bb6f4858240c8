"""Columns that come with batches: of threads, workers, mixtures, packed rows."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from tests.order.packed_datasets import documents, packing, write_frames
from tests.support.columns import NUMBER, attach, attach_numbers, examples
from tests.support.conversion import convert, job_of

HOST: dict[str, Any] = {"host": (0, 1)}
COLUMNS = ["score", "language"]


def ids(records: list[bytes]) -> dict[str, Any]:
    return {
        "id": np.array(
            [int(r.partition(b"doc")[2].partition(b"\n")[0]) for r in records]
        )
    }


def check(batch: dict[str, Any], records: int) -> None:
    numbers = batch["id"]
    assert batch["score"].tolist() == [n / records for n in numbers]
    assert batch["language"].tolist() == ["de" if n % 3 else "en" for n in numbers]


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("columns")
    found = examples(folder, [23, 0, 40])
    attach_numbers(found, folder, 63)
    return found


def random_batches(output: str, rng: random.Random) -> loader.GlobalBatches:
    opened = loader.open(output)
    given: Any = opened
    if rng.random() < 0.3:
        given = opened.select(f"score > {rng.random() * 0.7}")
    elif rng.random() < 0.4:
        given = {"a": opened.select("language == 'de'"), "b": opened}
    return loader.global_batches(
        given,
        batch_size=rng.choice([2, 4, 6]),
        seed=rng.randrange(9),
        shuffle=rng.choice(["global", "block", "none"]),
        epochs=rng.choice([None, 2]),
    )


def check_a_feed(output: str, seed: int) -> None:
    rng = random.Random(seed)
    batches = random_batches(output, rng)
    host = {"host": (rng.randrange(2), 2)}
    how = {"decode": ids, "columns": COLUMNS, **host}
    with batches.feed(**how, prefetch=rng.randrange(1, 4)) as feed:
        for _ in range(rng.randrange(5)):
            check(next(feed), 63)
        state = feed.get_state()
        expected = [next(feed) for _ in range(2)]
    with batches.feed(**how) as feed:
        feed.set_state(state)
        for batch in expected:
            again = next(feed)
            check(again, 63)
            assert again["id"].tolist() == batch["id"].tolist()


@pytest.mark.parametrize("seed", range(8))
def test_each_record_has_its_values(output: str, seed: int) -> None:
    check_a_feed(output, seed)


def test_a_last_batch_is_filled_up(output: str) -> None:
    batches = loader.global_batches(
        loader.open(output), batch_size=60, epochs=1, drop_remainder=False
    )
    for index in (0, 5):
        with batches.feed(
            decode=ids,
            columns=["score"],
            mask="mask",
            host=(index, 6),
        ) as feed:
            _, last = feed
        there = last["mask"]
        assert last["score"].shape == (10,)
        assert there.sum() == (3 if index == 0 else 0)
        assert last["score"][there].tolist() == [n / 63 for n in last["id"][there]]
        assert not last["score"][~there].any()


def test_packed_rows_get_a_value_a_row(tmp_path: pathlib.Path) -> None:
    write_frames(tmp_path / "in" / "x.tfrecord", documents(60, seed=3))
    found = str(tmp_path / "out")
    convert(job_of(tmp_path / "in", found, pack=packing(16)))
    opened = loader.open(found)
    scores = np.random.default_rng(1).random(len(opened), np.float32)
    values = {"number": [*range(len(opened))], "score": scores}
    attach(found, tmp_path, values, NUMBER)
    opened = loader.open(found)
    batches = loader.global_batches(opened, batch_size=4)
    decode = loader.PackedRows.of(opened)
    with batches.feed(decode=decode, columns=["score"], **HOST) as feed:
        for step in range(5):
            batch = next(feed)
            assert batch["score"].dtype == np.float32
            assert (batch["score"] == scores[batches.indices(step)]).all()


def test_what_has_no_columns_is_said(tmp_path: pathlib.Path, output: str) -> None:
    opened = loader.open(output)
    bare = loader.open(examples(tmp_path, [9]))
    batches = loader.global_batches(opened, batch_size=4)
    mixed = loader.global_batches({"a": opened, "b": bare}, batch_size=4)
    for given, how, message in (
        (batches, {"columns": "score", "decode": ids}, "not a list of names"),
        (batches, {"columns": ["score"]}, "the feed makes no arrays"),
        (batches, {"columns": ["scores"], "decode": ids}, "no column 'scores'"),
        (mixed, {"columns": ["score"], "decode": ids}, "no column 'score'"),
    ):
        with pytest.raises(InputError, match=message):
            given.feed(**how, **HOST)
    attach(
        bare.path,
        tmp_path,
        {"number": [*range(9)], "score": [*range(9)]},
        NUMBER,
    )
    again = loader.open(bare.path)
    mixed = loader.global_batches({"a": opened, "b": again}, batch_size=4)
    with pytest.raises(InputError, match="with other types"):
        mixed.feed(columns=["score"], decode=ids, **HOST)
    for decode in (len, lambda records: {"score": 1}):
        with (
            batches.feed(columns=["score"], decode=decode, **HOST) as feed,
            pytest.raises(InputError, match="dict that columns can be added to"),
        ):
            next(feed)


def weighted(records: list[bytes], columns: dict[str, Any]) -> dict[str, Any]:
    return ids(records) | {"score": columns["score"], "language": columns["language"]}


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_decode_gets_the_columns(output: str, workers: int) -> None:
    batches = loader.global_batches(
        loader.open(output), batch_size=8, seed=3, epochs=1, drop_remainder=False
    )
    given = {"decode": weighted, "columns": COLUMNS, "workers": workers}
    seen = 0
    for host in range(2):
        with batches.feed(**given, mask="there", host=(host, 2)) as feed:
            for batch in feed:
                there = batch["there"]
                check({name: values[there] for name, values in batch.items()}, 63)
                seen += int(there.sum())
    assert seen == 63
