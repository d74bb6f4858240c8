"""Columns beside the records: read, selected by, and given with batches."""

import json
import math
import pathlib
import pickle
import random

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import (
    InputError,
    InvalidDatasetError,
    ReplacedError,
    StateMismatchError,
)
from gristmill.dataset.columns.column_file import ColumnType
from gristmill.dataset.columns.expression import Expression
from tests.servers.buckets import upload
from tests.support.columns import NUMBER, attach, attach_numbers, example, examples
from tests.support.editions import add_edition
from tests.support.removals import remove_from
from tests.support.told import told

HOST = {"host": (0, 1)}
RECORDS = 9_000
CONDITION = "score > 0.25 and language == 'de'"


@pytest.fixture(scope="module")
def output(tmp_path_factory):
    folder = tmp_path_factory.mktemp("column")
    found = examples(folder, [RECORDS - 10, 0, 10])
    attach_numbers(found, folder, RECORDS)
    return found


def made(folder, shards):
    found = examples(folder, shards)
    attach_numbers(found, folder, sum(shards))
    return found


# --- Read.


@pytest.mark.parametrize(
    "index",
    [
        *(0, -1, slice(None), slice(8_980, 2, -3), []),
        *([8_999, 0, 4, 4, -2], np.arange(RECORDS) % 1_000 == 7),
    ],
    ids=str,
)
def test_a_column_is_indexed_as_an_array(output, index):
    column = loader.open(output).column("score")
    whole = np.arange(RECORDS) / RECORDS
    assert np.array_equal(column[index], whole[index])
    assert (len(column), column.shape, column.dtype) == (RECORDS, (RECORDS,), "float64")


