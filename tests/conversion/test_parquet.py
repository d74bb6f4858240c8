"""Parquet through conversions and by ranges, compared with pyarrow and TensorFlow."""

from __future__ import annotations

import itertools
import json
import math
import pathlib
import random
import tempfile

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset.base.errors import (
    CorruptRecordError,
    InputError,
    StorageChangedError,
)
from gristmill.dataset.base.example import decode_example
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.features import parse_features
from gristmill.loader.provenance.trace import locate
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.make_shards import (
    make_shard,
    make_shards,
    shard_tasks,
)
from gristmill.transforms.jobs.conversion_job import ConversionJob, PreparedJob
from gristmill.transforms.planning.shard_plan import (
    PlanOptions,
    SourceRange,
    plan_by_bytes,
)
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.parquet_source import joined_shards
from gristmill.transforms.sources.source import SkippedRegions, first_records, source_of
from gristmill.transforms.tables.example_rows import encode_rows
from gristmill.transforms.tables.table_features import features_of
from tests.conversion.parquet_files import flip, page_offset, some_table, write_parquet
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import contents, convert, job_of, prepared_of, read_output
from tests.support.examples import Example

VALUES = {
    "ints": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.uint8(), st.integers(0, 255)),
    "floats": (pa.float32(), st.floats(width=32)),
    "texts": (pa.string(), st.text(max_size=8)),
    "bytes": (pa.binary(), st.binary(max_size=8)),
    "flags": (pa.bool_(), st.booleans()),
    "lists": (pa.list_(pa.int32()), st.lists(st.integers(-9, 9), max_size=3)),
    "words": (
        pa.dictionary(pa.int32(), pa.string()),
        st.sampled_from(["a", "bb", "ccc"]),
    ),
}


