"""Parquet: every row once, wherever files are cut; its types; and all damage."""

from __future__ import annotations

import base64
import collections
import datetime
import decimal
import itertools
import json
import math
import os
import random
import subprocess
import sys

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.dataset.base.errors import (
    CorruptRecordError,
    GristmillError,
    InputError,
    StorageChangedError,
    StorageError,
    UserFunctionError,
)
from gristmill.dataset.base.example import decode_example
from gristmill.dataset.formats.parquet_file import ParquetFile, difference
from gristmill.dataset.formats.random_reader import RandomReader
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.features import parse_features
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import (
    make_shard,
    make_shards,
    shard_tasks,
)
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.source import SkippedRegions, first_records, source_of
from gristmill.transforms.tables.example_rows import encode_rows
from gristmill.transforms.tables.table_features import features_of
from tests.conversion.parquet_files import flip, page_offset, some_table, write_parquet
from tests.support.conversion import (
    contents,
    convert,
    job_of,
    prepared_of,
    read_output,
    skipped_in,
)


def listed(path, **options):
    return find_inputs([str(path)], options=RecordOptions(**options))


def read(files, begin, end, *, file=0, **options):
    source = SourceRange(file_index=file, begin_bytes=begin, end_bytes=end)
    reader = source_of(files.spec).read(files[file], source, **options)
    places, records = [], []
    for batch in reader.batches():
        places += batch.places
        records += batch.records
        assert batch.crc32cs == [google_crc32c.value(r) for r in batch.records]
    assert reader.span.records == len(records)
    return places, records, reader.span


def examples(table):
    batch = table.combine_chunks().to_batches()
    return encode_rows(batch[0], features_of(table.schema)) if batch else []


def rows_of(skipped):
    return [(line["begin_row"], line["end_row"]) for line in skipped.found]


@pytest.fixture(scope="module")
def five_groups(tmp_path_factory):
    table = some_table(4500)
    path = tmp_path_factory.mktemp("range") / "a.parquet"
    options = {"row_group_size": 1000, "use_dictionary": False}
    return write_parquet(path, table, **options), table


@pytest.fixture(scope="module")
def two_damaged(five_groups, tmp_path_factory):
    path = tmp_path_factory.mktemp("damaged") / "a.parquet"
    path.write_bytes(five_groups[0].read_bytes())
    for group in (2, 4):
        flip(path, page_offset(path, group, 0))
    return path


CODECS = ("none", "snappy", "gzip", "zstd", "brotli", "lz4")


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_every_way_to_store_pages(tmp_path, compression, version):
    words = pa.array(["a", "bb", None] * 100).dictionary_encode()
    table = some_table(300).append_column("words", words)
    options = {"compression": compression, "data_page_version": version}
    path = write_parquet(tmp_path / "a.parquet", table, row_group_size=70, **options)
    assert read(listed(path), 0, -1)[1] == examples(table)


@pytest.mark.slow
@pytest.mark.parametrize("damaged", [False, True])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_cuts_give_the_same_rows_once(five_groups, two_damaged, damaged, data):
    whole, table = five_groups
    path, good = whole, examples(table)
    if damaged:
        path, good = two_damaged, good[:2000] + good[3000:4000]
    files, size = listed(path), path.stat().st_size
    cuts = data.draw(st.lists(st.integers(0, size), max_size=6))
    kept, reached, rows, records = SkippedRegions(), 0, [], []
    for begin, end in itertools.pairwise(sorted([0, size, *cuts])):
        places, found, span = read(files, begin, end, skipped=kept)
        assert span.start_bytes == reached
        reached = span.stop_bytes
        assert span.whole == (reached == 4500)
        rows += places
        records += found
    assert span.whole
    lost = {*range(2000, 3000), *range(4000, 4500)} if damaged else ()
    assert rows == [row for row in range(4500) if row not in lost]
    assert rows_of(kept) == ([(2000, 3000), (4000, 4500)] if damaged else [])
    assert records == good


def test_a_damaged_page_costs_the_rest_of_its_row_group(tmp_path):
    table = some_table(12000)
    options = {"row_group_size": 6000, "use_dictionary": False}
    path = write_parquet(tmp_path / "a.parquet", table, **options)
    flip(path, page_offset(path, 1, 0))
    files, kept = listed(path), SkippedRegions()
    with pytest.raises(CorruptRecordError, match="row group 1") as caught:
        read(files, 0, -1)
    assert caught.value.where == f"{path}, row 10,096"
    assert "--on-corrupt skip" in caught.value.cure
    assert read(files, 0, -1, skipped=kept)[1] == examples(table[:10_096])
    assert rows_of(kept) == [(10_096, 12_000)]