def test_editions_and_joined_datasets(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    output = made(first, [4, 4])
    add_edition(first, output, 2, [example(n) for n in range(8, 10)])
    message = r"(?s)not all editions have the column.*editions 1, 2"
    with pytest.raises(InputError, match=message):
        loader.open(output).column("score")
    attach_numbers(output, first, 10, overwrite=True)
    tenths = [n / 10 for n in range(10)]
    assert loader.open(output).column("score")[:].tolist() == tenths
    old = loader.open(output, edition=1)
    assert old.column("score")[:].tolist() == tenths[:8]
    other = made(second, [5])
    both = loader.open([output, other])
    assert both.column("score")[[9, 10, 14]].tolist() == [0.9, 0.0, 0.8]
    selected = both.select("score >= 0.5")
    assert selected[:] == [both[n] for n in (5, 6, 7, 8, 9, 13, 14)]
    numbers = {"id": [f"doc{n}" for n in range(5)], "score": [*range(5)]}
    attach(other, second, numbers, overwrite=True)
    with told(InputError, "joined datasets have the column 'score'"):
        loader.open([output, other]).column("score")
    with told(InputError, "has no column 'nothing'"):
        both.column("nothing")


def test_removed_records_leave_their_values(tmp_path):
    output = made(tmp_path, [5, 5, 5])
    before = loader.open(output).column("score")
    remove_from(output, [0, 7, 8])
    left = [n / 15 for n in range(15) if n not in (0, 7, 8)]
    now = loader.open(output)
    assert now.column("score")[:].tolist() == left
    assert len(now.select("score >= 0.5")) == 6
    assert len([*pathlib.Path(output, "columns").iterdir()]) == 2 * (3 + 2)
    old = loader.open(output, edition=1)
    assert len(old.select("score >= 0.5")) == 7
    assert old.column("score")[7] == 7 / 15
    remove_from(output, [1], erase=True)  # Of those that are left: record 2.
    again = loader.open(output)
    assert again.column("score")[:].tolist() == [left[0], *left[2:]]
    # What has the erased values is gone, and what has others is still read.
    assert len([*pathlib.Path(output, "columns").iterdir()]) == 2 * 3
    assert before[14] == 14 / 15
    with told(ReplacedError, "open the dataset again"):
        before[1]


def test_values_of_other_records_are_refused(tmp_path):
    mine = pathlib.Path(made(tmp_path / "a", [5, 2]))
    other = pathlib.Path(made(tmp_path / "b", [5, 3]))
    # The file of another dataset's shard, in place of ours.
    pattern = "columns/*00001-of-00002.score-*"
    (own,), (their,) = (one.glob(pattern) for one in (mine, other))
    own.write_bytes(their.read_bytes())
    column = loader.open(mine).column("score")
    assert column[4] == 4 / 7
    with pytest.raises(InvalidDatasetError):
        column[5]
    # Its table, described by `dataset.json`.
    fields, theirs = (
        json.loads((one / "dataset.json").read_text()) for one in (mine, other)
    )
    entry = fields["splits"]["train"]["columns"]["score"]
    entry |= theirs["splits"]["train"]["columns"]["score"]
    (mine / entry["table"]).write_bytes((other / entry["table"]).read_bytes())
    for change, message in (
        ({}, "attached to other records"),
        ({"dtype": "complex"}, "bad description of the column"),
    ):
        entry |= change
        (mine / "dataset.json").write_text(json.dumps(fields))
        with pytest.raises(InvalidDatasetError, match=message):
            loader.open(mine).column("score")


@pytest.mark.parametrize("records", [5_000, 20_000])
def test_a_bucket_is_asked_once_for_each_shard(tmp_path, server, records):
    upload(server, made(tmp_path, [records // 2, 0, records // 2]), "out")
    column, asked = loader.open("gs://bucket/out").column("score"), []
    for seed in range(3):
        server.requests.clear()
        wanted = np.random.default_rng(seed).integers(0, records, 200)
        assert np.array_equal(column[wanted], wanted / records)
        asked.append(sum(server.requests.values()))
    # With the first bytes of a file come all of a small one.
    later = 2 if records > 5_000 else 0
    assert asked == [2 + later, later, later]


# --- Selected by: conditions mean what they mean in Python.


KINDS = {
    "small": "int8",
    "whole": "int64",
    "large": "uint64",
    "half": "float16",
    "score": "float32",
    "exact": "float64",
    "good": "bool",
    "name": "text",
}
WHOLE = [0, 1, -1, 127, 128, -(2**63), 2**63 - 1, 2**70, 10**400, -(10**400)]
WHOLE += [sign * (2**53 + n) for n in (-1, 0, 1, 2) for sign in (1, -1)]
WHOLE += [2**63, 2**63 - 512, 2**63 + 1, 2**64 - 1, 2**64]
FRACTIONS = [math.inf, 0.5, 0.1, -0.25, 2.0, 1e300, 2.0**53]
FRACTIONS += [-(2.0**53), 2.0**53 + 2, 2.0**63, -(2.0**63), 2.0**64, 2.0**63 - 1024]
TEXTS = ["", "a", "ab", "Grüße", "b\0"]
COLUMNS = {name: ColumnType(kind) for name, kind in KINDS.items()}


def values_of(kind):
    """Returns values of a type."""
    if kind in ("text", "bool"):
        return TEXTS if kind == "text" else [True, False]
    if kind.startswith("float"):
        return [*FRACTIONS, 3.0, -math.inf, math.nan]
    limits = np.iinfo(kind)
    return [n for n in WHOLE if limits.min <= n <= limits.max]


def random_condition(rng, depth):
    if depth and rng.random() < 0.6:
        one, other = (random_condition(rng, depth - 1) for _ in range(2))
        return rng.choice([f"({one} and {other})", f"({one} or {other})", f"not {one}"])
    texts = rng.random() < 0.15
    constants = TEXTS if texts else [*WHOLE, *FRACTIONS[1:], True]
    names = ["name"] if texts else [name for name in KINDS if name != "name"]
    name, other = rng.choices(names, k=2)
    a, b, c = (repr(rng.choice(constants)) for _ in range(3))
    compare = rng.choice(["<", "<=", "==", "!=", ">", ">="])
    return rng.choice(
        [
            *(f"{name} {compare} {a}", f"{name} {compare} {other}"),
            f"{a} {compare} {name} {compare} {b}",
            f"{name} {rng.choice(['in', 'not in'])} [{a}, {b}, {c}]",
            f"{a} in name" if texts else "good",
        ]
    )


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(n, marks=pytest.mark.soak) for n in range(2, 12))]
)
def test_conditions_mean_what_they_mean_in_python(seed):
    rng = random.Random(seed)
    values = {}
    for name, kind in KINDS.items():
        drawn = rng.choices(values_of(kind), k=40)
        with np.errstate(over="ignore"):
            values[name] = np.array(drawn, object if kind == "text" else kind)
    columns = zip(*(column.tolist() for column in values.values()), strict=True)
    rows = [dict(zip(KINDS, row, strict=True)) for row in columns]
    for _ in range(300):
        text = random_condition(rng, 3)
        expression = Expression(text, COLUMNS)
        found = expression.evaluate({n: values[n] for n in expression.names})
        assert found.tolist() == [bool(eval(text, {}, row)) for row in rows], text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("score >", "cannot be read"),
        ("not " * 5_000 + "score", "cannot be read"),
        ("scores > 1", "names no column 'scores'"),
        ("score", "no condition"),
        ("__import__('os').system('x')", "no condition"),
        ("score > '1'", "compares a text with a number"),
        ("name in ['de', 1]", "compares a text with a number"),
        ("vector > 1", "compares arrays"),
        ("1 < 2", "compares two constants"),
        ("score > None", "not allowed"),
        ("score + 1 > 1", "not allowed"),
        ("score > len('a')", "not allowed"),
        ("score in score", "not allowed"),
        ("(lambda: 1)() == score", "not allowed"),
        ("1 in name", "no text"),
    ],
)
def test_other_conditions_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        Expression(text, COLUMNS | {"vector": ColumnType("float32", (2,))})


