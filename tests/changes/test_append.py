"""Records that are appended: which are accepted, and what is told."""

import json
import pathlib

import pytest

from gristmill import loader
from gristmill.dataset import InputError, open_manifest
from gristmill.dataset.metadata import layout
from tests.changes import changes
from tests.changes.changes import (
    append,
    convert,
    found_by_verify,
    records_of,
    run,
    split_of,
)
from tests.support.editions import files_of
from tests.support.records import flip, frames_of, text_records
from tests.support.told import told

OLD, NEW = text_records(60), text_records(25, seed=1)
MORE = text_records(13, seed=2)


@pytest.fixture(autouse=True)
def inputs(tmp_path, monkeypatch):
    """The current folder, with one for each edition: `old`, `new` and `more`."""
    monkeypatch.chdir(tmp_path)
    for name, records in (("old", OLD), ("new", NEW), ("more", MORE)):
        (tmp_path / name).mkdir()
        half = len(records) // 2
        for number, part in enumerate((records[:half], records[half:])):
            (tmp_path / name / f"{number}.tfrecord").write_bytes(frames_of(part))
    return tmp_path


@pytest.fixture
def two():
    """A dataset of the old records, and the new ones."""
    convert("out", "old/*")
    append("out", "new/*")
    return "out"


def assert_whole(output, *editions):
    """The dataset has these editions, and nothing is beside it."""
    split = changes.assert_whole(output, [r for records in editions for r in records])
    assert [part.records for part in split.parts] == list(map(len, editions))
    return split


def test_by_command(inputs):
    run("convert old out --num-shards=2 --name=d")
    said = run("append out new --num-shards=2")
    assert "d/train, edition 2: 25 records in 2 shards, committed" in said
    assert "committed already" in run("append out new --num-shards=2")
    (inputs / "damaged.tfrecord").write_bytes(frames_of(MORE))
    flip("damaged.tfrecord", 20)
    run("append out damaged.tfrecord", code=3)
    assert found_by_verify("out")[0] == []
    said = run("append out damaged.tfrecord --on-corrupt=skip")
    assert "LEFT OUT 1 damaged region" in said
    split = assert_whole("out", OLD, NEW, MORE[1:])
    assert split.skipped_regions == split.editions[2].skipped_regions == 1
    said = run("append out more --map=binascii:hexlify")
    assert "with --map binascii:hexlify, the one before without" in said
    assert records_of("out")[-1] == MORE[-1].hex().encode()


@pytest.mark.slow
def test_on_beam():
    for place in ("here", "beam"):
        run(f"convert old {place} --num-shards=2 --name=d")
    run("append here new --num-shards=2")
    for _ in range(2):
        run("append beam new --num-shards=2 --runner=FnApiRunner")
    assert files_of("beam") == files_of("here")


def test_another_split_has_editions_of_its_own(two):
    run(f"convert more {two} --name=d --split=val")
    run(f"append {two} new --split=val")
    assert_whole(two, OLD, NEW)
    assert records_of(two, split="val") == MORE + NEW
    for split in open_manifest(two).splits.values():
        assert split.numbers == (1, 2)
    assert "train, val" in run(f"append {two} more", code=2)


@pytest.mark.slow
def test_features_of_other_types_are_refused_before_anything_is_written(inputs):
    (inputs / "a.jsonl").write_text('{"id": 1, "meta": {"score": 0.5}}\n')
    (inputs / "b.jsonl").write_text('{"id": 2, "meta": {"score": 3}}\n')
    run("convert a.jsonl out")
    before = files_of("out")
    said = run("append out b.jsonl", code=2)
    assert "other types than the split" in said
    assert "meta.score" in said
    assert files_of("out") == before
    # As the message says; also of a field of an object.
    run("append out b.jsonl '--columns=*,meta.score:float'")
    assert split_of("out").features["meta.score"]["kind"] == "float"


# What is appended, to how many shards, and what is said of it.
REFUSED = """\
more/* new/1.tfrecord | 2 | 1 of 3 files are those of edition 2
more/* new/1.tfrecord | 2 | /new/1.tfrecord
old/0.tfrecord        | 2 | already
new/*                 | 3 | converted differently: the plan was 2 shards, is 3
"""


@pytest.mark.parametrize("line", REFUSED.splitlines())
def test_what_is_there_already_is_refused(two, line):
    before = files_of(two)
    given, shards, says = map(str.strip, line.split("|"))
    with told(InputError, says):
        append(two, given.split(), shards=int(shards))
    assert files_of(two) == before


def test_an_appended_file_that_changed_is_named(inputs, two):
    before = files_of(two)
    (inputs / "new" / "0.tfrecord").write_bytes(frames_of(MORE))
    with pytest.raises(InputError, match=r"1 input file changed: new/0\.tfrecord"):
        append(two, "new/*")
    assert files_of(two) == before


def test_where_there_is_nothing_to_append_to(inputs, two):
    assert "no such split" in run(f"append {two} more --split=val", code=2)
    assert "not a committed dataset" in run("append none new", code=3)
    assert not (inputs / "none").exists()
    assert "is the input" in run(f"append {two} {two}", code=2)


def test_a_split_that_metadata_of_tfds_describes(inputs):
    convert("out", "old/*")
    info = {"name": "d", "fileFormat": "array_record", "splits": [{"name": "train"}]}
    path = inputs / "out" / "dataset_info.json"
    path.write_text(json.dumps(info))
    said = run("append out new", code=2)
    assert "TFDS would read the first alone" in said
    assert_whole("out", OLD)
    path.write_text(json.dumps(info | {"splits": [{"name": "val"}]}))
    run("append out new")
    assert_whole("out", OLD, NEW)


@pytest.mark.parametrize("edition", [1, 2])
def test_lost_shards_are_made_again_and_all_editions_stay(two, edition):
    append(two, "more/*")
    before = files_of(two)
    part = split_of(two).part(edition)
    lost = layout.shard_name("d", layout.write_key("train", part.write), 1, 2)
    pathlib.Path(two, lost).unlink()
    if edition == 1:
        convert(two, "old/*")
    else:
        append(two, "new/*")
    assert_whole(two, OLD, NEW, MORE)
    assert files_of(two)[lost] == before[lost]


def test_a_dataset_is_appended_to_another():
    convert("out", "old/*")
    convert("week", "new/*")
    run("append out week")
    assert_whole("out", OLD, NEW)
    assert "nothing to do" in run("append out week")
    batches = loader.global_batches(loader.open("out"), batch_size=85, shuffle="none")
    place = batches.locate(0, 80)
    assert place.source_path == "new/1.tfrecord"
    assert place.source_offset_bytes == len(frames_of(NEW[12:20]))
