"""Records of datasets, and of input files before a conversion."""

import gzip
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.dataset import encode_example
from tests.commands.conftest import rows_of, run
from tests.servers.gcs_server import GcsServer
from tests.support.datasets import convert
from tests.support.records import flip, frames_of, write_array_records


@pytest.fixture(scope="module")
def sixty(tmp_path_factory):
    """A dataset of the numbers from 0 on, as text."""
    records = [b"%d" % number for number in range(60)]
    parts = [records[:2], [], records[2:40], records[40:]]
    return convert(tmp_path_factory.mktemp("sixty"), parts, group_size=7)


def test_records_of_a_dataset(sixty):
    assert [row["record"] for row in rows_of(f"head {sixty}")] == [0, 1, 2]
    found = rows_of(f"head {sixty} --offset 39 -n 2")
    assert [(row["record"], row["text"]) for row in found] == [(39, "39"), (40, "40")]
    assert [row["record"] for row in rows_of(f"head {sixty} --offset 59")] == [59]


def test_random_records(sixty):
    line = f"head {sixty} --random"
    done = run(f"{line} -n 5 --raw")
    # The seed that was taken shows the same ones again, another one others.
    (seed,) = re.findall(r"note: --random --seed (\d+) shows", done.stderr)
    again = rows_of(f"{line} -n 5 --seed {seed}")
    assert "".join(row["text"] for row in again) == done.stdout
    numbers = [row["record"] for row in again]
    assert numbers == sorted({*numbers})
    assert [str(number) for number in numbers] == [row["text"] for row in again]
    seeds = [rows_of(f"{line} --seed {seed}") for seed in range(9)]
    assert len({row["record"] for rows in seeds for row in rows}) > 9
    assert [row["record"] for row in rows_of(f"{line} -n 99")] == [*range(60)]


def test_head_of_files_shows_records_with_their_places(tmp_path):
    records = [b"record %d" % number for number in range(30)]
    records[1] = encode_example({"text": b"hello", "id": 7})
    # Compressed, empty, and of another split: all of them can be looked at.
    first, other = tmp_path / "c4-test-2.gz", tmp_path / "c4-train-0"
    first.write_bytes(gzip.compress(frames_of(records[20:])))
    other.write_bytes(frames_of(records[:20]))
    (tmp_path / "c4-train-1").touch()
    done = run(f"head {tmp_path}/c4-* -n 2")
    assert f"record 0: 9 bytes, {first}, byte offset 0\n  'record 20'" in done.stdout
    assert done.stderr == f"next: gristmill plan '{tmp_path}/c4-*'\n"
    rows = rows_of(f"head {tmp_path}/c4-* --offset 9 -n 3")
    assert [row.get("text") for row in rows] == ["record 29", "record 0", None]
    assert rows[2]["features"] == {"text": ["hello"], "id": [7]}
    assert [(row["record"], row["file"], row["place"]) for row in rows] == [
        (9, str(first), 9 * 25),
        (10, str(other), 0),
        (11, str(other), 8 + 16),
    ]
    raw = run(f"head {other} --raw --offset 18 -n 9")
    assert raw.stdout_bytes == b"record 18record 19"
    assert len(rows_of(f"head {tmp_path} -n 99")) == 30


def test_head_takes_the_formats_of_a_conversion(tmp_path):
    table, shard = tmp_path / "x.parquet", tmp_path / "x.array_record"
    pq.write_table(pa.table({"t": ["one", "two"]}), table)
    write_array_records(shard, [b"one", b"two"])
    for given, place in (
        (f"{shard}", "record 1"),
        (f"{table} --record=column:t", "row 1"),
    ):
        assert run(f"head {given} --raw").stdout_bytes == b"onetwo"
        done = run(f"head {given} --offset=1")
        path = given.partition(" ")[0]
        assert f"record 1: 3 bytes, {path}, {place}\n  'two'" in done.stdout
    # The options that say how records are made are those of the command that follows.
    assert f"next: gristmill plan {table} --record column:t" in done.stderr


def test_head_reads_what_it_shows_and_stops_at_damage(tmp_path):
    records = [b"%06d" % number * 1000 for number in range(500)]
    path = tmp_path / "x.tfrecord"
    path.write_bytes(frames_of(records))
    flip(path, 400 * 6016 + 100)
    rows = rows_of(f"head {path} --offset 170 -n 230")
    found = [(row["record"], int(row["text"][:6])) for row in rows]
    assert found == [(number, number) for number in range(170, 400)]
    failed = run(f"head {path} --offset=399", code=3)
    assert failed.stdout.startswith("record 399: 6,000 bytes")
    assert "corrupt record of 6,000 bytes in TFRecord file" in failed.stderr
    assert f"byte offset {400 * 6016:,}" in failed.stderr


def test_head_of_a_bucket_fetches_little(monkeypatch):
    frames = frames_of([(b"%04d" % n) * 25_000 for n in range(160)])
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("bucket", "raw/x.tfrecord", frames)
        rows = rows_of("head 'gs://bucket/raw/*' -n 2 --offset 1")
        assert [row["text"][:4] for row in rows] == ["0001", "0002"]
        # What tells the format is a part of it.
        assert server.sent_bytes < 3 << 20 < len(frames)