def test_a_selection_is_a_dataset(output):
    whole = loader.open(output)
    found = whole.select(CONDITION)
    numbers = np.arange(RECORDS)
    mask = (numbers / RECORDS > 0.25) & (numbers % 3 > 0)
    numbers = numbers[mask]
    assert found[:] == whole[numbers]
    assert found[-1] == whole[numbers[-1]]
    assert found.column("score")[:].tolist() == (numbers / RECORDS).tolist()
    twice = found.select("score > 0.5")
    assert twice[:] == whole[numbers[numbers > RECORDS / 2]]
    assert twice.facts == whole.select(f"({CONDITION}) and score > 0.5").facts
    for other in (whole.select(mask), pickle.loads(pickle.dumps(found))):
        assert other.facts == found.facts
    assert f"{len(numbers):,} of {RECORDS:,} records" in repr(found)
    assert sum(found.shard(n).records for n in range(3)) == len(numbers)
    with told(InputError, "neither by an expression nor by booleans"):
        whole.select(mask[1:])


def test_states_and_phases_bind_the_selection(output):
    whole = loader.open(output)
    chosen = whole.select(CONDITION)
    same = whole.select("score > 0.25 and language != 'en'")
    # As many records.
    others = whole.select("score < 0.75 and language == 'de'"), whole

    def batches_of(dataset):
        return loader.global_batches(dataset, batch_size=8, epochs=2)

    def state_of(dataset):
        return batches_of(dataset).feed(**HOST, start_step=5).get_state()

    batches = batches_of(chosen)
    batches.feed(**HOST).set_state(state_of(same))
    (_, step, row), *_ = batches.then(same, step=5).find(7)
    assert batches.then(same, step=5).read(step)[row] == chosen[7]
    for other in others:
        with pytest.raises(StateMismatchError):
            batches.feed(**HOST).set_state(state_of(other))
        with pytest.raises(StateMismatchError):
            batches_of(other).feed(**HOST).set_state(state_of(chosen))
        # A number means other records in the first phase.
        with told(InputError, "other numbers in an earlier phase"):
            batches_of(other).then(chosen, step=5).find(7)


