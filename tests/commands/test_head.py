"""Records of datasets, and of input files before a conversion."""

import gzip
import re
import shlex

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.dataset import encode_example
from tests.commands.conftest import rows_of, run
from tests.conversion.tars import tar_of
from tests.servers.gcs_server import GcsServer
from tests.support.datasets import convert
from tests.support.records import frames_of, write_array_records


@pytest.fixture(scope="module")
def sixty(tmp_path_factory):
    """A dataset of the numbers from 0 on, as text."""
    records = [b"%d" % number for number in range(60)]
    parts = [records[:2], [], records[2:40], records[40:]]
    return convert(tmp_path_factory.mktemp("sixty"), parts, group_size=7)


def test_records_of_a_dataset(sixty):
    assert [row["record"] for row in rows_of("head", sixty)] == [0, 1, 2]
    found = rows_of("head", sixty, "--offset", 39, "-n", 2)
    assert [(row["record"], row["text"]) for row in found] == [(39, "39"), (40, "40")]
    assert [row["record"] for row in rows_of("head", sixty, "--offset", 59)] == [59]


def test_random_records(sixty):
    done = run("head", sixty, "--random", "-n", 5, "--raw")
    # The seed that was taken shows the same ones again, another one others.
    (seed,) = re.findall(r"note: --random --seed (\d+) shows", done.stderr)
    again = rows_of("head", sixty, "--random", "-n", 5, "--seed", seed)
    assert "".join(row["text"] for row in again) == done.stdout
    numbers = [row["record"] for row in again]
    assert numbers == sorted({*numbers})
    assert [str(number) for number in numbers] == [row["text"] for row in again]
    seeds = [rows_of("head", sixty, "--random", "--seed", seed) for seed in range(9)]
    assert len({row["record"] for rows in seeds for row in rows}) > 9
    every = rows_of("head", sixty, "--random", "-n", 99)
    assert [row["record"] for row in every] == list(range(60))


def test_head_of_files_shows_records_with_their_places(tmp_path):
    records = [b"record %d" % number for number in range(30)]
    records[1] = encode_example({"text": b"hello", "id": 7})
    # Compressed, empty, and of another split: all of them can be looked at.
    for name, data in {
        "c4-train-0": frames_of(records[:20]),
        "c4-train-1": b"",
        "c4-test-2.gz": gzip.compress(frames_of(records[20:])),
    }.items():
        (tmp_path / name).write_bytes(data)
    pattern = f"{tmp_path}/c4-*"
    done = run("head", pattern, "-n", 2)
    first, other = f"{tmp_path}/c4-test-2.gz", f"{tmp_path}/c4-train-0"
    assert f"record 0: 9 bytes, {first}, byte offset 0\n  'record 20'" in done.stdout
    assert shlex.split(done.stderr) == ["next:", "gristmill", "plan", pattern]
    rows = rows_of("head", pattern, "--offset", 9, "-n", 3)
    assert [row.get("text") for row in rows] == ["record 29", "record 0", None]
    assert rows[2]["features"] == {"text": ["hello"], "id": [7]}
    assert [(row["record"], row["file"], row["place"]) for row in rows] == [
        (9, first, 9 * 25),
        (10, other, 0),
        (11, other, 8 + 16),
    ]
    raw = run("head", tmp_path / "c4-train-0", "--raw", "--offset", 18, "-n", 9)
    assert raw.stdout_bytes == b"record 18record 19"
    assert len(rows_of("head", tmp_path, "-n", 99)) == 30


@pytest.mark.parametrize(
    ("name", "content", "options", "place"),
    [
        ("x.jsonl", '{"t": "one"}\n{"t": "two"}\n', "--record=column:t", "offset 13"),
        ("x.csv", "t\none\ntwo\n", "--record=column:t --input-format=csv", "offset 6"),
        ("x.txt", "one\ntwo\n", "--input-format=text", "offset 4"),
        ("x.parquet", None, "--record=column:t", "row 1"),
        ("x.tar", None, "--record=column:txt", "offset 1,024"),
        ("x.array_record", None, "", "record 1"),
    ],
)
def test_head_takes_the_formats_of_a_conversion(
    tmp_path, name, content, options, place
):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    elif name == "x.parquet":
        pq.write_table(pa.table({"t": ["one", "two"]}), path)
    elif name == "x.tar":
        path.write_bytes(tar_of([("a.txt", b"one"), ("b.txt", b"two")]))
    else:
        write_array_records(path, [b"one", b"two"])
    given = options.split()
    assert run("head", path, *given, "--raw").stdout_bytes == b"onetwo"
    done = run("head", path, *given, "--offset=1")
    assert re.search(rf"record 1: 3 bytes, {path}, (byte )?{place}\b", done.stdout)
    assert "'two'" in done.stdout
    # The options that say how records are made are those of the command that follows.
    line = done.stderr.removeprefix("next: gristmill ")
    assert shlex.split(line)[:2] == ["plan", str(path)]
    assert len(shlex.split(line)) == 2 + 2 * len(given)


def test_head_reads_what_it_shows_and_stops_at_damage(tmp_path):
    records = [b"%06d" % number * 1000 for number in range(500)]
    data = bytearray(frames_of(records))
    for at in (400, 499):
        data[at * 6016 + 100] ^= 1
    (tmp_path / "x.tfrecord").write_bytes(data)
    rows = rows_of("head", tmp_path / "x.tfrecord", "--offset", 170, "-n", 230)
    found = [(row["record"], int(row["text"][:6])) for row in rows]
    assert found == [(number, number) for number in range(170, 400)]
    failed = run("head", tmp_path / "x.tfrecord", "--offset=399", code=3)
    assert failed.stdout.startswith("record 399: 6,000 bytes")
    assert "corrupt record of 6,000 bytes in TFRecord file" in failed.stderr
    assert f"byte offset {400 * 6016:,}" in failed.stderr


def test_head_of_a_bucket_fetches_little(monkeypatch):
    frames = frames_of([(b"%04d" % n) * 25_000 for n in range(160)])
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("bucket", "raw/x.tfrecord", frames)
        rows = rows_of("head", "gs://bucket/raw/*", "-n", 2, "--offset", 1)
        assert [row["text"][:4] for row in rows] == ["0001", "0002"]
        # What tells the format is a part of it.
        assert server.sent_bytes < 3 << 20 < len(frames)
