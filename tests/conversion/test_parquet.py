"""Parquet: all that it stores, its types, and damage of pages and footers."""

import dataclasses
import os
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.dataset import CorruptRecordError, GristmillError, InputError
from gristmill.dataset.formats.parquet_file import ParquetFile
from tests.conversion.format_files import features_of, listed, put, read_cut, read_rows
from tests.support.conversion import convert, job_of, read_output, skipped_in
from tests.support.examples import parsed
from tests.support.records import flip
from tests.support.told import told

pytestmark = pytest.mark.usefixtures("here")


def some_table(rows):
    """Returns columns of several types, with nulls and lists."""
    chance = random.Random(rows)
    return pa.table(
        {
            "text": [chance.randbytes(chance.randrange(180)) for _ in range(rows)],
            "number": range(rows),
            "score": [chance.choice((None, 0.25, n / 2)) for n in range(rows)],
            "tags": [[b"a", b"b", b"c"][: n % 4] for n in range(rows)],
        }
    )


def write(path, table, **options):
    """Writes a file with checksums of its pages and small pages, by default."""
    defaults = {"write_page_checksum": True, "data_page_size": 1024}
    pq.write_table(table, path, **defaults | options)
    return path


def rows_of(table):
    """Returns the rows as values of features, by pyarrow."""
    return [
        {
            name: value if isinstance(value, list) else [value]
            for name, value in row.items()
            if value is not None
        }
        for row in table.to_pylist()
    ]


def test_a_damaged_page_costs_the_rest_of_its_row_group(tmp_path):
    table = some_table(12_000)
    path = write(tmp_path / "a", table, row_group_size=6000, use_dictionary=False)
    chunk = pq.read_metadata(path).row_group(1).column(0)
    flip(path, chunk.data_page_offset + chunk.total_compressed_size * 9 // 10)
    with told(CorruptRecordError, "row group 1", where=f"{path}, row 10,096"):
        read_cut(listed(path))
    size = path.stat().st_size
    for cuts in ([], [size * at // 9 for at in range(9)]):
        found = read_cut(listed(path), cuts, keep=True)
        assert found.regions == [(10_096, 12_000)]
        assert [*map(parsed, found.records)] == rows_of(table[:10_096])


def test_a_row_that_cannot_become_a_record(tmp_path):
    texts = pa.array([b"a", b"\xff", b"c", b"\xff"]).view(pa.string())
    files = listed(write(tmp_path / "a", pa.table({"t": texts})), record="column:t")
    with told(
        CorruptRecordError, "not UTF-8", where=f"{tmp_path}/a, row group 0, row 1"
    ):
        read_cut(files)
    found = read_cut(files, keep=True)
    assert (found.records, found.regions) == ([b"a", b"c"], [(1, 2), (3, 4)])


NULLABLE = pa.table({"n": [1, None]})
REQUIRED = pa.table({"n": [2]}, pa.schema([pa.field("n", pa.int64(), nullable=False)]))


@pytest.mark.parametrize(
    ("tables", "values"),
    [
        ((REQUIRED, NULLABLE), [[2], [1], None]),
        ((NULLABLE, REQUIRED), [[1], None, [2]]),
    ],
    ids=["required first", "nullable first"],
)
def test_a_column_that_is_nullable_in_one_file_is_so_in_all(tmp_path, tables, values):
    put(tmp_path, dict(zip("ab", tables, strict=True)))
    features = features_of(f"{tmp_path}/*")
    assert features["n"]["optional"]
    assert [row.get("n") for row in read_rows(f"{tmp_path}/*")] == values


@pytest.mark.parametrize(
    ("table", "got"),
    [(NULLABLE, "int64, or null"), (pa.table({"m": [1]}), "no such column")],
)
def test_a_file_with_other_columns_is_refused_by_its_reader(tmp_path, table, got):
    """Of millions of files not all are looked into before."""
    put(tmp_path, {"a": REQUIRED, "b": table})
    first, later = (listed(tmp_path / name) for name in "ab")
    with told(InputError, "column n is not the same", where=f"{tmp_path}/b", got=got):
        read_cut(dataclasses.replace(later, spec=first.spec))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda data: data[:7], "end of 7 bytes"),
        (lambda data: data[:2000], "end of 2,000 bytes"),
        (lambda data: data.replace(b"number", b"numbes"), "numbes: int64"),
        (lambda data: data.replace(b"number", b"n\xffmber"), "footer"),
    ],
    ids=["a few bytes", "no footer", "another name", "no name"],
)
def test_a_damaged_footer_loses_its_file(tmp_path, change, words):
    (tmp_path / "in").mkdir()
    for name in "ab":
        path = write(tmp_path / "in" / name, some_table(500), write_statistics=False)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(CorruptRecordError, match=r"footer|its end"):
        listed(path)
    with pytest.raises(CorruptRecordError, match=words):
        convert(job_of(path.parent, "fails"))
    convert(job_of(path.parent, "out", on_corrupt="skip"))
    assert [*map(parsed, read_output("out"))] == rows_of(some_table(500))
    (region,) = skipped_in("out")
    assert (region["file"], region["reason"]) == (str(path), "footer")
    assert region["end_bytes"] == path.stat().st_size