@st.composite
def tables(draw):
    columns = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4))
    rows = draw(st.integers(0, 30))
    arrays = {}
    for number, name in enumerate(columns):
        kind, values = VALUES[name]
        cells = draw(
            st.lists(st.none() | values, min_size=rows, max_size=rows).map(
                lambda found, kind=kind: pa.array(found, kind)
            )
        )
        arrays[f"{name} {number}"] = cells
    return pa.table(arrays)


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    table=tables(),
    group=st.integers(1, 12),
    shards=st.integers(1, 5),
    compression=st.sampled_from(["none", "snappy", "gzip", "zstd", "brotli", "lz4"]),
    version=st.sampled_from(["1.0", "2.0"]),
)
def test_any_table_in_any_cut(table, group, shards, compression, version):
    """What TensorFlow parses is what pyarrow's own reader has."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path = write_parquet(
            folder / "a.parquet",
            table,
            row_group_size=group,
            compression=compression,
            data_page_version=version,
        )
        convert(job_of(path, folder / "out", plan=("num_shards", shards)))
        rows = pq.read_table(path).to_pylist()
        for record, row in zip(read_output(folder / "out"), rows, strict=True):
            feature = Example.FromString(record).features.feature
            assert set(feature) == {k for k, value in row.items() if value is not None}
            for name, value in feature.items():
                found = list(getattr(value, value.WhichOneof("kind")).value)
                cell = row[name] if isinstance(row[name], list) else [row[name]]
                wanted = [c.encode() if isinstance(c, str) else c for c in cell]
                np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("damage", [False, True])
def test_a_row_of_a_batch_is_traced_to_its_row_in_the_file(tmp_path, damage):
    values = [str(n).encode() if n % 9 else b"\xff" for n in range(900)]
    values = [value for value in values if damage or value != b"\xff"]
    table = pa.table({"text": pa.array(values, pa.binary()).view(pa.string())})
    path = write_parquet(
        tmp_path / "a.parquet", table, row_group_size=150, use_dictionary=False
    )
    if damage:
        flip(path, page_offset(path, 2, 0))
    options = {
        "plan": ("num_shards", 3),
        "on_corrupt": "skip",
        "records": RecordOptions(record="column:text"),
        "max_corrupt": 200,
    }
    convert(job_of(path, tmp_path / "out", **options))
    dataset = loader.open(tmp_path / "out")
    batches = loader.global_batches(dataset, batch_size=7, shuffle="none")
    assert len(dataset) == (800 - 134 if damage else 800)
    for step in range(0, len(dataset) // 7, 3):
        location = locate(batches, step, 2)
        assert (location.source_path, location.source_format) == (str(path), "parquet")
        (record,) = batches.read(step, slice(2, 3))
        assert values[location.source_record] == record


def rows_of(skipped):
    return [(line["begin_row"], line["end_row"]) for line in skipped.found]


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


@pytest.fixture(scope="module")
def five_groups(tmp_path_factory):
    table = some_table(4500)
    path = tmp_path_factory.mktemp("range") / "a.parquet"
    options = {"row_group_size": 1000, "use_dictionary": False}
    return write_parquet(path, table, **options), table


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_cuts_give_every_row_once_and_spans_meet(five_groups, data):
    path, table = five_groups
    files, size = listed(path), path.stat().st_size
    cuts = data.draw(st.lists(st.integers(0, size), max_size=6))
    edges = sorted([0, size, *cuts])
    records, reached = [], 0
    for begin, end in itertools.pairwise(edges):
        places, found, span = read(files, begin, end)
        assert span.start_bytes == reached
        assert places == list(range(span.start_bytes, span.stop_bytes))
        assert span.whole == (span.stop_bytes == 4500)
        reached = span.stop_bytes
        records += found
    assert records == examples(table)


@pytest.fixture(scope="module")
def damaged_file(five_groups, tmp_path_factory):
    path = tmp_path_factory.mktemp("damaged") / "a.parquet"
    path.write_bytes(five_groups[0].read_bytes())
    for group in (2, 4):
        flip(path, page_offset(path, group, 0))
    every = examples(five_groups[1])
    return path, every[:2000] + every[3000:4000]


class TestDamage:
    @pytest.mark.slow
    @settings(max_examples=25, deadline=None)
    @given(data=st.data())
    def test_any_cuts_leave_out_the_same_rows_once(self, damaged_file, data):
        path, good = damaged_file
        files, size = listed(path), path.stat().st_size
        cuts = data.draw(st.lists(st.integers(0, size), max_size=6))
        kept, reached, records = SkippedRegions(), 0, []
        for begin, end in itertools.pairwise(sorted([0, size, *cuts])):
            _, found, span = read(files, begin, end, skipped=kept)
            assert span.start_bytes == reached
            reached = span.stop_bytes
            records += found
        assert (reached, span.whole) == (4500, True)
        assert rows_of(kept) == [(2000, 3000), (4000, 4500)]
        assert records == good

    def test_a_row_that_cannot_become_a_record(self, tmp_path):
        texts = pa.array([b"a", b"\xff", b"c", b"\xff"]).view(pa.string())
        table = pa.table({"text": texts, "n": [1, 2, 3, 4]})
        path = write_parquet(tmp_path / "a.parquet", table)
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


@pytest.fixture(scope="module")
def table():
    return pa.table({"data": [random.Random(n).randbytes(1000) for n in range(900)]})


@pytest.fixture
def bucket(tmp_path, monkeypatch, table):
    with GcsServer("in") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        path = write_parquet(tmp_path / "a", table, row_group_size=300)
        server.objects.put("in", "a", path.read_bytes())
        yield server


def test_an_object_that_is_replaced_meanwhile_is_no_damage(bucket):
    """The error of the storage passes through pyarrow."""
    files, kept = listed("gs://in/a"), SkippedRegions()
    bucket.fail("replace", "media", skip=1)
    with pytest.raises(StorageChangedError):
        read(files, 0, -1, skipped=kept)
    assert not kept.found


def test_what_was_damaged_on_its_way_is_read_once_more(bucket, table):
    files, kept = listed("gs://in/a"), SkippedRegions()
    for skip in (0, 1):  # The footer, and pages.
        bucket.faults.clear()
        bucket.fail("flip", "media", skip=skip)
        places, records, _ = read(files, 0, -1, skipped=kept)
        assert places == list(range(900))
        assert records == examples(table)
        assert not any(fault.times for fault in bucket.faults)
    assert not kept.found


def spec_found(folder, *tables, **options):
    for number, table in enumerate(tables):
        write_parquet(folder / f"{number}.parquet", table)
    return find_inputs([str(folder)], options=RecordOptions(**options)).spec


def features(spec):
    return parse_features(source_of(spec).features())


def test_a_column_without_values_in_one_file_has_the_type_of_the_others(tmp_path):
    empty = pa.table({"a": [1], "b": pa.nulls(1)})
    full = pa.table({"a": [1], "b": ["x"]})
    for name, tables in (("first", (empty, full)), ("last", (full, empty))):
        spec = spec_found(tmp_path / name, *tables)
        assert features(spec)["b"].kind == "bytes"
        assert features(spec)["b"].optional


def test_a_file_without_values_has_any_columns(tmp_path):
    """As pandas writes a table without rows."""
    empty = pa.table({"a": pa.nulls(0), "b": pa.nulls(0)})
    full = pa.table({"a": [1], "b": ["x"]})
    assert list(features(spec_found(tmp_path / "a", empty, full))) == ["a", "b"]
    with pytest.raises(InputError, match="no column of the input files"):
        spec_found(tmp_path / "b", empty)


def test_values_that_may_be_missing_in_one_file_may_be_missing(tmp_path):
    always = pa.schema([pa.field("a", pa.int64(), nullable=False)])
    tables = [pa.table({"a": [1]}, schema=always), pa.table({"a": [1]})]
    for name, order in (("first", tables), ("last", tables[::-1])):
        assert features(spec_found(tmp_path / name, *order))["a"].optional


BIG = 16_777_217  # The least whole number that a float32 does not hold.


def examples_of(folder, *tables, **options):
    for number, table in enumerate(tables):
        write_parquet(folder / f"{number}.parquet", table)
    files = find_inputs([str(folder)], options=RecordOptions(**options))
    return [decode_example(spec_found.record) for spec_found in first_records(files)]


def test_whole_numbers_of_doubles_stay_whole(tmp_path):
    # As pandas writes integers with gaps; and lists, and fields.
    ids = pa.array([BIG, None, 2.0], pa.float64())
    table = pa.table(
        {
            "id": ids,
            "l": pa.array([[BIG + 2.0], [], [1.0]]),
            "d": pa.array([{"x": -BIG * 1.0}, None, {"x": 0.0}]),
            "f": pa.array([0.5, 3.0, 1e30]),
        }
    )
    spec_found = examples_of(tmp_path, table, table.slice(1))
    assert spec_found[0] == {"id": [BIG], "l": [BIG + 2], "d.x": [-BIG], "f": [0.5]}
    assert spec_found[3] == {"l": [], "f": [3.0]}
    specs = features(find_inputs([str(tmp_path)]).spec)
    assert {name: spec.dtype for name, spec in specs.items()} == {
        "id": "int64",
        "l": "int64",
        "d.x": "int64",
        "f": "float32",
    }


@pytest.mark.parametrize("other", [2.5, math.nan, math.inf, 1e19])
def test_whole_numbers_of_doubles_beside_others(tmp_path, other):
    table = pa.table({"a": [BIG * 1.0, other], "b": ["x", "y"]})
    with pytest.raises(InputError, match="'a' has whole numbers") as error:
        examples_of(tmp_path, table)
    assert "--columns '*,a:float'" in error.value.cure
    spec_found = examples_of(tmp_path, table, columns=("*", "a:float"))
    assert (spec_found[0]["a"], spec_found[1]["b"]) == ([BIG - 1.0], [b"y"])
    with pytest.raises(CorruptRecordError, match="is not an integer") as error:
        examples_of(tmp_path, table, columns=("a:int",))
    assert error.value.where.endswith("0.parquet, row group 0, row 1")
    with pytest.raises(InputError, match="has no floats"):
        examples_of(tmp_path, table, columns=("a", "b:int"))


SHARDS = 8


@pytest.fixture
def source(tmp_path: pathlib.Path) -> pathlib.Path:
    """A file of a small row group, a large one, and a small one."""
    path = tmp_path / "in" / "a.parquet"
    path.parent.mkdir()
    table = some_table(5000)
    options = {"write_page_checksum": True, "data_page_size": 1024}
    with pq.ParquetWriter(path, table.schema, **options) as writer:
        for begin, end in ((0, 300), (300, 4500), (4500, 5000)):
            writer.write_table(table.slice(begin, end - begin), row_group_size=end)
    return path


def one_by_one(job: ConversionJob) -> PreparedJob:
    """Converts without any pass over more than a shard."""
    prepared = prepared_of(job)
    (first,) = {task._replace(shard=0) for task in shard_tasks(prepared)}
    shards = range(prepared.plan.shards)
    results = [make_shard(first._replace(shard=shard)) for shard in shards]
    commit_shards([job], results)
    return prepared


@pytest.mark.parametrize("damaged", [False, True])
def test_the_same_bytes_as_one_by_one(source, tmp_path, damaged):
    options, plan = {}, ("num_shards", SHARDS)
    if damaged:
        flip(source, page_offset(source, 1, 0))
        options = {"on_corrupt": "skip"}
    alone = one_by_one(job_of(source, tmp_path / "alone", plan=plan, **options))
    assert alone.plan.shards > len(alone.plan.pass_begins) > 0
    job = job_of(source, tmp_path / "together", plan=plan, **options)
    prepared = prepared_of(job)
    tasks = list(shard_tasks(prepared))
    assert len(tasks) == len(alone.plan.pass_begins) <= 3
    if not damaged:
        # Killed in the middle of a pass; then some of its shards are lost, too.
        made = [shard for task in tasks for shard in make_shards(task)]
        for result in made[1], made[4]:
            path = layout.index_path(result.report.path)
            (tmp_path / "together" / path).unlink()
        again = [shard for task in tasks for shard in make_shards(task)]
        assert sum(not shard.resumed for shard in again) == 2
    convert(job)
    assert contents(tmp_path / "together") == contents(tmp_path / "alone")
    assert bool(list(tmp_path.glob("together/errors/*"))) == damaged


def test_only_cuts_within_a_large_row_group_join_shards(source):
    files = find_inputs([str(source)])
    for shards, joined in ((2, [0]), (20, [14, 15, 16, 17, 18])):
        options = PlanOptions(kind="num_shards", value=shards)
        plan = plan_by_bytes(options, files.sizes, files.splittable)
        assert joined_shards(files, plan).sum() in joined