# --- Given with batches.


def ids(records):
    texts = (record.partition(b"doc")[2].partition(b"\n")[0] for record in records)
    return {"id": np.array([*map(int, texts)])}


def given(records, columns):
    return ids(records) | columns


def check(batch):
    there = batch.get("there", slice(None))
    numbers = batch["id"][there]
    assert batch["score"][there].tolist() == (numbers / RECORDS).tolist()
    languages = ["de" if n % 3 else "en" for n in numbers]
    assert batch["language"][there].tolist() == languages


@pytest.mark.parametrize("decode", [ids, given])
@pytest.mark.parametrize("seed", range(6))
def test_each_record_has_its_values(output, seed, decode):
    rng = random.Random(seed)
    opened = loader.open(output)
    some = opened.select(f"score > {rng.random() * 0.7}")
    batches = loader.global_batches(
        rng.choice([opened, some, {"a": some, "b": opened}]),
        batch_size=rng.choice([2, 4, 6]),
        seed=seed,
        shuffle=rng.choice(["global", "block", "none"]),
    )
    how = {"decode": decode, "columns": ["score", "language"], "host": (seed % 2, 2)}
    with batches.feed(**how, start_step=rng.randrange(5)) as feed:
        state = feed.get_state()
        expected = [next(feed)["id"].tolist() for _ in range(2)]
    with batches.feed(**how) as feed:
        check(next(feed))
        feed.set_state(state)
        for numbers in expected:
            batch = next(feed)
            check(batch)
            assert batch["id"].tolist() == numbers


@pytest.mark.parametrize("decode", [ids, given])
def test_a_last_batch_is_filled_up(output, workers, decode):
    batches = loader.global_batches(
        loader.open(output), batch_size=7_000, epochs=1, drop_remainder=False
    )
    how = {"decode": decode, "columns": ["score", "language"], "mask": "there"}
    seen = 0
    for host in range(2):
        how["host"] = host, 2
        with batches.feed(**how, workers=workers, start_step=1) as feed:
            (batch,) = feed
        check(batch)
        there = batch["there"]
        assert batch["score"].shape == there.shape == (3_500,)
        assert not batch["score"][~there].any()
        seen += int(there.sum())
    assert seen == RECORDS - 7_000


def test_what_has_no_columns_is_said(tmp_path, output):
    opened, bare = loader.open(output), loader.open(examples(tmp_path, [9]))
    values = {"number": [*range(9)], "score": [*range(9)]}
    other = examples(tmp_path / "other", [9])
    attach(other, tmp_path, values, NUMBER)

    def mixed(dataset):
        return loader.global_batches({"a": opened, "b": dataset}, batch_size=4)

    batches = loader.global_batches(opened, batch_size=4)
    right = {"columns": ["score"], "decode": ids}
    for feeding, how, message in (
        (batches, {"columns": "score", "decode": ids}, "not a list of names"),
        (batches, {"columns": ["score"]}, "the feed makes no arrays"),
        (batches, {"decode": given}, "the feed has no columns"),
        (batches, {"columns": ["scores"], "decode": ids}, "no column 'scores'"),
        (mixed(bare), right, "no column 'score'"),
        (mixed(loader.open(other)), right, "other types"),
    ):
        with pytest.raises(InputError, match=message):
            feeding.feed(**how, **HOST)
    for decode in (len, lambda records: {"score": 1}):
        with (
            batches.feed(columns=["score"], decode=decode, **HOST) as feed,
            told(InputError, "dict that columns can be added to"),
        ):
            next(feed)
