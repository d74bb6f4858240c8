"""Columns joined to records by keys and numbers, or computed from them."""

import dataclasses
import gzip
import itertools
import json
import random
import re

import numpy as np
import pyarrow as pa
import pytest

from gristmill import dataset, loader
from gristmill.dataset import InputError, open_manifest
from gristmill.pipelines.columns.attach import attach_tables
from gristmill.pipelines.columns.row_store import JoinBy
from tests.commands.conftest import json_of, refused, run
from tests.support.columns import example, examples, json_lines, parquet
from tests.support.datasets import convert
from tests.support.editions import add_edition, files_of

BY_ID = "--key id --workers 1"
BY_NUMBER = "--number number --workers 1"


@pytest.fixture
def ten(tmp_path):
    """A dataset of records `doc0` to `doc9`, in three shards."""
    return examples(tmp_path, [4, 0, 6])


def column(output, name):
    return loader.open(output).column(name)[:].tolist()


def kinds(output):
    return {name: str(kind) for name, kind in loader.open(output).columns.items()}


def test_rows_are_joined_by_a_feature(tmp_path, ten):
    before, opened = files_of(ten), loader.open(ten)
    digest = open_manifest(ten).content_digest
    order = random.Random(1).sample(range(10), 10)
    values = {
        "score": [n / 8 for n in range(10)],
        "language": ["de" if n % 2 else "Grüße" for n in range(10)],
        "vector": [[n, -n] for n in range(10)],
    }
    keys = {"id": [f"doc{n}" for n in order]}
    columns = {name: [held[n] for n in order] for name, held in values.items()}
    columns["small"] = pa.array(order, pa.int8())
    table = parquet(tmp_path, keys | columns)
    found = json_of(f"attach {ten} {table} {BY_ID}")
    assert [found[n] for n in ("rows", "records", "missing")] == [10, 10, 0]
    assert [*kinds(ten).values()] == ["float64", "text", "int64 [2]", "int8"]
    values["small"] = [*range(10)]
    assert {name: column(ten, name) for name in values} == values
    # The records, and all that identifies them, stay.
    now, after = loader.open(ten), files_of(ten)
    assert (now.facts, now[:]) == (opened.facts, opened[:])
    assert open_manifest(ten).content_digest == digest
    assert [name for name in before if before[name] != after[name]] == ["dataset.json"]
    assert "column    score: float64," in run(f"inspect {ten}").stdout
    # The same again has nothing to do, and another of the name is refused.
    again = run(f"attach {ten} {table} {BY_ID}").stdout
    assert "score (float64)" in again
    assert "attached before to 10 records" in again
    other = parquet(tmp_path, keys | {"score": [7] * 10})
    assert "is a column 'score' already" in refused(f"attach {ten} {other} {BY_ID}")
    # Kinds of rows without any are not shown.
    assert "missing:" not in run(f"attach {ten} {other} {BY_ID} --overwrite").stdout
    assert column(ten, "score") == [7] * 10
    left = [path for path in files_of(ten) if ".score-" in path]
    assert len(left) == 4  # The files of the column before are deleted.


def brute_force(records, rows, repeated, fill):
    """Returns the values that a join gives, and how many keys are not as they should.

    Without a table of hashes, sorting or blocks: each record looks at all rows.
    """
    values, missing = [], 0
    for key in records:
        found = [row["value"] for row in rows if key is not None and row["id"] == key]
        value = found[-1 if repeated == "last" else 0] if found else None
        missing += value is None
        values.append(fill if value is None else value)
    keys = [row["id"] for row in rows if row["id"] is not None]
    return values, {
        "missing": missing,
        "repeated": len(keys) - len({*keys}),
        "unmatched": sum(row["id"] not in records or row["id"] is None for row in rows),
    }


# How a value is made, and what stands for one that is missing.
MAKE = [
    (lambda rng: rng.randrange(-9, 9), 0),
    (lambda rng: rng.choice(["", "x", "Grüße"]), "?"),
    (lambda rng: rng.random() < 0.5, False),
    (lambda rng: [rng.random(), rng.random()], [0, 0]),
]
NAMES = [lambda number: f"doc{number}\0", lambda number: number - 3]


