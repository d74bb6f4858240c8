"""Ranges of Parquet files: every row once, damage left out, however they are cut."""

import itertools
import json
import random

import google_crc32c
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill.dataset.base.errors import (
    CorruptRecordError,
    InputError,
    StorageChangedError,
)
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.sources.source import SkippedRegions, source_of
from gristmill.transforms.tables.example_rows import encode_rows
from gristmill.transforms.tables.table_features import features_of
from tests.support.gcs_server import GcsServer
from tests.support.parquet_files import flip, page_offset, some_table, write_parquet


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
