"""Text, JSON lines, CSV and TSV become datasets as TFRecords do, whatever happens."""

from __future__ import annotations

import itertools
import pathlib
import signal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill.dataset.base.errors import (
    CorruptRecordError,
)
from gristmill.transforms import ReadRecords
from gristmill.transforms.sources.formats import RecordOptions
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import (
    contents,
    convert,
    job_of,
    read_output,
    skipped_in,
)
from tests.support.kills import Killer
from tests.support.line_files import (
    COMPRESS,
    as_float32,
    csv_of,
    example_of,
    jsonl_of,
    rows_of,
    text_of,
)
from tests.support.pipelines import run

ROWS = rows_of(400, seed=1)
FILES = {
    "jsonl": jsonl_of(ROWS),
    "csv": csv_of(ROWS),
    "tsv": csv_of(ROWS, "\t"),
    "text": text_of(ROWS),
}
PLANS = [("num_shards", 9), ("shard_bytes", 9_000)]


def expected(name: str) -> list:
    if name == "text":
        return FILES["text"].decode().removesuffix("\n").split("\n")
    return [as_float32(row) for row in ROWS]


def read(name: str, output: pathlib.Path, split: str = "train") -> list:
    decode = bytes.decode if name == "text" else example_of
    return [decode(record) for record in read_output(output, split)]


def asked(name: str, **options) -> RecordOptions:
    return RecordOptions(input_format=name, **options)


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "plan"), list(itertools.product(FILES, PLANS)))
def test_every_plan_gives_every_record_once(tmp_path, name, plan) -> None:
    (tmp_path / "in").write_bytes(FILES[name])
    job = job_of(tmp_path / "in", tmp_path / "out", plan=plan, records=asked(name))
    convert(job)
    assert read(name, tmp_path / "out") == expected(name)


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from([*FILES]),
    sizes=st.lists(st.integers(1, 120), min_size=1, max_size=4),
    seed=st.integers(0, 1 << 30),
    shards=st.integers(1, 60),
    kind=st.sampled_from([*COMPRESS]),
)
def test_any_files_and_any_cuts(tmp_path_factory, name, sizes, seed, shards, kind):
    folder = tmp_path_factory.mktemp("any")
    (folder / "in").mkdir()
    make = {"jsonl": jsonl_of, "csv": csv_of, "text": text_of}
    make["tsv"] = lambda rows: csv_of(rows, "\t")
    want = []
    for number, size in enumerate(sizes):
        rows = rows_of(size, seed=seed + number)
        data = make[name](rows)
        if name == "text":
            want += data.decode().removesuffix("\n").split("\n")
        else:
            want += [as_float32(row) for row in rows]
        data = data if number % 2 else data.removesuffix(b"\n")
        (folder / f"in/{number}").write_bytes(COMPRESS[kind](data))
    stored = sum(path.stat().st_size for path in (folder / "in").iterdir())
    convert(
        job_of(
            folder / "in",
            folder / "out",
            plan=("num_shards", min(shards, stored)),
            records=asked(name),
        )
    )
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
    lines = jsonl_of(ROWS).splitlines(True)
    if name == "text":
        lines = text_of(ROWS).splitlines(True)
    elif name != "jsonl":
        tab = "\t" if name == "tsv" else ","
        lines = [csv_of([row], tab).split(b"\n", 1)[1] for row in ROWS]
        lines = [csv_of(ROWS[:1], tab).split(b"\n", 1)[0] + b"\n", *lines]
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
@pytest.mark.parametrize("name", FILES)
def test_bad_lines_are_named_or_left_out(tmp_path, name, plan) -> None:
    data, offsets, numbers = damaged(name, 70)
    path = tmp_path / "in"
    path.write_bytes(data)
    job = job_of(path, tmp_path / "fails", plan=plan, records=asked(name))
    with pytest.raises(CorruptRecordError, match=BAD[name][1]) as error:
        convert(job)
    assert error.value.where == (
        f"{path}, line {numbers[0]:,}, byte offset {offsets[0]:,}"
    )

    output = tmp_path / "out"
    convert(
        job_of(
            path,
            output,
            plan=plan,
            records=asked(name),
            on_corrupt="skip",
            max_corrupt=999,
        )
    )
    regions = skipped_in(output)
    assert [region["begin_bytes"] for region in regions] == offsets
    assert [region["line"] for region in regions] == numbers
    sizes = [region["end_bytes"] - region["begin_bytes"] for region in regions]
    assert sizes == [len(BAD[name][0])] * len(offsets)
    assert all(BAD[name][1] in region["detail"] for region in regions)
    assert read(name, output) == expected(name)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("kind", ["plain", "gzip"])
