"""Records that conditions on columns select: as Python's own `eval` does."""

from __future__ import annotations

import json
import pathlib
import pickle
import random
from typing import Any

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import InputError, StateMismatchError
from gristmill.dataset.columns.column_file import ColumnType
from gristmill.dataset.columns.expression import Expression
from gristmill.loader.feed.state import resumed, state_of
from tests.support.columns import attach_numbers, example, examples
from tests.support.editions import add_edition
from tests.support.removals import remove_from

RECORDS = 700
CONDITION = "score > 0.25 and language == 'de'"


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("select")
    found = examples(folder, [RECORDS - 40, 0, 40])
    attach_numbers(found, folder, RECORDS)
    return found


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
FRACTIONS = [0.5, 0.1, -0.25, 2.0, 1e300, float(2**53), float("inf")]
FRACTIONS += [-(2.0**53), 2.0**53 + 2, 2.0**63, -(2.0**63), 2.0**64, 2.0**63 - 1024]
TEXTS = ["", "a", "ab", "Grüße", "b\0"]


def random_values(rng: random.Random, kind: str, count: int) -> Any:
    if kind == "text":
        values = np.empty(count, object)
        values[:] = [rng.choice(TEXTS) for _ in range(count)]
        return values
    if kind == "bool":
        return np.array([rng.random() < 0.5 for _ in range(count)])
    dtype = np.dtype(kind)
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        some = [n for n in FRACTIONS if abs(n) <= most or n == float("inf")]
        some += [float("nan"), float("-inf"), 3.0]
        return np.array([rng.choice(some) for _ in range(count)], dtype)
    limits = np.iinfo(dtype)
    some = [n for n in WHOLE if limits.min <= n <= limits.max]
    return np.array([rng.choice(some) for _ in range(count)], dtype)


def random_condition(rng: random.Random, depth: int) -> str:
    if depth and rng.random() < 0.6:
        one, other = (random_condition(rng, depth - 1) for _ in range(2))
        return rng.choice([f"({one} and {other})", f"({one} or {other})", f"not {one}"])
    name = rng.choice([*KINDS])
    if KINDS[name] == "bool" and rng.random() < 0.5:
        return name
    text = KINDS[name] == "text"
    numbers = [*WHOLE, *(n for n in FRACTIONS if n != float("inf")), True]
    constants = TEXTS if text else numbers
    other = name if text else rng.choice([n for n in KINDS if KINDS[n] != "text"])
    shown = [repr(rng.choice(constants)) for _ in range(3)]
    compare = rng.choice(["<", "<=", "==", "!=", ">", ">="])
    choices = [
        f"{name} {compare} {shown[0]}",
        f"{name} {compare} {other}",
        f"{shown[0]} {compare} {name} {compare} {shown[1]}",
        f"{name} {rng.choice(['in', 'not in'])} [{', '.join(shown)}]",
    ]
    if text:
        choices.append(f"{shown[0]} in {name}")
    return rng.choice(choices)


def check_conditions(seed: int, conditions: int) -> None:
    rng = random.Random(seed)
    columns = {name: ColumnType(kind) for name, kind in KINDS.items()}
    values = {name: random_values(rng, kind, 40) for name, kind in KINDS.items()}
    rows = [
        {name: column.tolist()[row] for name, column in values.items()}
        for row in range(40)
    ]
    for _ in range(conditions):
        text = random_condition(rng, 3)
        expression = Expression(text, columns)
        found = expression.evaluate({n: values[n] for n in expression.names})
        assert found.tolist() == [bool(eval(text, {}, row)) for row in rows], text


def test_conditions_mean_what_they_mean_in_python() -> None:
    check_conditions(1, 200)


def test_large_whole_numbers_are_not_rounded() -> None:
    columns = {"key": ColumnType("int64"), "copy": ColumnType("float64")}
    values = {
        "key": np.array([2**53 + 1, 2**53, 2**63 - 1, -(2**53) - 1]),
        "copy": np.array([2.0**53, 2.0**53, 2.0**63, -(2.0**53)]),
    }
    for condition, expected in {
        "key == copy": [False, True, False, False],
        "key > copy": [True, False, False, False],
        "copy > key": [False, False, True, True],
        f"key in [{2.0**53}, {2.0**63}]": [False, True, False, False],
    }.items():
        found = Expression(condition, columns).evaluate(values)
        assert found.tolist() == expected, condition


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_thousand_conditions(seed: int) -> None:
    check_conditions(seed, 100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("score >", "cannot be read"),
        ("scores > 1", "names no column 'scores'"),
        ("score", "no condition"),
        ("score > '1'", "compares a text with a number"),
        ("language in ['de', 1]", "compares a text with a number"),
        ("vector > 1", "compares arrays"),
        ("1 < 2", "compares two constants"),
        ("score > None", "not allowed"),
        ("score is 1", "not allowed"),
        ("score + 1 > 1", "not allowed"),
        ("score > len('a')", "not allowed"),
        ("score.real > 1", "not allowed"),
        ("__import__('os').system('x')", "no condition"),
        ("[x for x in score]", "no condition"),
        ("score in score", "not allowed"),
        ("1 in language", "no text"),
        ("(lambda: 1)() == score", "not allowed"),
        ("score > 1; score", "cannot be read"),
        ("not " * 5_000 + "score", "cannot be read"),
    ],
)
def test_what_is_not_allowed_is_refused(text: str, message: str) -> None:
    columns = {
        "score": ColumnType("float32"),
        "language": ColumnType("text"),
        "vector": ColumnType("float32", (2,)),
    }
    with pytest.raises(InputError, match=message):
        Expression(text, columns)