@pytest.mark.slow
def test_a_flipped_bit_of_a_footer_gives_the_same_rows_or_an_error(tmp_path):
    """Of some bytes pyarrow ends in an error that it does not catch itself."""
    path = write(tmp_path / "a", some_table(50), row_group_size=30)
    data, good, schema = path.read_bytes(), read_rows(path), listed(path).spec.schema
    begin, refused = len(data) - 8 - int.from_bytes(data[-8:-4], "little"), 0
    for offset in range(begin, len(data), 3):
        path.write_bytes(data)
        flip(path, offset)
        try:
            found, records = listed(path).spec.schema, read_rows(path)
        except GristmillError:
            refused += 1
        else:  # Names and types of columns have no checksum.
            assert records == good or found != schema
    assert 10 < refused < (len(data) - begin) // 3 - 10


@pytest.mark.alone
@pytest.mark.slow
def test_memory_does_not_grow_with_a_row_group(tmp_path):
    """A row group of 256 MiB in 64 MiB more than the modules take."""
    table = pa.table(
        {"n": range(4000), "text": [os.urandom(64 << 10) for _ in range(4000)]}
    )
    path = write(tmp_path / "a", table, data_page_size=1 << 20)
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
    path = write(tmp_path / "a", table, use_dictionary=False, **options)
    size = path.stat().st_size
    server.objects.put("in", "a", path.read_bytes())
    with ParquetFile("gs://in/a", size, None) as file:
        names = file.schema.names[:columns]
        found = [b for g in file.places.groups for b in file.batches(g, names)]
    assert pa.Table.from_batches(found)["c0"].to_pylist() == rows
    assert server.requests["media"] <= most
    assert server.sent_bytes < (size + (1 << 20)) * part


_NAMES = (
    "int8 int16 int32 int64 uint8 uint16 uint32 uint64 halffloat float double bool "
    "null string large_string binary large_binary date32 date64 time32[s] time32[ms] "
    "time64[us] time64[ns] duration[s] duration[ns] timestamp[s] timestamp[ms] "
    "timestamp[us] timestamp[ns]"
)
ALL_TYPES = [
    *map(pa.type_for_alias, _NAMES.split()),
    *(pa.string_view(), pa.binary_view(), pa.binary(3), pa.timestamp("us", "UTC")),
    *(pa.decimal128(9, 2), pa.decimal256(50), pa.dictionary(pa.int8(), pa.string())),
    *(pa.list_(pa.int8()), pa.large_list(pa.string()), pa.list_(pa.uint32(), 2)),
    pa.map_(pa.string(), pa.uint8()),
    pa.struct({"a": pa.int8(), "b": pa.list_(pa.struct({"c": pa.date64()}))}),
    *(getattr(pa, name)() for name in ("uuid", "json_") if hasattr(pa, name)),
]


@pytest.mark.parametrize("version", ["1.0", "2.4", "2.6"])
def test_no_type_that_pyarrow_writes_is_another_when_it_is_read(tmp_path, version):
    options = {"version": version, "use_deprecated_int96_timestamps": True}
    for kind in ALL_TYPES:
        table = pa.table({"a": pa.nulls(3, kind), "b": pa.nulls(3, pa.list_(kind))})
        path = write(tmp_path / "a", table, **options)
        with ParquetFile(str(path), path.stat().st_size, None) as file:
            assert file.places.rows == 3, kind
