import collections
import os
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.dataset.base.errors import (
    CorruptRecordError,
    GristmillError,
    InputError,
)
from gristmill.dataset.formats.parquet_file import ParquetFile
from tests.support.gcs_server import GcsServer
from tests.support.parquet_files import flip, page_offset, some_table, write_parquet


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
