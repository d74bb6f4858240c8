"""One Parquet file: its rows, their places, its schema, and all damage of it."""

import base64
import collections
import datetime
import decimal
import os
import random
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import (
    CorruptRecordError,
    GristmillError,
    InputError,
    StorageError,
)
from gristmill.dataset.formats.parquet_file import ParquetFile, RowPlaces, difference
from gristmill.dataset.formats.random_reader import RandomReader
from tests.conversion.parquet_files import flip, page_offset, some_table, write_parquet
from tests.servers.gcs_server import GcsServer


def opened(path):
    return ParquetFile(str(path), path.stat().st_size, None)


def read_all(path, columns=None):
    with opened(path) as file:
        names = file.schema.names if columns is None else columns
        batches = [
            b for group in file.places.groups for b in file.batches(group, names)
        ]
        schema = pa.schema([file.schema.field(name) for name in names])
        return pa.Table.from_batches(batches, schema)


def test_a_damaged_page_is_named_by_its_rows_after_all_before_it(tmp_path):
    table = some_table(12000)
    path = write_parquet(
        tmp_path / "a.parquet", table, row_group_size=6000, use_dictionary=False
    )
    flip(path, page_offset(path, 1, 0))
    with opened(path) as file:
        groups, columns = file.places.groups, file.schema.names
        assert pa.Table.from_batches(file.batches(groups[0], columns)).equals(
            table[:6000]
        )
        good = []
        with pytest.raises(CorruptRecordError) as caught:
            good.extend(file.batches(groups[1], columns))
    rows = sum(batch.num_rows for batch in good)
    assert rows == 4096
    assert pa.Table.from_batches(good).equals(table[6000 : 6000 + rows])
    error = caught.value
    assert (error.offset, error.end) == (6000 + rows, 12000)
    assert error.where == f"{path}, row {6000 + rows:,}"
    assert "row group 1" in str(error)
    assert "--on-corrupt skip" in error.cure


@pytest.mark.parametrize(
    ("keep", "words"),
    [(0, "0 bytes"), (7, "7 bytes"), (2000, "2,000 bytes"), (-1, "last bytes")],
)
def test_a_file_that_was_not_written_to_its_end_is_refused(tmp_path, keep, words):
    path = write_parquet(tmp_path / "a.parquet", some_table(500))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptRecordError, match="not written to its end") as caught:
        opened(path)
    assert words in str(caught.value)
    assert caught.value.reason == "footer"


@pytest.mark.slow
def test_a_footer_with_other_counts_than_the_file_is_refused(tmp_path):
    """Of each byte of a footer, one bit: the rows are right, or there is an error."""
    table = some_table(200)
    path = write_parquet(tmp_path / "a.parquet", table, row_group_size=60)
    data = path.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    chosen, ends = random.Random(5), collections.Counter()
    for offset in range(begin, len(data), 17):
        path.write_bytes(data)
        flip(path, offset, bit=chosen.randrange(8))
        try:
            found = read_all(path)
        except GristmillError:
            ends["refused"] += 1
        else:
            # Names and types of columns have no checksum.
            if found.schema.remove_metadata() == table.schema:
                assert found.equals(table)
            assert found.num_rows == table.num_rows
            ends["read"] += 1
    assert min(ends.values()) > 10


def test_every_flipped_bit_of_a_page_is_seen_by_its_checksum(tmp_path):
    table = some_table(300)
    path = write_parquet(tmp_path / "a.parquet", table, compression="none")
    data = path.read_bytes()
    chosen, seen = random.Random(7), 0
    for _ in range(100):
        path.write_bytes(data)
        flip(
            path, chosen.randrange(4, page_offset(path, 0, 3)), bit=chosen.randrange(8)
        )
        try:
            assert read_all(path).equals(table)  # Flags in the headers of pages.
        except CorruptRecordError:
            seen += 1
    assert seen > 90


