"""Columns that a program writes: in parts, after a restart, and refused ones."""

import pathlib
import random

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset import (
    ColumnWriter,
    DataLossError,
    InputError,
    JobChangedError,
    commit_columns,
)
from gristmill.dataset.commit.clean import clean
from tests.support.columns import example, examples
from tests.support.editions import add_edition, files_of

TYPES = {"score": "float32", "vector": ("int16", (2,)), "note": "text"}


def values_of(numbers):
    return {
        "score": [n / 7 for n in numbers],
        "vector": np.array([[n, -n] for n in numbers], np.int16).reshape(-1, 2),
        "note": [f"number {n}" for n in numbers],
    }


def check(output):
    opened = loader.open(output)
    for name, values in values_of(range(14)).items():
        found = opened.column(name)[:]
        assert found.tolist() == np.asarray(values, found.dtype).tolist()


@pytest.fixture
def output(tmp_path):
    found = examples(tmp_path, [7, 0, 5])
    add_edition(tmp_path, found, 2, [example(12), example(13)])
    return found


class StoppedError(Exception):
    """Stops a writer."""


def write(writer, rng, stop=None):
    end = writer.records.stop
    with writer:
        while (begin := writer.position_records) < end:
            if stop is not None and begin >= stop:
                raise StoppedError
            size = rng.randrange(5)
            writer.write(values_of(range(begin, min(begin + size, end))))


@pytest.mark.parametrize("seed", range(6))
def test_all_values_are_there_at_last(output, seed):
    rng = random.Random(seed)
    parts = rng.choice([None, 1, 2, 3, 9])
    for part in [None] if parts is None else rng.sample(range(parts), parts):
        how = {"source": "m", "part": part, "parts": parts}
        while True:
            writer = ColumnWriter(output, TYPES, resume=rng.random() < 0.7, **how)
            stop = rng.choice([None, rng.randrange(14)])
            try:
                write(writer, rng, stop)
            except StoppedError:
                continue
            break
        assert not (parts and loader.open(output).columns)
    for _ in range(2 if parts else 0):
        commit_columns(output, TYPES, source="m")
    check(output)
    made = files_of(output)
    write(ColumnWriter(output, TYPES, source="m"), rng)
    assert files_of(output) == made


def test_what_is_left_of_another_run_is_not_taken(output):
    rng = random.Random(1)

    def stopped(writer, stop):
        with pytest.raises(StoppedError):
            write(writer, rng, stop)
        return writer.position_records

    stopped(ColumnWriter(output, TYPES), 8)
    assert ColumnWriter(output, TYPES, source="other").position_records == 0
    assert stopped(ColumnWriter(output, TYPES, resume=True), 0) == 7
    for values in (pathlib.Path(output) / "columns").glob("*score*"):
        data = values.read_bytes()
        values.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with ColumnWriter(output, TYPES, resume=True) as writer:
        assert writer.position_records == 0
        writer.write(values_of(range(14)))
    check(output)


def test_parts_that_are_missing_are_said(output):
    def refused(said):
        with pytest.raises(DataLossError, match=said):
            commit_columns(output, TYPES)

    rng = random.Random(1)
    refused("values of 5 of 5 shards")
    write(ColumnWriter(output, TYPES, part=1, parts=2), rng)
    refused("are not written")
    # A writer without `resume` takes nothing of an earlier one.
    write(ColumnWriter(output, TYPES, part=0, parts=2), rng)
    with pytest.raises(StoppedError):
        write(ColumnWriter(output, TYPES, part=0, parts=2), rng, 0)
    refused("are not written")


def test_the_work_can_be_given_up(output):
    writer = ColumnWriter(output, TYPES)
    writer.__enter__()
    writer.write(values_of(range(14)))
    clean(output, unfinished=True)
    assert not list(pathlib.Path(output).glob("columns/*"))
    with pytest.raises(JobChangedError, match="given up"):
        writer.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"note": ["a", "b"]}, "values of"),
        ({"other": [1]}, "not values of the column 'other'"),
        ({"note": [1]}, "not values of the column 'note'"),
        ({"vector": [1]}, "not values of the column 'vector'"),
        ({"vector": [[1.5, 0]]}, "not values of the column"),
        ({"vector": [[40_000, 0]]}, "cannot hold a value"),
        ({"score": [1e39]}, "cannot hold a value"),
        ({"score": [2**24 + 1]}, "cannot hold a value"),
        ({"score": [2**53 + 1]}, "cannot hold a value"),
        ({"score": 1.0}, "not values of the column 'score'"),
        (values_of(range(15)), "for more records than the 14"),
    ],
)
def test_other_values_are_refused(output, values, message):
    with ColumnWriter(output, TYPES) as writer:
        writer.write(values_of(range(0)))
        with pytest.raises(InputError, match=message):
            writer.write(values_of(range(1)) | values)
        with pytest.raises(InputError, match="values of score, "):
            writer.write({"score": [1.0]})
        writer.write(values_of(range(14)))
    check(output)


def test_what_is_written_is_replaced_on_request_only(output):
    with ColumnWriter(output, TYPES) as writer:
        writer.write(values_of(range(14)))
    with pytest.raises(InputError, match="takes no values"):
        writer.write(values_of(range(1)))
    with pytest.raises(InputError, match="there is a column 'score' already"):
        ColumnWriter(output, TYPES, source="other")
    with ColumnWriter(output, TYPES, source="other", overwrite=True) as writer:
        writer.write(values_of(range(14)))
    check(output)