def test_a_row_that_cannot_become_a_record(tmp_path):
    texts = pa.array([b"a", b"\xff", b"c", b"\xff"]).view(pa.string())
    path = write_parquet(tmp_path / "a.parquet", pa.table({"text": texts}))
    files, kept = listed(path, record="column:text"), SkippedRegions()
    with pytest.raises(CorruptRecordError, match="not UTF-8") as caught:
        read(files, 0, -1)
    assert caught.value.where == f"{path}, row group 0, row 1"
    places, records, span = read(files, 0, -1, skipped=kept)
    assert (places, records) == ([0, 2], [b"a", b"c"])
    assert (span.start_bytes, span.stop_bytes) == (0, 4)
    assert rows_of(kept) == [(1, 2), (3, 4)]


def test_a_file_that_is_written_meanwhile_is_an_error(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", some_table(3000))
    files = listed(path)
    everything = SourceRange(file_index=0, begin_bytes=0, end_bytes=files[0].size_bytes)
    batches = source_of(files.spec).read(files[0], everything).batches()
    next(batches)
    write_parquet(path, some_table(3000, seed=1))
    with pytest.raises(StorageChangedError):
        list(batches)


def test_a_file_with_other_columns_is_refused_by_its_reader(tmp_path):
    """Of millions of files not all are looked into before."""
    path = write_parquet(tmp_path / "a.parquet", some_table(10))
    files = listed(path)
    spec = json.loads(files.spec.schema) | {
        "more": {"kind": "int64", "dtype": "int64", "shape": []}
    }
    other = files.spec._replace(schema=json.dumps(spec))
    source = source_of(other)
    everything = SourceRange(file_index=0, begin_bytes=0, end_bytes=files[0].size_bytes)
    with pytest.raises(InputError, match="column more") as caught:
        list(source.read(files[0], everything).batches())
    assert caught.value.where == str(path)


@pytest.fixture
def rows_in_a_bucket(tmp_path, server):
    table = pa.table({"data": [random.Random(n).randbytes(1000) for n in range(900)]})
    path = write_parquet(tmp_path / "a", table, row_group_size=300)
    server.objects.put("in", "a", path.read_bytes())
    return examples(table)


def test_an_object_that_is_replaced_meanwhile_is_no_damage(server, rows_in_a_bucket):
    """The error of the storage passes through pyarrow."""
    files, kept = listed("gs://in/a"), SkippedRegions()
    server.fail("replace", "media", skip=1)
    with pytest.raises(StorageChangedError):
        read(files, 0, -1, skipped=kept)
    assert not kept.found


@pytest.mark.parametrize("skip", [0, 1], ids=["the footer", "pages"])
def test_what_was_damaged_on_its_way_is_read_once_more(server, rows_in_a_bucket, skip):
    files, kept = listed("gs://in/a"), SkippedRegions()
    server.fail("flip", "media", skip=skip)
    assert read(files, 0, -1, skipped=kept)[1] == rows_in_a_bucket
    assert not any(fault.times for fault in server.faults)
    assert not kept.found


BIG = 16_777_217  # The least whole number that a float32 does not hold.


def examples_of(folder, table, **options):
    write_parquet(folder / "0.parquet", table)
    files = find_inputs([str(folder)], options=RecordOptions(**options))
    return [decode_example(found.record) for found in first_records(files)]


def test_whole_numbers_of_doubles_stay_whole(tmp_path):
    # As pandas writes integers with gaps; and lists, and fields.
    table = pa.table(
        {
            "id": pa.array([BIG, None, 2.0], pa.float64()),
            "l": pa.array([[BIG + 2.0], [], [1.0]]),
            "d": pa.array([{"x": -BIG * 1.0}, None, {"x": 0.0}]),
            "f": pa.array([0.5, 3.0, 1e30]),
        }
    )
    found = examples_of(tmp_path, table)
    assert found[0] == {"id": [BIG], "l": [BIG + 2], "d.x": [-BIG], "f": [0.5]}
    assert found[1] == {"l": [], "f": [3.0]}
    specs = parse_features(source_of(find_inputs([str(tmp_path)]).spec).features())
    kinds = {name: spec.dtype for name, spec in specs.items()}
    assert kinds == {"id": "int64", "l": "int64", "d.x": "int64", "f": "float32"}


@pytest.mark.parametrize("other", [2.5, math.nan, math.inf, 1e19])
def test_whole_numbers_of_doubles_beside_others(tmp_path, other):
    table = pa.table({"a": [BIG * 1.0, other], "b": ["x", "y"]})
    with pytest.raises(InputError, match="'a' has whole numbers") as error:
        examples_of(tmp_path, table)
    assert "--columns '*,a:float'" in error.value.cure
    found = examples_of(tmp_path, table, columns=("*", "a:float"))
    assert (found[0]["a"], found[1]["b"]) == ([BIG - 1.0], [b"y"])
    with pytest.raises(CorruptRecordError, match="is not an integer") as error:
        examples_of(tmp_path, table, columns=("a:int",))
    assert error.value.where.endswith("0.parquet, row group 0, row 1")
    with pytest.raises(InputError, match="has no floats"):
        examples_of(tmp_path, table, columns=("a", "b:int"))


@pytest.mark.parametrize("damaged", [False, True])
def test_one_pass_over_a_large_row_group_makes_its_shards(tmp_path, damaged):
    """A small row group, a large one, and a small one, in eight shards."""
    path, table = tmp_path / "in" / "a.parquet", some_table(5000)
    path.parent.mkdir()
    options = {"write_page_checksum": True, "data_page_size": 1024}
    with pq.ParquetWriter(path, table.schema, **options) as writer:
        for begin, end in ((0, 300), (300, 4500), (4500, 5000)):
            writer.write_table(table.slice(begin, end - begin), row_group_size=end)
    given = {"plan": ("num_shards", 8)}
    if damaged:
        flip(path, page_offset(path, 1, 0))
        given["on_corrupt"] = "skip"
    job = job_of(path, tmp_path / "alone", **given)
    plan = (prepared := prepared_of(job)).plan
    assert 8 == plan.shards > len(plan.pass_begins) > 0
    first = next(iter(shard_tasks(prepared)))
    commit_shards([job], [make_shard(first._replace(shard=s)) for s in range(8)])
    job = job_of(path, tmp_path / "together", **given)
    tasks = list(shard_tasks(prepared_of(job)))
    assert len(tasks) == len(plan.pass_begins)
    if not damaged:
        # Killed in the middle of a pass; then some of its shards are lost, too.
        made = [shard for task in tasks for shard in make_shards(task)]
        for result in made[1], made[4]:
            (tmp_path / "together" / layout.index_path(result.report.path)).unlink()
        again = [shard for task in tasks for shard in make_shards(task)]
        assert sum(not shard.resumed for shard in again) == 2
    convert(job)
    assert contents(tmp_path / "together") == contents(tmp_path / "alone")
    assert bool(list(tmp_path.glob("together/errors/*"))) == damaged


@pytest.mark.parametrize(
    ("keep", "words"),
    [(7, "7 bytes"), (2000, "2,000 bytes"), (-1, "last bytes")],
)
def test_a_file_that_was_not_written_to_its_end_is_refused(tmp_path, keep, words):
    path = write_parquet(tmp_path / "a.parquet", some_table(500))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptRecordError, match="not written to its end") as caught:
        listed(path)
    assert words in str(caught.value)