def check_random_join(tmp_path, seed):
    rng = random.Random(seed)
    name, (make, fill) = rng.choice(NAMES), rng.choice(MAKE)

    def most(value, share):
        return value if rng.random() < share else None

    counts = [rng.randrange(6) for _ in range(rng.randrange(1, 4))]
    total = sum(counts)
    keys = [most(name(rng.randrange(max(total, 1))), 0.9) for _ in range(total)]
    features = [{} if key is None else {"id": key} for key in keys]
    records = iter(dataset.encode_example({**one, "other": 1}) for one in features)
    files = [[*itertools.islice(records, count)] for count in counts]
    output = convert(tmp_path, files)
    rows = [{"id": name(0), "value": make(rng)}]  # Without one, no type is known.
    for _ in range(rng.randrange(2 * total + 2)):
        key = most(name(rng.randrange(total + 2)), 0.95)
        rows.append({"id": key, "value": most(make(rng), 0.95)})
    repeated = rng.choice(["first", "last"])
    wanted, counted = brute_force(keys, rows, repeated, fill)
    if rng.random() < 0.5:
        stated = [{k: v for k, v in row.items() if v is not None} for row in rows]
        table = json_lines(tmp_path, stated)
    else:
        columns = {n: [row[n] for row in rows] for n in ("id", "value")}
        table = parquet(tmp_path, columns)
    one = fill[0] if isinstance(fill, list) else fill
    by = JoinBy(
        feature="id", key="id", repeated=repeated, allow_unmatched=True, fill=one
    )
    found = attach_tables(output, [table], by, workers=1)
    for problem, count in counted.items():
        assert getattr(found, problem) == count, problem
    assert column(output, "value") == wanted
    strict = {"missing": {"fill": None}, "unmatched": {"allow_unmatched": False}}
    strict["repeated"] = {"repeated": "error"}
    for problem in filter(counted.__getitem__, strict):
        changed = dataclasses.replace(by, **strict[problem])
        with pytest.raises(InputError, match="nothing was attached"):
            attach_tables(output, [table], changed, overwrite=True, workers=1)


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "seeds",
    [
        *(range(seed, seed + 1) for seed in range(8)),
        *(
            pytest.param(range(seed, seed + 100), marks=pytest.mark.soak)
            for seed in range(100, 1100, 100)
        ),
    ],
)
def test_joins_are_those_of_brute_force(tmp_path, seeds):
    for seed in seeds:
        (tmp_path / str(seed)).mkdir()
        check_random_join(tmp_path / str(seed), seed)


def test_rows_are_joined_by_number(tmp_path):
    output = examples(tmp_path, [3, 5])
    add_edition(tmp_path, output, 2, [example(n) for n in range(8, 11)])
    order = random.Random(3).sample(range(11), 11)

    def attach(name, numbers):
        table = parquet(tmp_path, {"number": numbers, name: numbers})
        return f"attach {output} {table} {BY_NUMBER}"

    run(attach("rank", order))
    assert column(output, "rank") == [*range(11)]
    said = refused(attach("other", order[1:]))
    assert "no row, or no value in it, for 1 record" in said
    assert f"record {order[0]}" in said
    said = refused(attach("x", [*range(12)]))
    assert "no record for 1 row" in said
    assert "got:      11" in said


def test_rows_can_be_another_dataset_or_lines_of_json(tmp_path, ten):
    days = [f"2026-01-{n + 1:02d}" for n in range(10)]
    rows = [
        {"id": f"doc{n}", "score": n / 4, "pair": [n, n + 1], "day": days[n]}
        for n in range(9, -1, -1)
    ]
    other = convert(tmp_path / "other", [map(dataset.encode_example, rows)])
    lines = tmp_path / "rows.jsonl.gz"
    lines.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    for table, score in ((other, "float32"), (lines, "float64")):
        run(f"attach {ten} {table} {BY_ID} --columns score,pair,day --overwrite")
        assert [*kinds(ten).values()] == [score, "int64 [2]", "text"]
        assert column(ten, "score") == [n / 4 for n in range(10)]
        assert column(ten, "pair")[4] == [4, 5]
        assert column(ten, "day") == days


@pytest.mark.parametrize(
    ("other", "large"),
    [
        ("0.5", "9007199254740993"),
        ("9223372036854775808", "9007199254740993"),
        ("0.5", "-18446744073709551615"),
        ("[0.5, 1]", "[2, 9007199254740993]"),
    ],
)
def test_whole_numbers_of_json_are_not_rounded(tmp_path, ten, other, large):
    lines = [f'{{"id": "doc{n}", "x": {other}, "y": {n}}}' for n in range(10)]
    lines[4] = f'{{"id": "doc4", "x": {large}, "y": {2**53 + 1}}}'
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(["", *lines]))
    said = refused(f"attach {ten} {path} {BY_ID}")
    assert "'x' would be rounded" in said
    assert f"{path}, line 6" in said
    assert large.strip("]").split()[-1] in said
    # Other columns are as they were.
    run(f"attach {ten} {path} {BY_ID} --columns y")
    assert column(ten, "y")[4] == 2**53 + 1


def test_large_whole_numbers_that_a_float64_holds_are_taken(tmp_path, ten):
    values = {"doc4": 2**53 + 2, "doc5": 1e300}
    rows = [{"id": name, "z": value} for name, value in values.items()]
    line = f"attach {ten} {json_lines(tmp_path, rows)} {BY_ID} --missing"
    run(f"{line} 0")
    assert column(ten, "z")[3:6] == [0, *values.values()]
    said = refused(f"{line} {2**53 + 1} --overwrite")
    assert "not of the type of 'z'" in said


