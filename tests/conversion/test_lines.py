"""Text, JSON lines, CSV and TSV become datasets, whatever is in them."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.dataset.base.errors import (
    CorruptRecordError,
    InputError,
    JobChangedError,
)
from gristmill.pipelines.convert import convert as run
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.sources.formats import RecordOptions
from tests.conversion.line_files import (
    COMPRESS,
    as_float32,
    csv_of,
    example_of,
    jsonl_of,
    rows_of,
    text_of,
)
from tests.conversion.parquet_files import write_parquet
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import convert, job_of, read_output, skipped_in

MAKE = {
    "jsonl": jsonl_of,
    "csv": csv_of,
    "tsv": lambda rows: csv_of(rows, "\t"),
    "text": text_of,
}
ROWS = rows_of(400, seed=1)
PLANS = [("num_shards", 9), ("shard_bytes", 9_000)]


def expected(name: str, rows=ROWS) -> list:
    if name == "text":
        return text_of(rows).decode().removesuffix("\n").split("\n")
    return [as_float32(row) for row in rows]


def read(name: str, output: pathlib.Path) -> list:
    decode = bytes.decode if name == "text" else example_of
    return [decode(record) for record in read_output(output)]


def asked(name: str, **options) -> RecordOptions:
    return RecordOptions(input_format=name, **options)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from([*MAKE]),
    sizes=st.lists(st.integers(1, 120), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 30),
    shards=st.integers(1, 60),
    kind=st.sampled_from([*COMPRESS]),
)
@pytest.mark.slow
def test_any_files_and_any_cuts(tmp_path_factory, name, sizes, seed, shards, kind):
    folder, want = tmp_path_factory.mktemp("any"), []
    (folder / "in").mkdir()
    for number, size in enumerate(sizes):
        rows = rows_of(size, seed=seed + number)
        want += expected(name, rows)
        data = MAKE[name](rows)
        data = data if number % 2 else data.removesuffix(b"\n")
        (folder / f"in/{number}").write_bytes(COMPRESS[kind](data))
    stored = sum(path.stat().st_size for path in (folder / "in").iterdir())
    plan = ("num_shards", min(shards, stored))
    convert(job_of(folder / "in", folder / "out", plan=plan, records=asked(name)))
    assert read(name, folder / "out") == want


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["then, {0} and more\nno\n", '"a" "{0}"\n', "{0},x"])
def test_a_record_over_many_shards_is_read_a_few_times(tmp_path, monkeypatch, inner):
    cell = "".join(inner.format(number) for number in range(150_000))
    rows = [{"n": 1, "s": "a"}, {"n": 2, "s": cell}, {"n": 3, "s": "b"}]
    data = csv_of(rows)
    plan = ("num_shards", 33)
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("bucket", "in.csv", data)
        source, records = "gs://bucket/in.csv", asked("csv")
        convert(job_of(source, tmp_path / "o", plan=plan, records=records))
        read_bytes = server.sent_bytes
    assert [example_of(r) for r in read_output(tmp_path / "o")] == rows
    assert len(data) <= read_bytes < 30 * len(data)


BAD = {
    "jsonl": (b'{"id": 1, "text": "x", "sco\n', "is not valid JSON"),
    "csv": (b"1,x\n", "another number of fields"),
    "tsv": (b'1\t"x"y\t2.5\n', "quotes of a row"),
    "text": (b"\xff\n", "not valid UTF-8"),
}


def damaged(name: str, every: int) -> tuple[bytes, list[int], list[int]]:
    """Returns a file with bad lines, their byte offsets, and their line numbers."""
    lines = MAKE[name](ROWS).splitlines(True)
    if name in ("csv", "tsv"):
        head = lines[0]
        lines = [head, *(MAKE[name]([row]).removeprefix(head) for row in ROWS)]
    data, offsets, numbers = b"", [], []
    for number, line in enumerate(lines):
        if number % every == every - 1:
            offsets.append(len(data))
            numbers.append(data.count(b"\n") + 1)
            data += BAD[name][0]
        data += line
    return data, offsets, numbers


@pytest.mark.one_in(3)
@pytest.mark.parametrize("plan", PLANS, ids=lambda plan: plan[0])
@pytest.mark.parametrize("name", MAKE)
def test_bad_lines_are_named_or_left_out(tmp_path, name, plan) -> None:
    path, output = tmp_path / "in", tmp_path / "out"
    data, offsets, numbers = damaged(name, 70)
    path.write_bytes(data)
    job = {"plan": plan, "records": asked(name)}
    with pytest.raises(CorruptRecordError, match=BAD[name][1]) as error:
        convert(job_of(path, tmp_path / "fails", **job))
    place = f"{path}, line {numbers[0]:,}, byte offset {offsets[0]:,}"
    assert error.value.where == place
    convert(job_of(path, output, on_corrupt="skip", max_corrupt=999, **job))
    regions = skipped_in(output)
    assert [region["line"] for region in regions] == numbers
    size = len(BAD[name][0])
    assert [(region["begin_bytes"], region["end_bytes"]) for region in regions] == [
        (offset, offset + size) for offset in offsets
    ]
    assert all(BAD[name][1] in region["detail"] for region in regions)
    assert read(name, output) == expected(name)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["none", "gzip"])
@pytest.mark.parametrize("shards", [1, 7])
@pytest.mark.parametrize("name", ["csv", "tsv"])
@pytest.mark.parametrize(
    "end", [b'X"abc\n1Xd\n2Xe\n', b'3X"the last cell,\ncut'], ids=["unclosed", "cut"]
)
def test_a_quote_that_is_never_closed(tmp_path, name, end, shards, kind) -> None:
    # What is behind it is in the field: it is no row, nor left out in silence.
    tab = b"\t" if name == "tsv" else b","
    good = tab.join([b"n", b"t\n"]) + b"".join(b"%d%sx\n" % (n, tab) for n in range(39))
    broken = good + end.replace(b"X", tab)
    for file, data in {"a": good, "b": broken, "c": good}.items():
        (tmp_path / f"{file}.in").write_bytes(COMPRESS[kind](data))
    given = {"plan": ("num_shards", shards), "records": asked(name)}
    inputs = str(tmp_path / "*.in")
    with pytest.raises(CorruptRecordError, match="never closed") as error:
        convert(job_of(inputs, tmp_path / "fails", **given))
    where = f"{tmp_path}/b.in, line 41, byte offset {len(good)}"
    assert error.value.where == where
    convert(job_of(inputs, tmp_path / "out", on_corrupt="skip", **given))
    (region,) = skipped_in(tmp_path / "out")
    assert (region["begin_bytes"], region["end_bytes"]) == (len(good), len(broken))
    found = [example_of(record)["n"] for record in read_output(tmp_path / "out")]
    assert found == [*range(39)] * 3


@pytest.mark.parametrize("name", MAKE)
@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_compressed_file_that_is_cut_short(tmp_path, name, kind) -> None:
    data = COMPRESS[kind](MAKE[name](ROWS))
    path = tmp_path / "in"
    path.write_bytes(data[: len(data) * 3 // 4])
    job = {"plan": PLANS[0], "records": asked(name)}
    with pytest.raises(CorruptRecordError, match="ends too early") as error:
        convert(job_of(path, tmp_path / "fails", **job))
    assert ", line " in str(error.value.where)
    convert(job_of(path, tmp_path / "out", on_corrupt="skip", max_corrupt=1, **job))
    found = read(name, tmp_path / "out")
    assert found == expected(name)[: len(found)] != []
    assert len(skipped_in(tmp_path / "out")) == 1


NULLS = [
    {"text": None if number % 5 == 0 else f"text {number}", "ids": [number, 7]}
    | ({} if number % 11 else {"ids": None})
    for number in range(1000)
]
TEXT = RecordOptions(record="column:text", nulls="skip")


@pytest.fixture(params=["jsonl", "parquet"])
def with_nulls(request, tmp_path) -> pathlib.Path:
    path = tmp_path / f"in.{request.param}"
    if request.param == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in NULLS))
        return path
    return write_parquet(path, pa.Table.from_pylist(NULLS), row_group_size=300)


@pytest.mark.parametrize(
    "asked",
    [
        {"records": RecordOptions(record="column:text")},
        {"pack": PackOptions(length=64, tokenizer="builtins:map")},
    ],
    ids=["records", "rows"],
)
@pytest.mark.parametrize("on_corrupt", ["fail", "skip"])
def test_nulls_are_named_before_the_work(tmp_path, with_nulls, on_corrupt, asked):
    job = job_of(with_nulls, tmp_path / "out", on_corrupt=on_corrupt, **asked)
    with pytest.raises(InputError, match="'text' is null in some rows") as error:
        convert(job)
    assert error.value.got == "null in 200 of 1,000 rows"
    assert "--nulls skip" in str(error.value.cure)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("plan", [("num_shards", 7), ("shard_bytes", 3_000)])
def test_rows_with_nulls_are_left_out_and_counted(tmp_path, with_nulls, plan) -> None:
    job = job_of(with_nulls, tmp_path / "out", plan=plan, records=TEXT)
    assert "nulls     200 rows left out" in run([job]).text()
    texts = [row["text"].encode() for row in NULLS if row["text"] is not None]
    assert read_output(tmp_path / "out") == texts
    with pytest.raises((InputError, JobChangedError)):
        convert(dataclasses.replace(job, records=RecordOptions(record="column:text")))


def test_examples_and_tokens_without_nulls(tmp_path, with_nulls) -> None:
    records = RecordOptions(columns=("text", "ids"), nulls="skip")
    convert(job_of(with_nulls, tmp_path / "out", records=records))
    assert list(map(example_of, read_output(tmp_path / "out"))) == [
        row for row in NULLS if None not in row.values()
    ]
    pack = PackOptions(length=64, column="ids")
    records = RecordOptions(nulls="skip")
    job = job_of(with_nulls, tmp_path / "rows", records=records, pack=pack)
    split = convert(job).manifest.splits["train"]
    assert split.packed is not None
    nulls = sum(row["ids"] is None for row in NULLS)
    assert split.packed["documents"] == len(NULLS) - nulls
    assert split.source["null_rows"] == nulls
    with pytest.raises(InputError, match="no feature 'ids'") as error:
        convert(job_of(with_nulls, tmp_path / "refused", pack=pack))
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
    assert len(read_output(tmp_path / "out")) == 31


@pytest.mark.parametrize("asked", [{"input_format": "csv"}, {"record": "line"}, {}])
def test_formats_without_nulls(tmp_path, asked) -> None:
    (tmp_path / "in").write_bytes(b'{"a": 1}\n' if "record" in asked else b"a,b\n1,2\n")
    records = RecordOptions(nulls="skip", **asked)
    with pytest.raises(InputError, match="`nulls` skip is for columns"):
        convert(job_of(tmp_path / "in", tmp_path / "out", records=records))