def test_a_footer_at_which_pyarrow_would_end_the_process_is_harmless(tmp_path):
    """Levels of a column, counted in the footer: an error that it does not catch."""
    path = write_parquet(tmp_path / "a.parquet", some_table(50))
    data = path.read_bytes()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    for offset in range(begin, len(data) - 8, 3):
        path.write_bytes(data)
        flip(path, offset, bit=1)
        try:
            read_all(path)
        except GristmillError as error:
            if "histogram" in str(error):
                break  # Of pyarrow 19 and later.


def test_an_encrypted_file_is_refused_with_a_cure(tmp_path):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PARE" + bytes(100) + b"PARE")
    with pytest.raises(InputError, match="encrypted") as caught:
        opened(path)
    assert "without encryption" in caught.value.cure


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


def test_few_requests_read_a_wide_table_from_a_bucket(tmp_path, monkeypatch):
    """Of 40 columns in row groups of 300 KB, each chunk would be a request."""
    rows = [os.urandom(100) for _ in range(600)]
    table = pa.table({f"c{number}": rows for number in range(40)})
    path = write_parquet(tmp_path / "a", table, row_group_size=75, use_dictionary=False)
    with GcsServer("in") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("in", "a", path.read_bytes())
        for columns in (table.schema.names, ["c7"]):
            server.requests.clear()
            with ParquetFile("gs://in/a", path.stat().st_size, None) as file:
                assert len(file.places.groups) == 8
                for group in file.places.groups:
                    for batch in file.batches(group, columns):
                        assert batch.column(0)[0].as_py() in rows
            assert server.requests["media"] <= 3


def test_few_bytes_are_read_for_a_column_of_a_large_row_group(tmp_path, monkeypatch):
    rows = [os.urandom(1000) for _ in range(700)]
    table = pa.table({f"c{number}": rows for number in range(20)})
    path = write_parquet(
        tmp_path / "a", table, use_dictionary=False, data_page_size=1 << 18
    )
    with GcsServer("in") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("in", "a", path.read_bytes())
        with ParquetFile("gs://in/a", path.stat().st_size, None) as file:
            (group,) = file.places.groups
            assert sum(b.num_rows for b in file.batches(group, ["c7"])) == 700
        assert server.sent_bytes < path.stat().st_size / 5


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


def opened_file(path):
    return ParquetFile(str(path), path.stat().st_size, None)


@pytest.mark.parametrize("version", ["1.0", "2.4", "2.6"])
def test_no_type_that_pyarrow_writes_is_another_when_it_is_read(tmp_path, version):
    path = tmp_path / "a.parquet"
    for number, kind in enumerate(ALL_TYPES):
        table = pa.table({"a": pa.nulls(3, kind), "b": pa.nulls(3, pa.list_(kind))})
        pq.write_table(table, path, version=version)
        with opened_file(path) as file:
            assert file.places.rows == 3, (number, kind)
    values = {
        "a": [decimal.Decimal("1.5"), None],
        "b": [datetime.datetime(2020, 1, 1), None],
        "c": [{"x": [1, 2]}, None],
    }
    options = {"use_deprecated_int96_timestamps": True}
    pq.write_table(pa.table(values), path, version=version, **options)
    opened_file(path).close()


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        (pa.schema({"text": pa.string()}), pa.schema({"texu": pa.string()})),
        (pa.schema({"a": pa.float64()}), pa.schema({"a": pa.int64()})),
        (pa.schema({"a": pa.list_(pa.int8())}), pa.schema({"a": pa.int8()})),
        (
            pa.schema({"a": pa.struct([("b", pa.int8())])}),
            pa.schema({"a": pa.struct([("c", pa.int8())])}),
        ),
    ],
)
def test_other_names_and_kinds_are_seen(tmp_path, kept, found):
    text = base64.b64encode(kept.serialize().to_pybytes())
    before, after = difference(found, {b"ARROW:schema": text})
    assert before == f"{kept.names[0]}: {kept.types[0]}"
    assert after == f"{found.names[0]}: {found.types[0]}"
    assert difference(kept, {b"ARROW:schema": text}) is None
    assert difference(pa.schema([]), {b"ARROW:schema": text}) is None
    assert difference(found, None) is None
    assert difference(found, {b"ARROW:schema": text[:-20]}) is not None