# The second line of a file of JSON, or tables by their columns; and what is said.
WRONG = """\
{"id": "doc1", "x": 1, "x": 2} | the field 'x' more than once
{"id": "doc1", "x": NaN} | NaN, which JSON does not have
{"id": "doc1", "x": 1} {"id": "doc2", "x": 1} | Extra data
{"id": "doc1", "x": 01} | delimiter
{"id": "doc1", | Expecting property name
[1] | no row of a table
{"id": "doc1", "x": "1"} | int, as 7 in
{"id": "doc1", "x": true} | int, as 7 in
{"id": "doc1", "x": [1]} | cannot hold the values of 'x'
[{"id": ["doc0"], "x": [{"a": 1}]}] | cannot hold the values of 'x'
[{"id": ["doc0", "doc1"], "x": [[1], [1, 2]]}] | lists of 1 and 2 values
[{"id": ["doc0"], "x": [[1, null]]}] | a null in an array
[{"id": ["doc0"], "x": [null]}] | has no value
[{"id": [0.5], "x": [1]}] | neither a text nor an integer
[{"id": [1], "x": [1]}] | not of the type of the rows' keys
[{"id": ["doc0"]}] | no column besides the key
[{"key": ["doc0"], "x": [1]}] | no column 'id'
[{"id": ["doc0"], "a-b": [1]}] | cannot be used in an expression
[{"id": ["a"], "x": [1]}, {"id": ["b"], "x": [1.5]}] | several types
[{"id": ["a"], "x": [1]}, {"id": ["b"], "y": [1]}] | different columns
"""


@pytest.mark.parametrize("line", WRONG.splitlines())
def test_tables_that_cannot_be_joined(tmp_path, ten, line):
    content, _, message = line.partition(" | ")
    if content.startswith("[{"):
        paths = [parquet(tmp_path, columns) for columns in json.loads(content)]
    else:
        paths = [tmp_path / "rows.jsonl"]
        paths[0].write_text('{"id": "doc0", "x": 7}\n\n' + content)
    said = refused(f"attach {ten} {BY_ID}", *paths)
    assert message in said
    assert content.startswith("[{") or f"{paths[0]}, line " in said
    assert not loader.open(ten).columns


FUNCTIONS = """
def values(record):
    return {"size": len(record), "half": len(record) / 2, "text": str(len(record))}
def several_types(record):
    return {"x": 1 if b"doc3" not in record else 0.5}
def rounded(record):
    return {"x": [0.5, 1 if b"doc3" not in record else 2**53 + 1]}
def no_columns(record):
    return len(record)
"""


def test_columns_are_computed_from_records(tmp_path, ten, monkeypatch):
    (tmp_path / "to_columns.py").write_text(FUNCTIONS)
    monkeypatch.syspath_prepend(tmp_path)
    line = f"attach {ten} --workers 1 --map to_columns"
    run(f"{line}:values")
    sizes = [*map(len, loader.open(ten)[:])]
    assert kinds(ten) == {"size": "int64", "half": "float64", "text": "text"}
    assert column(ten, "half") == [size / 2 for size in sizes]
    assert column(ten, "text") == [*map(str, sizes)]
    assert "attached before" in run(f"{line}:values").stdout
    for name, said in {
        "several_types": "several types.*record 3",
        "rounded": "'x'.*9007199254740993, which a float64 does not hold",
        "no_columns": "no columns",
    }.items():
        assert re.search(f"(?s){said}", refused(f"{line}:{name}", code=1))


def test_a_split_that_is_replaced_meanwhile_is_told(tmp_path, ten, monkeypatch):
    (tmp_path / "new.txt").write_text("new\n")
    command = f"convert {tmp_path}/new.txt {ten} --overwrite --workers 1 --name "
    command += open_manifest(ten).name
    (tmp_path / "replacing.py").write_text(
        "from tests.commands.conftest import run\n\ndef column(record):\n"
        f"    if record != b'new':\n        run({command!r})\n"
        "    return {'x': 1}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    said = refused(f"attach {ten} --workers 1 --map replacing:column", code=1)
    assert "changed the split while this one ran" in said
    assert not loader.open(ten).columns


def test_records_without_a_row_get_a_value(tmp_path, ten):
    keys = [f"doc{n}" for n in range(9)]
    table = parquet(tmp_path, {"key": keys, "x": [*range(9)]})
    line = f"attach {ten} {table} --key id=key --workers 1"
    assert "record 9 (doc9)" in refused(line)
    facts = json_of(line, "--missing", '{"x": -1}')
    assert facts["columns"] == {"x": {"dtype": "int64", "shape": []}}
    assert [facts[n] for n in ("rows", "missing", "records")] == [9, 1, 9]
    assert column(ten, "x") == [*range(9), -1]
    halves = pa.array([n / 2 for n in range(9)], pa.float32())
    table = parquet(tmp_path, {"key": keys, "y": halves})
    line = f"attach {ten} {table} --key id=key --workers 1 --missing"
    for value in ("1e39", "-1e300", "16777217", "true", '"y"'):
        assert "not of the type of 'y'" in refused(line, value)
    assert "of other columns" in refused(line, '{"x": 1}')
    run(f"{line} 0.1")
    assert column(ten, "y")[-1] == np.float32(0.1)