def picky(record: bytes) -> bytes:
    if decode_example(record)["number"] == [450]:
        raise ValueError("not this one")
    return record


@pytest.mark.parametrize(
    "plan", [("num_shards", 7), ("shard_bytes", 40_000), ("match_shards", None)]
)
def test_damage_of_files_is_named_or_left_out_and_all_else_kept(tmp_path, plan):
    folder = tmp_path / "in"
    paths = [folder / f"{number}.parquet" for number in range(3)]
    tables = [some_table(rows, seed=rows) for rows in (900, 2300, 400)]
    for path, table in zip(paths, tables, strict=True):
        write_parquet(path, table, row_group_size=500, use_dictionary=False)
    with pytest.raises(UserFunctionError, match=r"0\.parquet, row 450"):
        convert(job_of(folder, tmp_path / "mapped", map=f"{__name__}:picky"))
    flip(paths[1], page_offset(paths[1], 2, 1))
    paths[2].write_bytes(paths[2].read_bytes()[:-1])
    with pytest.raises(CorruptRecordError) as caught:
        convert(job_of(str(paths[1]), tmp_path / "fails", plan=plan))
    assert caught.value.where == f"{paths[1]}, row 1,000"
    convert(job_of(folder, tmp_path / "out", on_corrupt="skip", plan=plan))
    kept = [*examples(tables[0]), *examples(tables[1])]
    del kept[1900:2400]
    assert read_output(tmp_path / "out") == kept
    rows, footer = skipped_in(tmp_path / "out")
    assert rows["reason"] == "row group 2"
    assert (rows["begin_row"], rows["end_row"]) == (1000, 1500)
    assert footer["reason"] == "footer"
    assert footer["end_bytes"] == paths[2].stat().st_size