def test_a_damaged_name_in_a_footer_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"column_of_text": ["a"]}), path, write_statistics=False)
    data = path.read_bytes()
    assert data.count(b"column_of_text") == 2
    path.write_bytes(data.replace(b"column_of_text", b"column_of_texu"))
    with pytest.raises(CorruptRecordError, match="something else") as caught:
        opened_file(path)
    assert caught.value.expected == "column_of_text: string"
    assert caught.value.got == "column_of_texu: string"


MIB = 1 << 20


@pytest.fixture(scope="module")
def object_data():
    return np.random.default_rng(1).bytes((9 << 20) + 12345)


@pytest.fixture
def object_server(monkeypatch, object_data):
    with GcsServer("in") as object_server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", object_server.url)
        object_server.objects.put("in", "a", object_data)
        yield object_server


@pytest.fixture(params=["local", "gs"])
def any_path(request, tmp_path, object_data):
    if request.param == "gs":
        request.getfixturevalue("object_server")
        return "gs://in/a"
    (tmp_path / "a").write_bytes(object_data)
    return str(tmp_path / "a")


def test_any_reads_give_the_bytes_of_the_file(any_path, object_data):
    chosen = random.Random(2)
    with RandomReader(any_path, len(object_data), None) as reader:
        reader.set_streams(30)
        assert reader.readable()
        assert reader.seekable()
        for _ in range(60):
            begin = chosen.randrange(len(object_data) + 10)
            size = chosen.choice([0, 1, 1000, 300_000, 3 * MIB])
            assert reader.seek(begin) == begin
            assert reader.read(size) == object_data[begin : begin + size]
            assert reader.tell() == min(begin + size, max(begin, len(object_data)))
        assert reader.seek(-4, os.SEEK_END) == len(object_data) - 4
        assert reader.seek(-1, os.SEEK_CUR) == len(object_data) - 5
        assert reader.read() == object_data[-5:]
        assert reader.read() == b""


def test_streams_are_read_ahead_and_kept(object_server, object_data):
    with RandomReader("gs://in/a", len(object_data), None) as reader:
        reader.set_streams(16)
        for begin in range(0, 4 * MIB, 256 << 10):
            for stream in (0, 4 * MIB):
                reader.seek(stream + begin)
                assert reader.read(1000) == object_data[stream + begin :][:1000]
    sizes = [part for operation, _, part in object_server.log if operation == "media"]
    assert len(sizes) == len(set(sizes))  # Nothing is asked for twice.
    assert len(sizes) <= 12  # Of 1 MiB each; two more are under way.


def test_a_file_that_ends_too_early_is_an_error(object_server, object_data):
    with RandomReader("gs://in/a", len(object_data) + 5, None) as reader:
        reader.seek(len(object_data) - 5)
        with pytest.raises(StorageError, match="ends before"):
            reader.read()


groups_of_rows = st.lists(
    st.tuples(st.integers(0, 20), st.integers(0, 300)), max_size=8
)


def brute_force(rows, raw_bytes, size_bytes):
    """Returns the place of each row, one after the other."""
    known = all(size for count, size in zip(rows, raw_bytes, strict=True) if count)
    parts = raw_bytes if known else rows
    total, before, places = max(1, sum(parts)), 0, []
    for count, part in zip(rows, parts, strict=True):
        begin, end = (size_bytes * edge // total for edge in (before, before + part))
        places += [begin + row * (end - begin) // count for row in range(count)]
        before += part
    return places


@given(groups=groups_of_rows, size_bytes=st.integers(0, 2000), data=st.data())
def test_rows_before_an_offset_are_those_with_a_smaller_place(groups, size_bytes, data):
    rows, raw_bytes = [g[0] for g in groups], [g[1] for g in groups]
    places = RowPlaces.of(rows, raw_bytes, size_bytes)
    expected = brute_force(rows, raw_bytes, size_bytes)
    assert expected == sorted(expected)
    assert places.rows == sum(rows)
    for offset in (0, size_bytes, data.draw(st.integers(0, size_bytes))):
        found = places.rows_before(offset)
        # A row group without room has all its rows at its begin.
        assert found == sum(place < offset for place in expected)
