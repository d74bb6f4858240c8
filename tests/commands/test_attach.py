"""Columns joined to records by keys and numbers, or computed from them."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import pathlib
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from gristmill import dataset, loader
from gristmill.dataset.base.errors import (
    InputError,
    UserFunctionError,
)
from gristmill.dataset.metadata.manifest import open_manifest
from gristmill.pipelines.columns.attach import attach_computed, attach_tables
from gristmill.pipelines.columns.row_store import JoinBy
from gristmill.pipelines.commands.main import cli
from tests.support.columns import (
    ID,
    NUMBER,
    attach,
    attach_numbers,
    example,
    examples,
    json_lines,
    parquet,
)
from tests.support.datasets import convert
from tests.support.editions import add_edition, files_of

Rows = list[dict[str, Any]]


@pytest.fixture
def ten(tmp_path: pathlib.Path) -> str:
    return examples(tmp_path, [4, 0, 6])


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [*map(str, arguments)])


def test_rows_are_joined_by_a_feature(tmp_path: pathlib.Path, ten: str) -> None:
    before = files_of(ten)
    opened, digest = loader.open(ten), open_manifest(ten).content_digest
    order = random.Random(1).sample(range(10), 10)
    table = {
        "id": [f"doc{n}" for n in order],
        "score": [n / 8 for n in order],
        "good": [n > 4 for n in order],
        "language": ["de" if n % 2 else "Grüße" for n in order],
        "vector": [[n, -n] for n in order],
        "small": pa.array(order, pa.int8()),
    }
    found = attach(ten, tmp_path, table)
    assert (found.rows, found.records, found.missing) == (10, 10, 0)
    now = loader.open(ten)
    # The records, and all that identifies them, stay.
    assert now.facts == opened.facts
    assert now[:] == opened[:]
    after = files_of(ten)
    changed = {path for path in before if before[path] != after[path]}
    assert changed == {"dataset.json"}
    assert open_manifest(ten).content_digest == digest
    kinds = {name: str(kind) for name, kind in now.columns.items()}
    assert kinds == {
        "score": "float64",
        "good": "bool",
        "language": "text",
        "vector": "int64 [2]",
        "small": "int8",
    }
    assert now.column("score")[:].tolist() == [n / 8 for n in range(10)]
    assert now.column("good")[:].tolist() == [n > 4 for n in range(10)]
    assert now.column("language")[[1, 0]].tolist() == ["de", "Grüße"]
    assert now.column("vector")[3:5].tolist() == [[3, -3], [4, -4]]
    # The same again has nothing to do, and another of the name is refused.
    again = attach_tables(ten, [str(tmp_path / "table-2.parquet")], ID, workers=1)
    assert again.done_before
    assert again.columns == now.columns
    with pytest.raises(InputError, match="there is a column 'score' already"):
        attach(ten, tmp_path, {"id": table["id"], "score": [0] * 10})
    replaced = {"id": table["id"], "score": [7] * 10}
    attach(ten, tmp_path, replaced, overwrite=True)
    assert loader.open(ten).column("score")[:].tolist() == [7] * 10
    left = [path for path in files_of(ten) if ".score-" in path]
    assert len(left) == 4  # The files of the column before are deleted.


def brute_force(
    records: list[Any], rows: Rows, repeated: str, fill: Any
) -> tuple[list[Any], dict[str, int]]:
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


def check_random_join(tmp_path: pathlib.Path, seed: int) -> None:
    rng = random.Random(seed)
    as_text = rng.random() < 0.6
    name = (lambda n: f"doc{n}\0") if as_text else (lambda n: n - 3)
    counts = [rng.randrange(6) for _ in range(rng.randrange(1, 4))]
    total = sum(counts)
    keys = [
        name(rng.randrange(max(total, 1))) if rng.random() < 0.9 else None
        for _ in range(total)
    ]
    features = [{} if key is None else {"id": key} for key in keys]
    records = [dataset.encode_example({**f, "other": 1}) for f in features]
    starts = np.cumsum([0, *counts])
    files = [records[a:b] for a, b in itertools.pairwise(starts)]
    output = convert(tmp_path, files)
    make = rng.choice(
        [
            lambda: rng.randrange(-9, 9),
            lambda: rng.random(),
            lambda: rng.choice(["", "x", "Grüße"]),
            lambda: rng.random() < 0.5,
            lambda: [rng.random(), rng.random()],
        ]
    )
    rows: Rows = [
        {
            "id": None if rng.random() < 0.05 else name(rng.randrange(total + 2)),
            "value": None if rng.random() < 0.05 else make(),
        }
        for _ in range(rng.randrange(1, 2 * total + 3))
    ]
    rows[0]["value"] = value = make()  # Or no type would be known.
    rows[0]["id"] = name(0)
    fill = "?" if isinstance(value, str) else False if value is False else 0
    fill = fill if value is not True else True
    repeated = rng.choice(["first", "last"])
    wanted, counted = brute_force(keys, rows, repeated, fill)
    by = JoinBy(
        feature="id",
        key="id",
        repeated=repeated,
        allow_unmatched=True,
        fill=fill,
    )
    in_json = rng.random() < 0.5
    table = (
        json_lines(
            tmp_path, [{k: v for k, v in r.items() if v is not None} for r in rows]
        )
        if in_json
        else parquet(tmp_path, {n: [row[n] for row in rows] for n in ("id", "value")})
    )
    found = attach_tables(output, [table], by, workers=1)
    for problem, count in counted.items():
        assert getattr(found, problem) == count, problem
    got = loader.open(output).column("value")[:].tolist()
    if isinstance(value, list):
        wanted = [[fill, fill] if one is fill else one for one in wanted]
    assert got == wanted
    strict = {
        "missing": dataclasses.replace(by, fill=None),
        "repeated": dataclasses.replace(by, repeated="error"),
        "unmatched": dataclasses.replace(by, allow_unmatched=False),
    }
    for problem, options in strict.items():
        options = dataclasses.replace(options)
        if counted[problem]:
            with pytest.raises(InputError, match="nothing was attached"):
                attach_tables(output, [table], options, overwrite=True, workers=1)


@pytest.mark.parametrize("seed", range(8))
def test_joins_are_those_of_brute_force(tmp_path: pathlib.Path, seed: int) -> None:
    check_random_join(tmp_path, seed)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("block", range(10))
def test_a_thousand_joins(tmp_path: pathlib.Path, block: int) -> None:
    for seed in range(100 + 100 * block, 200 + 100 * block):
        folder = tmp_path / str(seed)
        folder.mkdir()
        check_random_join(folder, seed)


def test_rows_are_joined_by_number(tmp_path: pathlib.Path) -> None:
    output = examples(tmp_path, [3, 5])
    add_edition(tmp_path, output, 2, [example(n) for n in range(8, 11)])
    attach_numbers(output, tmp_path, 11)
    assert loader.open(output).column("score")[:].tolist() == [
        n / 11 for n in range(11)
    ]
    order = random.Random(3).sample(range(11), 11)
    attach(output, tmp_path, {"number": order, "rank": order}, NUMBER)
    assert loader.open(output).column("rank")[:].tolist() == [*range(11)]
    lacking = {"number": order[1:], "other": order[1:]}
    with pytest.raises(
        InputError, match="no row, or no value in it, for 1 record"
    ) as caught:
        attach(output, tmp_path, lacking, NUMBER)
    assert f"record {order[0]}" in str(caught.value)
    wrong = {"number": [*range(12)], "x": [*range(12)]}
    with pytest.raises(InputError, match="no record for 1 row") as caught:
        attach(output, tmp_path, wrong, NUMBER)
    assert "got:      11" in str(caught.value)


def test_rows_can_be_another_dataset(tmp_path: pathlib.Path, ten: str) -> None:
    other = tmp_path / "other"
    rows = [
        {"id": f"doc{n}", "score": n / 4, "pair": [n, n + 1], "name": f"n{n}"}
        for n in range(9, -1, -1)
    ]
    scores = convert(other, [[dataset.encode_example(row) for row in rows]])
    found = attach_tables(
        ten, [scores], ID, columns=["score", "pair", "name"], workers=1
    )
    assert [str(kind) for kind in found.columns.values()] == [
        "float32",
        "int64 [2]",
        "text",
    ]
    opened = loader.open(ten)
    assert opened.column("score")[:].tolist() == [n / 4 for n in range(10)]
    assert opened.column("pair")[4].tolist() == [4, 5]
    assert opened.column("name")[-1] == "n9"


def test_lines_of_json_keep_their_texts(tmp_path: pathlib.Path, ten: str) -> None:
    days = [f"2026-01-{n + 1:02d}" for n in range(10)]
    lines = [json.dumps({"id": f"doc{n}", "day": days[n]}) for n in range(10)]
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    attach_tables(ten, [str(path)], ID, workers=1)
    assert loader.open(ten).column("day")[:].tolist() == days


@pytest.mark.parametrize(
    ("other", "large"),
    [
        ("0.5", 2**53 + 1),
        ("0.5", -(2**53) - 1),
        (str(2**63), 2**53 + 1),
        ("0.5", 2**64 - 1),
        ("[0.5, 1]", [2, 2**53 + 1]),
    ],
)
def test_whole_numbers_of_json_are_not_rounded(
    tmp_path: pathlib.Path, ten: str, other: str, large: Any
) -> None:
    lines = [f'{{"id": "doc{n}", "x": {other}, "y": {n}}}' for n in range(10)]
    lines[4] = f'{{"id": "doc4", "x": {large}, "y": {2**53 + 1}}}'
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(["", *lines]))
    with pytest.raises(InputError, match="'x' would be rounded") as caught:
        attach_tables(ten, [str(path)], ID, workers=1)
    assert caught.value.where == f"{path}, line 6"
    assert caught.value.got == str(large if isinstance(large, int) else large[1])
    # Other columns, and large numbers that a float64 holds, are as they were.
    attach_tables(ten, [str(path)], ID, columns=["y"], workers=1)
    assert loader.open(ten).column("y")[4] == 2**53 + 1
    lines[4] = f'{{"id": "doc4", "z": {2**53 + 2}}}'
    lines[5] = '{"id": "doc5", "z": 1e300}'
    path.write_text("\n".join(lines[4:6]))
    by = dataclasses.replace(ID, fill=0)
    attach_tables(ten, [str(path)], by, columns=["z"], workers=1)
    assert loader.open(ten).column("z")[3:6].tolist() == [0, 2**53 + 2, 1e300]
    by = dataclasses.replace(by, fill=2**53 + 1)
    with pytest.raises(InputError, match="not of the type of 'z'"):
        attach_tables(ten, [str(path)], by, columns=["z"], overwrite=True)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"id": "doc1", "x": 1, "x": 2}', "the field 'x' more than once"),
        ('{"id": "doc1", "x": NaN}', "NaN, which JSON does not have"),
        ('{"id": "doc1", "x": 1} {"id": "doc2", "x": 1}', "Extra data"),
        ('{"id": "doc1", "x": 01}', "delimiter"),
        ('{"id": "doc1",', "Expecting property name"),
        ("[1]", "no row of a table"),
        ('{"id": "doc1", "x": "1"}', "int, as 7 in .*rows.jsonl, line 1"),
        ('{"id": "doc1", "x": true}', "int, as 7 in .*rows.jsonl, line 1"),
        ('{"id": "doc1", "x": [1]}', "cannot hold the values of 'x'"),
    ],
)
def test_lines_of_json_are_read_strictly(
    tmp_path: pathlib.Path, ten: str, line: str, message: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"id": "doc0", "x": 7}\n\n' + line)
    with pytest.raises(InputError, match=message) as caught:
        attach_tables(ten, [str(path)], ID, workers=1)
    assert caught.value.where.startswith(f"{path}, line ")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"id": ["doc0"], "x": [{"a": 1}]}, "cannot hold the values of 'x'"),
        ({"id": ["doc0", "doc1"], "x": [[1], [1, 2]]}, "lists of 1 and 2 values"),
        ({"id": ["doc0"], "x": [[1, None]]}, "a null in an array"),
        ({"id": ["doc0"], "x": [None]}, "has no value"),
        ({"id": [0.5], "x": [1]}, "neither a text nor an integer"),
        ({"id": [1], "x": [1]}, "not of the type of the rows' keys"),
        ({"id": ["doc0"]}, "no column besides the key"),
        ({"key": ["doc0"], "x": [1]}, "no column 'id'"),
        ({"id": ["doc0"], "a-b": [1]}, "cannot be used in an expression"),
    ],
)
def test_tables_that_cannot_be_joined(
    tmp_path: pathlib.Path, ten: str, columns: dict[str, list[Any]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        attach(ten, tmp_path, columns, columns=None)
    assert not loader.open(ten).columns


def test_files_of_several_types_are_refused(tmp_path: pathlib.Path, ten: str) -> None:
    one = parquet(tmp_path, {"id": ["doc0"], "x": [1]})
    other = parquet(tmp_path, {"id": ["doc1"], "x": [1.5]})
    with pytest.raises(InputError, match="several types"):
        attach_tables(ten, [one, other], ID, workers=1)
    lacking = parquet(tmp_path, {"id": ["doc1"], "y": [1]})
    with pytest.raises(InputError, match="different columns"):
        attach_tables(ten, [one, lacking], ID, workers=1)
    text = tmp_path / "a.txt"
    text.write_text("no table\n" * 5)
    with pytest.raises(InputError, match="not a table that can be joined"):
        attach_tables(ten, [str(text)], ID, workers=1)


def values_of(record: bytes) -> dict[str, Any]:
    return {"size": len(record), "half": len(record) / 2, "text": str(len(record))}


def of_several_types(record: bytes) -> dict[str, Any]:
    return {"x": 1 if b"doc3" not in record else 0.5}


def rounded(record: bytes) -> dict[str, Any]:
    return {"x": [0.5, 1 if b"doc3" not in record else 2**53 + 1]}


def no_columns(record: bytes) -> Any:
    return len(record)


def test_columns_are_computed_from_records(tmp_path: pathlib.Path, ten: str) -> None:
    found = attach_computed(ten, f"{__name__}:values_of", workers=1)
    sizes = [*map(len, loader.open(ten)[:])]
    opened = loader.open(ten)
    assert {name: str(kind) for name, kind in found.columns.items()} == {
        "size": "int64",
        "half": "float64",
        "text": "text",
    }
    assert opened.column("size")[:].tolist() == sizes
    assert opened.column("text")[:].tolist() == [*map(str, sizes)]
    again = attach_computed(ten, f"{__name__}:values_of", workers=1)
    assert again.done_before
    with pytest.raises(UserFunctionError, match="several types") as caught:
        attach_computed(ten, f"{__name__}:of_several_types", workers=1)
    assert "record 3" in str(caught.value)
    with pytest.raises(UserFunctionError, match="'x'") as caught:
        attach_computed(ten, f"{__name__}:rounded", workers=1)
    assert "9007199254740993, which a float64 does not hold" in str(caught.value)
    with pytest.raises(UserFunctionError, match="no columns"):
        attach_computed(ten, f"{__name__}:no_columns", workers=1)


def test_the_command(tmp_path: pathlib.Path, ten: str) -> None:
    table = parquet(tmp_path, {"key": [f"doc{n}" for n in range(9)], "x": [*range(9)]})
    result = run("attach", ten, table, "--key", "id=key")
    assert result.exit_code == 2
    assert "no row, or no value in it, for 1 record" in result.output
    assert "record 9 (doc9)" in result.output
    given = ("attach", ten, table, "--key", "id=key", "--missing", '{"x": -1}')
    result = run(*given, "--workers", 1, "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["columns"] == {"x": {"dtype": "int64", "shape": []}}
    assert (facts["rows"], facts["missing"], facts["records"]) == (9, 1, 9)
    assert loader.open(ten).column("x")[:].tolist() == [*range(9), -1]
    shown = run("inspect", ten).stdout
    assert "column    x: int64," in shown
    result = run(*given)
    assert "x (int64) attached before to 10 records" in result.stdout


@pytest.mark.parametrize("value", ["1e39", "-1e300", "16777217", "true"])
def test_a_value_for_missing_ones_that_its_type_does_not_hold(tmp_path, ten, value):
    halves = pa.array([n / 2 for n in range(9)], pa.float32())
    table = tmp_path / "some.parquet"
    keys = [f"doc{n}" for n in range(9)]
    pq.write_table(pa.table({"key": keys, "x": halves}), table)
    asked = ("attach", ten, str(table), "--key", "id=key", "--missing")
    result = run(*asked, value, "--workers", 1)
    assert result.exit_code == 2
    assert "not of the type of 'x'" in result.output
    assert run(*asked, "0.1", "--workers", 1).exit_code == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "exactly one option must match rows to records"),
        (
            ["--key", "id", "--number", "n"],
            "exactly one option must match rows to records",
        ),
        (["--map", "a:b", "--key", "id"], "--map and --key, FILES"),
        (["--key", "id", "--missing", "x"], "--missing is not a value of JSON"),
        (["--key", "id", "--missing", '"x"'], "not of the type of 'x'"),
        (["--key", "id", "--missing", '{"y": 1}'], "of other columns"),
    ],
)
def test_options_that_do_not_go_together(
    tmp_path: pathlib.Path, ten: str, options: list[str], message: str
) -> None:
    table = parquet(tmp_path, {"id": [f"doc{n}" for n in range(10)], "x": [*range(10)]})
    result = run("attach", ten, table, *options)
    assert result.exit_code == 2
    assert message in result.output
    assert run("attach", ten).exit_code == 2