@pytest.mark.slow
def test_a_damaged_footer_gives_the_same_rows_or_an_error(tmp_path):
    """Of some bytes pyarrow ends in an error that it does not catch itself."""
    table = some_table(50)
    path = write_parquet(tmp_path / "a.parquet", table, row_group_size=30)
    data, schema, good = path.read_bytes(), listed(path).spec.schema, examples(table)
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    ends = collections.Counter()
    for offset in range(begin, len(data), 3):
        path.write_bytes(data)
        flip(path, offset, bit=1)
        try:
            found = listed(path)
            records = read(found, 0, -1)[1]
        except GristmillError as error:
            ends["histogram" if "histogram" in str(error) else "refused"] += 1
            continue
        # Names and types of columns have no checksum.
        assert records == good or found.spec.schema != schema
        ends["read"] += 1
    assert min(ends["read"], ends["refused"]) > 10
    assert ends["histogram"]  # Of pyarrow 19 and later.


@pytest.mark.alone
@pytest.mark.slow
def test_memory_does_not_grow_with_a_row_group(tmp_path):
    """A row group of 256 MiB in 64 MiB more than the modules take."""
    table = pa.table(
        {"n": range(4000), "text": [os.urandom(64 << 10) for _ in range(4000)]}
    )
    path = write_parquet(tmp_path / "a.parquet", table, data_page_size=1 << 20)
    assert pq.read_metadata(path).num_row_groups == 1
    del table
    code = (
        "import os, resource, sys\n"
        "from gristmill.dataset.formats.parquet_file import ParquetFile\n"
        "path = sys.argv[1]\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10\n"
        "file = ParquetFile(path, os.path.getsize(path), None)\n"
        "before = peak()\n"
        "groups = file.places.groups\n"
        "batches = (b for g in groups for b in file.batches(g, ['n', 'text']))\n"
        "rows = sum(b.num_rows for b in batches)\n"
        "print(rows, peak() - before)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, path], capture_output=True, text=True, check=True
    )
    rows, more_mib = map(int, found.stdout.split())
    assert rows == 4000
    assert more_mib < 64


@pytest.mark.parametrize(
    ("options", "columns", "most", "part"),
    [
        ({"row_group_size": 75}, 40, 3, 1),
        ({"row_group_size": 75}, 1, 3, 1),
        ({"data_page_size": 1 << 18}, 1, 9, 1 / 5),
    ],
    ids=["many small row groups", "and of a column", "a column of a large one"],
)
def test_little_is_asked_of_a_bucket(tmp_path, server, options, columns, most, part):
    rows = [os.urandom(1000 if part < 1 else 100) for _ in range(600)]
    table = pa.table({f"c{number}": rows for number in range(40)})
    path = write_parquet(tmp_path / "a", table, use_dictionary=False, **options)
    size = path.stat().st_size
    server.objects.put("in", "a", path.read_bytes())
    with ParquetFile("gs://in/a", size, None) as file:
        names = file.schema.names[:columns]
        found = [b for g in file.places.groups for b in file.batches(g, names)]
    assert [cell.as_py() for batch in found for cell in batch.column(0)] == rows
    assert server.requests["media"] <= most
    assert server.sent_bytes < (size + (1 << 20)) * part