def test_a_selection_is_a_dataset(output: str) -> None:
    whole = loader.open(output)
    found = whole.select(CONDITION)
    numbers = [n for n in range(RECORDS) if n / RECORDS > 0.25 and n % 3]
    assert len(found) == len(numbers)
    assert found[:] == [whole[n] for n in numbers]
    assert found[-1] == whole[numbers[-1]]
    assert found.column("score")[[0, -1]].tolist() == [
        numbers[0] / RECORDS,
        numbers[-1] / RECORDS,
    ]
    assert found.select("score > 0.5")[:] == [
        whole[n] for n in numbers if n / RECORDS > 0.5
    ]
    mask = np.zeros(RECORDS, bool)
    mask[numbers] = True
    by_array = whole.select(mask)
    assert by_array.facts == found.facts
    assert pickle.loads(pickle.dumps(found)).facts == found.facts
    twice = whole.select(f"({CONDITION}) and score > 0.5")
    assert found.select("score > 0.5").facts == twice.facts
    assert f"{len(numbers)} of {RECORDS} records" in repr(found)
    assert sum(found.shard(n).records for n in range(3)) == len(numbers)
    with pytest.raises(InputError, match="neither by an expression nor by booleans"):
        whole.select(mask[1:])


@pytest.mark.parametrize("shuffle", ["global", "block", "none"])
def test_batches_have_each_selected_record_once(output: str, shuffle: Any) -> None:
    whole = loader.open(output)
    found = whole.select(CONDITION)
    batches = loader.global_batches(
        found, batch_size=16, epochs=2, shuffle=shuffle, drop_remainder=False
    )
    seen = [record for step in range(batches.steps) for record in batches.read(step)]
    assert sorted(seen) == sorted([*found[:], *found[:]])
    place = batches.locate(3, 5)
    record = batches.read(3)[5]
    assert record == found[place.record]
    shard = place.shard
    assert shard is not None
    assert loader.open([shard])[place.record_in_shard] == record
    assert place.source_path is not None
    ((epoch, step, row),) = batches.find(place.record, stop_epoch=1)
    assert batches.read(step)[row] == record
    assert epoch == 0


def test_states_bind_the_selection(output: str) -> None:
    whole = loader.open(output)

    def batches(condition: str) -> loader.GlobalBatches:
        return loader.global_batches(whole.select(condition), batch_size=8, epochs=2)

    state = json.loads(json.dumps(state_of(batches(CONDITION), 5)))
    assert resumed(batches(CONDITION), state)[1] == 5
    # As many records, and others.
    for other in ("score > 0.25 and language != 'en'", "score >= 0.25"):
        same = whole.select(other).facts == whole.select(CONDITION).facts
        if same:
            assert resumed(batches(other), state)[1] == 5
        else:
            with pytest.raises(StateMismatchError):
                resumed(batches(other), state)
    everything = loader.global_batches(whole, batch_size=8, epochs=2)
    with pytest.raises(StateMismatchError):
        resumed(everything, state)
    with pytest.raises(StateMismatchError):
        resumed(batches(CONDITION), state_of(everything, 5))


def test_joined_datasets_and_editions(tmp_path: pathlib.Path) -> None:
    folders = tmp_path / "a", tmp_path / "b"
    outputs = []
    for folder in folders:
        outputs.append(examples(folder, [6, 4]))
        attach_numbers(outputs[-1], folder, 10)
    both = loader.open(outputs)
    found = both.select("score >= 0.5")
    assert found[:] == [both[n] for n in range(20) if n % 10 >= 5]
    remove_from(outputs[0], [9])
    add_edition(folders[1], outputs[1], 2, [example(10)])
    now = loader.open(outputs[0])
    assert len(now.select("score >= 0.5")) == 4
    assert len(loader.open(outputs[0], edition=1).select("score >= 0.5")) == 5
