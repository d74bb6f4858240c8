"""Rows with nulls: refused before the work, or left out and counted."""

from __future__ import annotations

import json
import pathlib

import numpy as np
import pyarrow as pa
import pytest

from gristmill import loader
from gristmill.dataset.base.errors import (
    CorruptRecordError,
    InputError,
    JobChangedError,
)
from gristmill.pipelines.convert import convert as run
from gristmill.transforms import ConvertFiles
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.tables.table_features import rows_without_nulls
from tests.conversion.parquet_files import write_parquet
from tests.support.conversion import contents, convert, job_of, read_output
from tests.support.line_files import example_of
from tests.support.pipelines import run as run_beam

ROWS = [
    {"text": None if number % 5 == 0 else f"text {number}", "ids": [number, 7]}
    | ({} if number % 11 else {"ids": None})
    for number in range(1000)
]
TEXTS = [row["text"].encode() for row in ROWS if row["text"] is not None]
PLANS = [("num_shards", 7), ("shard_bytes", 3_000)]
TEXT = RecordOptions(record="column:text", nulls="skip")


def written(folder: pathlib.Path, name: str) -> pathlib.Path:
    path = folder / f"in.{name}"
    if name == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        return path
    return write_parquet(path, pa.Table.from_pylist(ROWS), row_group_size=300)


@pytest.mark.parametrize("asked", [{"record": "column:text"}, {"pack": True}])
@pytest.mark.parametrize("on_corrupt", ["fail", "skip"])
@pytest.mark.parametrize("name", ["jsonl", "parquet"])
def test_nulls_are_named_before_the_work(tmp_path, name, on_corrupt, asked) -> None:
    path = written(tmp_path, name)
    more = {"records": RecordOptions(**asked)} if "record" in asked else {}
    if "pack" in asked:
        more["pack"] = PackOptions(length=64, tokenizer="builtins:map")
    job = job_of(path, tmp_path / "out", on_corrupt=on_corrupt, **more)
    with pytest.raises(InputError, match="'text' is null in some rows") as error:
        convert(job)
    assert error.value.got == "null in 200 of 1,000 rows"
    assert "--nulls skip" in str(error.value.cure)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan[0])
@pytest.mark.parametrize("name", ["jsonl", "parquet"])
def test_nulls_are_left_out_and_counted(tmp_path, name, plan) -> None:
    path = written(tmp_path, name)
    job = job_of(path, tmp_path / "out", plan=plan, records=TEXT)
    split = convert(job).manifest.splits["train"]
    assert read_output(tmp_path / "out") == TEXTS
    assert (split.source["null_rows"], split.skipped_regions) == (200, 0)
    assert (
        "nulls     200 rows left out"
        in run([job_of(path, tmp_path / "told", plan=plan, records=TEXT)]).text()
    )
    run_beam(
        ConvertFiles(jobs=(job_of(path, tmp_path / "beam", plan=plan, records=TEXT),))
    )
    ours, theirs = (contents(tmp_path / where) for where in ("out", "beam"))
    shards = [name for name in ours if "data-train" in name and "/" not in name]
    assert shards
    assert all(ours[name] == theirs[name] for name in shards)
    changed = job_of(
        path, tmp_path / "out", plan=plan, records=RecordOptions(record="column:text")
    )
    with pytest.raises((InputError, JobChangedError)):
        convert(changed)


@pytest.mark.parametrize("name", ["jsonl", "parquet"])
def test_examples_and_tokens_without_nulls(tmp_path, name) -> None:
    path = written(tmp_path, name)
    asked = RecordOptions(columns=("text", "ids"), nulls="skip")
    convert(job_of(path, tmp_path / "out", records=asked))
    assert list(map(example_of, read_output(tmp_path / "out"))) == [
        row for row in ROWS if None not in row.values()
    ]
    kept = [row["ids"] for row in ROWS if row["ids"] is not None]
    pack = PackOptions(length=64, column="ids")
    job = job_of(
        path, tmp_path / "rows", records=RecordOptions(nulls="skip"), pack=pack
    )
    split = convert(job).manifest.splits["train"]
    assert split.packed is not None
    assert split.packed["documents"] == len(kept)
    assert split.source["null_rows"] == len(ROWS) - len(kept)
    without = job_of(path, tmp_path / "refused", pack=pack)
    with pytest.raises(InputError, match="no feature 'ids'") as error:
        convert(without)
    assert "--nulls skip" in str(error.value.cure)


def test_a_null_that_no_sample_has(tmp_path) -> None:
    path = tmp_path / "in.jsonl"
    row = f'{{"text": "{"a" * 20_000}"}}\n'  # More than a sample of 256 KiB has.
    path.write_text(row * 30 + '{"text": null}\n' + '{"text": "b"}\n')
    late = RecordOptions(record="column:text")
    with pytest.raises(CorruptRecordError, match="no value in a row") as error:
        convert(job_of(path, tmp_path / "fails", records=late))
    assert "line 31," in str(error.value)
    assert "`nulls` skip" in str(error.value)
    convert(job_of(path, tmp_path / "out", records=TEXT))
    assert len(loader.open(tmp_path / "out")) == 31


@pytest.mark.parametrize("asked", [{"input_format": "csv"}, {"record": "line"}, {}])
def test_formats_without_nulls(tmp_path, asked) -> None:
    data = b"a,b\n1,2\n" if asked else b"one\ntwo lines of text\n"
    (tmp_path / "in").write_bytes(data if "record" not in asked else b'{"a": 1}\n')
    with pytest.raises(InputError, match="`nulls` skip is for columns"):
        convert(
            job_of(
                tmp_path / "in",
                tmp_path / "out",
                records=RecordOptions(nulls="skip", **asked),
            )
        )


def test_nulls_wherever_they_are() -> None:
    rows = [
        {"s": "x", "l": [1], "d": {"x": 1}},
        {"s": None, "l": [], "d": {"x": 1}},
        {"s": "x", "l": None, "d": {"x": 1}},
        {"s": "x", "l": [], "d": {"x": 1}},
        {"s": "x", "l": [1, None], "d": {"x": 1}},
        {"s": "x", "l": [1], "d": None},
        {"s": "x", "l": [1], "d": {"x": None}},
    ]
    batch = pa.RecordBatch.from_pylist(rows)
    found = {
        name: rows_without_nulls(batch, name.split(",").__contains__).tolist()
        for name in ("s", "l", "d.x", "s,l,d.x")
    }
    assert found == {
        "s": [0, 2, 3, 4, 5, 6],
        "l": [0, 1, 3, 5, 6],
        "d.x": [0, 1, 2, 3, 4],
        "s,l,d.x": [0, 3],
    }
    assert np.array_equal(rows_without_nulls(batch.slice(2, 3), "l".__eq__), [1])