@pytest.mark.parametrize("shards", [1, 7])
@pytest.mark.parametrize("name", ["csv", "tsv"])
@pytest.mark.parametrize(
    ("end", "line"),
    [(b'X"abc\n1Xd\n2Xe\n', 41), (b'3X"the last cell,\ncut', 41)],
    ids=["unclosed", "cut"],
)
def test_a_quote_that_is_never_closed(tmp_path, name, end, line, shards, kind) -> None:
    # What is behind it is in the field: it is no row, nor left out in silence.
    tab = b"\t" if name == "tsv" else b","
    good = tab.join([b"n", b"t\n"]) + b"".join(b"%d%sx\n" % (n, tab) for n in range(39))
    broken = good + end.replace(b"X", tab)
    files = {"a": good, "b": broken, "c": good}
    for file, data in files.items():
        data = COMPRESS["gzip"](data) if kind == "gzip" else data
        (tmp_path / f"{file}.in").write_bytes(data)
    given = {"plan": ("num_shards", shards), "records": asked(name)}
    inputs = str(tmp_path / "*.in")
    with pytest.raises(CorruptRecordError, match="never closed") as error:
        convert(job_of(inputs, tmp_path / "fails", **given))
    where = f"{tmp_path}/b.in, line {line}, byte offset {len(good)}"
    assert error.value.where == where
    convert(job_of(inputs, tmp_path / "out", on_corrupt="skip", **given))
    (region,) = skipped_in(tmp_path / "out")
    assert (region["begin_bytes"], region["end_bytes"]) == (len(good), len(broken))
    found = [example_of(record)["n"] for record in read_output(tmp_path / "out")]
    assert found == [*range(39)] * 3


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["gzip", "zstd"])
def test_a_compressed_file_that_is_cut_short(tmp_path, name, kind) -> None:
    data = COMPRESS[kind](FILES[name])
    path = tmp_path / "in"
    path.write_bytes(data[: len(data) * 3 // 4])
    with pytest.raises(CorruptRecordError, match="ends too early") as error:
        convert(job_of(path, tmp_path / "fails", records=asked(name)))
    assert ", line " in str(error.value.where)
    convert(
        job_of(
            path,
            tmp_path / "out",
            plan=PLANS[0],
            records=asked(name),
            on_corrupt="skip",
            max_corrupt=1,
        )
    )
    found = read(name, tmp_path / "out")
    assert found == expected(name)[: len(found)]
    assert len(skipped_in(tmp_path / "out")) == 1


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", FILES)
def test_a_pipeline_reads_them(tmp_path, name) -> None:
    (tmp_path / "in").write_bytes(FILES[name])
    path = tmp_path / "in"
    found = run(
        ReadRecords(path, records=asked(name), with_source=True, range_bytes=2_000)
    )
    decode = bytes.decode if name == "text" else example_of
    in_order = sorted(found, key=lambda one: one.place)
    assert [decode(one.record) for one in in_order] == expected(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["jsonl", "csv"])
def test_a_killed_command_goes_on(tmp_path, name) -> None:
    path = tmp_path / "in"
    path.write_bytes(damaged(name, 150)[0])

    def command(output: pathlib.Path) -> list[str]:
        return [
            *("convert", str(path), str(output), "--name", "data", "--num-shards"),
            *("9", "--workers", "1", "--on-corrupt", "skip"),
            *("--input-format", name),
        ]

    with Killer(tmp_path) as killer:
        ended = killer.run(command(tmp_path / "undisturbed"))
        assert ended.status == 0, ended.error
        for kill_at in (9, 24, 41):
            output = tmp_path / str(kill_at)
            ended = killer.run(command(output), kill_at=kill_at)
            assert ended.status == -signal.SIGKILL, ended.error
            ended = killer.run(command(output))
            assert ended.status == 0, ended.error
            assert contents(output) == contents(tmp_path / "undisturbed")
    assert read(name, tmp_path / "undisturbed") == expected(name)
