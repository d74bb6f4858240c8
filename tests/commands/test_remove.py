"""`gristmill remove`: what its file may name, and what it says."""

import gzip
import io
import json
import os
import pathlib
import re
import subprocess

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill import dataset, loader
from gristmill.dataset import open_manifest
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
    "in.tfrecord": FRAMES,
    "in.tfrecord.gz": gzip.compress(FRAMES),
    "in.jsonl": LINES,
    "in.csv.gz": gzip.compress(TABLE.encode()),
    "in.parquet": parquet(),
    "in.tar": tar_of([(f"{n:04}.text", b"t" * n) for n in range(60)]),
}


@pytest.fixture(autouse=True)
def _in_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def out():
    """Returns the dataset by the path that no other test has."""
    return os.path.abspath("out")


def convert(name="in.tfrecord", options=""):
    """Converts a file of 60 rows to three shards of a dataset."""
    pathlib.Path(name).write_bytes(SOURCES[name])
    run(f"convert {name} {out()} --num-shards=3 --workers=1 {options}")


def records_of():
    return list(loader.open(out()))


def remove(lines, options="", code=0):
    """Removes the records that lines name; returns what is said."""
    pathlib.Path("listed").write_text("".join(f"{line}\n" for line in lines))
    line = f"remove {out()} --records listed --workers=1 {options}"
    return run(line, code=code).output


def place_of(record):
    """Returns what `trace` shows as FILE@PLACE."""
    found = json_of(f"trace {out()} --records {record}")
    place = found["source_record"]
    place = found["source_offset_bytes"] if place is None else place
    return f"{found['source_path']}@{place}"


@pytest.mark.one_in(3)
@pytest.mark.parametrize("group_size", [1, 8])
@pytest.mark.parametrize("name", [*SOURCES, "a dataset"])
def test_places_name_records_of_every_kind_of_source(tmp_path, name, group_size):
    if name == "a dataset":
        convert()
        pathlib.Path("out").rename("between")
        run(f"convert {tmp_path}/between {out()} --num-shards=4 --workers=1")
        name = "in.tfrecord"
    else:
        convert(name, f"--group-size={group_size}")
    records, gone = records_of(), [0, 19, 20, 21, 37, 59]
    left = [n for n in range(60) if n not in gone]
    places = {n: place_of(n) for n in (*gone, *left[::7])}
    assert places[0].startswith(f"{name}@")
    remove(places[n] for n in gone)
    assert records_of() == [records[n] for n in left]
    # Every other record is found as before.
    for number in range(0, 54, 7):
        assert place_of(number) == places[left[number]]
    remove([places[left[7]], places[left[14]]])
    del left[14], left[7]
    assert records_of() == [records[n] for n in left]


def test_numbers_are_those_of_the_split(tmp_path):
    convert()
    text = remove(["5", "", "59", "5"])
    assert records_of() == RECORDS[:5] + RECORDS[6:59]
    for said in (
        "out/train: 2 records removed, 58 left, committed as edition 2",
        "2 shards again; 1 are shared with the edition before",
        "kept      the edition before; --erase deletes it",
    ):
        assert said in text
    assert "these records were removed before; 58 left" in remove(["59", "5"])
    remove(["5"], "--edition=1", code=2)
    # Of a later edition they have their places.
    (tmp_path / "more.tfrecord").write_bytes(frames_of(RECORDS[:9]))
    run(f"append {out()} more.tfrecord --workers=1")
    place = place_of(62)
    assert place.startswith("more.tfrecord@")
    text = remove([place, "5"], "--erase")
    left = RECORDS[:5] + RECORDS[7:59] + RECORDS[:4] + RECORDS[5:9]
    assert records_of() == left
    # It says what it cannot reach.
    assert "erased     the editions before, with their files" in text
    assert "NOT erased the inputs: in.tfrecord" in text
    assert "snapshots and backups" in text
    assert open_manifest(out()).splits["train"].replaced == ()


def test_lines_that_name_nothing_are_listed():
    convert()
    lines = ["60", "in.tfrecord@1", "nowhere@7", "5"]
    text = remove(lines, code=2)
    assert "3 lines name nothing that is in the split" in text
    assert "--allow-missing" in text
    assert records_of() == RECORDS
    text = remove(lines, "--allow-missing")
    assert "not found 3 lines:\n            60\n" in text
    assert records_of() == RECORDS[:5] + RECORDS[6:]
    text = remove(lines[:3], "--allow-missing", code=2)
    assert "nothing was removed" in text
    for line in ("-1", "a", "file@", "file@x", "@5", "1.5", "9" * 5000):
        assert "a line names no record" in remove(["3", line], code=2)


@pytest.mark.parametrize("name", ["in.tfrecord", "in.jsonl", "in.parquet"])
def test_lines_and_values_of_a_feature_name_records(name):
    convert(name)
    records = records_of()
    values = ["http://7/", "http://19/"]
    remove(values, "--column=url")
    gone = {n for n in range(60) if n % 20 in (7, 19)}
    again = remove(values[::-1], "--column=url")
    assert "these records were removed before" in again
    remove(["0", "58", "5000", "none"], "--column=n --allow-missing")
    gone |= {0, 58}
    if name == "in.jsonl":
        remove(f"{name}@line:{n + 1}" for n in (2, 57))
        gone |= {2, 57}
    assert records_of() == [one for n, one in enumerate(records) if n not in gone]


@pytest.mark.parametrize("change", ["touched", "longer", "gone"])
def test_a_line_of_a_file_that_changed_names_its_byte_offset(change):
    convert("in.jsonl")
    place = place_of(2)
    path = pathlib.Path("in.jsonl")
    if change == "gone":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes() + b"\n" * (change == "longer"))
    line = "in.jsonl@line:3"
    for text in (
        remove([line, "5"], "--allow-missing", code=2),
        run(f"trace {out()} --document {line}", code=2).output,
    ):
        assert "a line can be found only in the file that the conversion read" in text
        assert "in.jsonl@OFFSET" in text
        back = re.search("if its bytes are the same, .*: (touch .*)", text)
        assert (back is not None) == (change == "touched")
    if back is not None:
        subprocess.run(back[1], shell=True, check=True, timeout=60)
    remove([place if back is None else line])
    assert len(records_of()) == 59