ALL_TYPES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.null()),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary()),
    *(pa.large_binary(), pa.binary_view(), pa.binary(3), pa.date32(), pa.date64()),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp("us", "UTC"), pa.time32("s"), pa.time32("ms"), pa.time64("us")),
    *(pa.time64("ns"), pa.duration("s"), pa.duration("ns"), pa.decimal128(9, 2)),
    *(pa.decimal128(30), pa.decimal256(50), pa.dictionary(pa.int8(), pa.string())),
    pa.dictionary(pa.int32(), pa.int64()),
    *(pa.list_(pa.int8()), pa.large_list(pa.string()), pa.list_(pa.uint32(), 2)),
    pa.map_(pa.string(), pa.uint8()),
    pa.struct([("a", pa.int8()), ("b", pa.list_(pa.struct([("c", pa.date64())])))]),
    *(
        kind()
        for kind in (getattr(pa, "uuid", None), getattr(pa, "json_", None))
        if kind
    ),
]


def opened(path):
    return ParquetFile(str(path), path.stat().st_size, None)


@pytest.mark.parametrize("version", ["1.0", "2.4", "2.6"])
def test_no_type_that_pyarrow_writes_is_another_when_it_is_read(tmp_path, version):
    path = tmp_path / "a.parquet"
    for number, kind in enumerate(ALL_TYPES):
        table = pa.table({"a": pa.nulls(3, kind), "b": pa.nulls(3, pa.list_(kind))})
        pq.write_table(table, path, version=version)
        with opened(path) as file:
            assert file.places.rows == 3, (number, kind)
    values = {
        "a": [decimal.Decimal("1.5"), None],
        "b": [datetime.datetime(2020, 1, 1), None],
        "c": [{"x": [1, 2]}, None],
    }
    options = {"use_deprecated_int96_timestamps": True}
    pq.write_table(pa.table(values), path, version=version, **options)
    opened(path).close()


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        ({"a": pa.float64()}, {"a": pa.int64()}),
        ({"a": pa.list_(pa.int8())}, {"a": pa.int8()}),
        ({"a": pa.struct([("b", pa.int8())])}, {"a": pa.struct([("c", pa.int8())])}),
    ],
)
def test_other_kinds_than_arrow_kept_are_seen(kept, found):
    kept, found = pa.schema(kept), pa.schema(found)
    text = base64.b64encode(kept.serialize().to_pybytes())
    wanted = f"a: {kept.types[0]}", f"a: {found.types[0]}"
    assert difference(found, {b"ARROW:schema": text}) == wanted
    assert difference(found, {b"ARROW:schema": text[:-20]}) is not None
    for schema in (kept, pa.schema([])):  # Another program left columns out.
        assert difference(schema, {b"ARROW:schema": text}) is None


def test_a_damaged_name_in_a_footer_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"column_of_text": ["a"]}), path, write_statistics=False)
    path.write_bytes(path.read_bytes().replace(b"column_of_text", b"column_of_texu"))
    with pytest.raises(CorruptRecordError, match="something else") as caught:
        opened(path)
    assert caught.value.expected == "column_of_text: string"
    assert caught.value.got == "column_of_texu: string"


MIB = 1 << 20
DATA = np.random.default_rng(1).bytes(5 * MIB + 12345)


@pytest.mark.parametrize("place", ["local", "gs"])
def test_any_reads_give_the_bytes_of_the_file(server, tmp_path, place):
    server.objects.put("in", "a", DATA)
    (tmp_path / "a").write_bytes(DATA)
    path = "gs://in/a" if place == "gs" else str(tmp_path / "a")
    chosen = random.Random(2)
    with RandomReader(path, len(DATA), None) as reader:
        reader.set_streams(30)
        for _ in range(60):
            begin = chosen.randrange(len(DATA) + 10)
            size = chosen.choice([0, 1, 1000, 300_000, 3 * MIB])
            assert reader.seek(begin) == begin
            assert reader.read(size) == DATA[begin : begin + size]
            assert reader.tell() == min(begin + size, max(begin, len(DATA)))
        assert reader.seek(-4, os.SEEK_END) == len(DATA) - 4
        assert reader.seek(-1, os.SEEK_CUR) == len(DATA) - 5
        assert (reader.read(), reader.read()) == (DATA[-5:], b"")


def test_a_file_that_ends_too_early_is_an_error(server):
    server.objects.put("in", "a", DATA)
    with RandomReader("gs://in/a", len(DATA) + 5, None) as reader:
        reader.seek(len(DATA) - 5)
        with pytest.raises(StorageError, match="ends before"):
            reader.read()
