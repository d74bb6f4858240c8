"""`gristmill remove`: what its file may name, and what it says."""

import gzip
import io
import json
import pathlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import dataset, loader
from gristmill.dataset.metadata.manifest import open_manifest
from tests.commands.conftest import json_of, run
from tests.conversion.tars import tar_of
from tests.support.records import frames_of

ROWS = [{"url": f"http://{n % 20}/", "n": n, "text": "t" * n} for n in range(60)]
RECORDS = [dataset.encode_example(row) for row in ROWS]
FRAMES = frames_of(RECORDS)
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
TABLE = "url,n,text\n" + "".join("{url},{n},{text}\n".format(**row) for row in ROWS)


def parquet():
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(ROWS), out, row_group_size=25)
    return out.getvalue()


SOURCES = {
    "in.tfrecord": lambda: FRAMES,
    "in.tfrecord.gz": lambda: gzip.compress(FRAMES),
    "in.jsonl": lambda: LINES,
    "in.csv.gz": lambda: gzip.compress(TABLE.encode()),
    "in.parquet": parquet,
    "in.tar": lambda: tar_of([(f"{n:04}.text", b"t" * n) for n in range(60)]),
}


def made(folder, name="in.tfrecord", *options):
    """Converts a file of 60 rows to three shards; returns the dataset."""
    (folder / name).write_bytes(SOURCES[name]())
    output = folder / "out"
    run("convert", folder / name, output, "--num-shards=3", "--workers=1", *options)
    return str(output)


def remove(output, lines, *more, code=0):
    listed = pathlib.Path(f"{output}.listed")
    listed.write_text("\n".join(lines) + "\n")
    given = ("remove", output, "--records", listed, *more, "--workers=1")
    return run(*given, code=code).output


def place_of(output, record):
    """Returns what `trace` shows as FILE@PLACE."""
    found = json_of("trace", output, "--records", record)
    place = found["source_record"]
    place = found["source_offset_bytes"] if place is None else place
    return f"{found['source_path']}@{place}"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("group_size", [1, 8])
@pytest.mark.parametrize("name", [*SOURCES, "a dataset"])
def test_places_name_records_of_every_kind_of_source(tmp_path, name, group_size):
    if name == "a dataset":
        between = made(tmp_path)
        output = f"{tmp_path}/again"
        run("convert", between, output, "--num-shards=4", "--workers=1")
    else:
        output = made(tmp_path, name, "--group-size", group_size)
    records = list(loader.open(output))
    gone = [0, 19, 20, 21, 37, 59]
    left = [n for n in range(60) if n not in gone]
    places = {n: place_of(output, n) for n in (*gone, *left[::7])}
    if name == "a dataset":
        assert places[0].startswith(f"{tmp_path}/in.tfrecord@")
    remove(output, [places[n] for n in gone])
    assert list(loader.open(output)) == [records[n] for n in left]
    # Every other record is found as before.
    for number in range(0, 54, 7):
        assert place_of(output, number) == places[left[number]]
    remove(output, [places[left[7]], places[left[14]]])
    del left[14], left[7]
    assert list(loader.open(output)) == [records[n] for n in left]


def test_numbers_are_those_of_the_split(tmp_path):
    output = made(tmp_path)
    text = remove(output, ["5", "", "59", "5"])
    assert list(loader.open(output)) == RECORDS[:5] + RECORDS[6:59]
    for said in (
        "out/train: 2 records removed, 58 left, committed as edition 2",
        "2 shards again; 1 are shared with the edition before",
        "kept      the edition before; --erase deletes it",
    ):
        assert said in text
    text = remove(output, ["59", "5"])
    assert "these records were removed before; 58 left" in text
    remove(output, ["5"], "--edition=1", code=2)
    # Of a later edition they have their places.
    (tmp_path / "more.tfrecord").write_bytes(frames_of(RECORDS[:9]))
    run("append", output, tmp_path / "more.tfrecord", "--workers=1")
    place = place_of(output, 62)
    assert "more.tfrecord" in place
    text = remove(output, [place, "5"], "--erase")
    left = RECORDS[:5] + RECORDS[7:59] + RECORDS[:4] + RECORDS[5:9]
    assert list(loader.open(output)) == left
    # It says what it cannot reach.
    assert "erased     the editions before, with their files" in text
    assert f"NOT erased the inputs: {tmp_path}/in.tfrecord" in text
    assert "snapshots and backups" in text
    assert open_manifest(output).splits["train"].replaced == ()


def test_lines_that_name_nothing_are_listed(tmp_path):
    output = made(tmp_path)
    lines = ["60", f"{tmp_path}/in.tfrecord@1", "nowhere@7", "5"]
    text = remove(output, lines, code=2)
    assert "3 lines name nothing that is in the split" in text
    assert "--allow-missing" in text
    assert len(loader.open(output)) == 60
    text = remove(output, lines, "--allow-missing")
    assert "not found 3 lines:\n            60\n" in text
    assert list(loader.open(output)) == RECORDS[:5] + RECORDS[6:]
    text = remove(output, lines[:3], "--allow-missing", code=2)
    assert "nothing was removed" in text
    for line in ("-1", "a", "file@", "file@x", "@5", "1.5", "9" * 5000):
        assert "a line names no record" in remove(output, ["3", line], code=2)


@pytest.mark.parametrize("name", ["in.tfrecord", "in.jsonl", "in.parquet"])
def test_lines_and_values_of_a_feature_name_records(tmp_path, name):
    output = made(tmp_path, name)
    records = list(loader.open(output))
    values = ["http://7/", "http://19/"]
    remove(output, values, "--column", "url")
    gone = {n for n in range(60) if n % 20 in (7, 19)}
    again = remove(output, values[::-1], "--column", "url")
    assert "these records were removed before" in again
    remove(output, ["0", "58", "5000"], "--column=n", "--allow-missing")
    gone |= {0, 58}
    if name == "in.jsonl":
        remove(output, [f"{tmp_path}/{name}@line:{n + 1}" for n in (2, 57)])
        gone |= {2, 57}
    left = [record for n, record in enumerate(records) if n not in gone]
    assert list(loader.open(output)) == left
