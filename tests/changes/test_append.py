"""Records that are appended to a dataset, whatever happens meanwhile."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner

from gristmill import loader
from gristmill.dataset.base.errors import InputError
from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.manifest import Manifest, open_manifest
from gristmill.pipelines.commands.main import cli
from tests.changes.changes import append, convert, found_by_verify
from tests.support.editions import files_of
from tests.support.records import frames_of, text_records, write_array_records

OLD = text_records(60)
NEW = text_records(25, seed=1)
MORE = text_records(13, seed=2)


@pytest.fixture
def inputs(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The current folder, with one for each edition: `old`, `new` and `more`."""
    monkeypatch.chdir(tmp_path)
    for name, records in (("old", OLD), ("new", NEW), ("more", MORE)):
        (tmp_path / name).mkdir()
        half = len(records) // 2
        for number, part in enumerate((records[:half], records[half:])):
            (tmp_path / name / f"{number}.tfrecord").write_bytes(frames_of(part))
    return tmp_path


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(cli, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    return done.output


def records_of(output: str, split: str = "train", **options: Any) -> list[bytes]:
    return list(loader.open(output, split, **options))


def assert_whole(output: str, *editions: Sequence[bytes]) -> Manifest:
    """The dataset has these editions, and nothing is beside it."""
    assert found_by_verify(output) == ([], [])
    manifest = open_manifest(output)
    ends = [part.records for part in manifest.splits["train"].parts]
    assert ends == list(map(len, editions))
    assert records_of(output) == [r for records in editions for r in records]
    return manifest


def test_by_command(inputs):
    run("convert", "old", "out", "--num-shards=2", "--name=d")
    said = run("append", "out", "new", "--num-shards=2")
    assert "d/train, edition 2: 25 records in 2 shards, committed" in said
    assert "committed already" in run("append", "out", "new", "--num-shards=2")
    damaged = bytearray(frames_of(MORE))
    damaged[20] ^= 1
    (inputs / "damaged.tfrecord").write_bytes(damaged)
    run("append", "out", "damaged.tfrecord", code=3)
    assert found_by_verify("out")[0] == []
    said = run("append", "out", "damaged.tfrecord", "--on-corrupt=skip")
    assert "LEFT OUT  1 damaged region" in said
    split = assert_whole("out", OLD, NEW, MORE[1:]).splits["train"]
    assert split.skipped_regions == split.editions[2].skipped_regions == 1
    said = run("append", "out", "more", "--map=binascii:hexlify")
    assert "with --map binascii:hexlify, the one before without" in said
    assert records_of("out")[-1] == MORE[-1].hex().encode()


@pytest.mark.slow
def test_on_beam(inputs):
    for place in ("here", "beam"):
        run("convert", "old", place, "--num-shards=2", "--name=d")
    run("append", "here", "new", "--num-shards=2")
    for _ in range(2):
        run("append", "beam", "new", "--num-shards=2", "--runner=FnApiRunner")
    assert files_of("beam") == files_of("here")


def test_another_split_has_editions_of_its_own(inputs):
    convert("out", "old/*")
    append("out", "new/*")
    run("convert", "more", "out", "--name=d", "--split=val")
    run("append", "out", "new", "--split=val")
    manifest = assert_whole("out", OLD, NEW)
    assert records_of("out", "val") == MORE + NEW
    splits = [layout.parse_write_key(key)[0] for key in manifest.editions]
    assert sorted(splits) == ["train", "train", "val", "val"]
    assert "train, val" in run("append", "out", "more", code=2)


@pytest.mark.slow
def test_features_of_other_types_are_refused_before_anything_is_written(inputs):
    (inputs / "a.jsonl").write_text('{"id": 1, "meta": {"score": 0.5}}\n')
    (inputs / "b.jsonl").write_text('{"id": 2, "meta": {"score": 3}}\n')
    run("convert", "a.jsonl", "out")
    before = files_of("out")
    said = run("append", "out", "b.jsonl", code=2)
    assert "other types than the split" in said
    assert "meta.score" in said
    assert files_of("out") == before
    # As the message says; also of a field of an object.
    run("append", "out", "b.jsonl", "--columns=*,meta.score:float")
    features = open_manifest("out").splits["train"].features
    assert features is not None
    assert features["meta.score"]["kind"] == "float"


def test_what_is_refused(inputs):
    convert("out", "old/*")
    append("out", "new/*")
    before = files_of("out")

    def refused(given: Any, says: str, **options: Any) -> str:
        with pytest.raises(InputError, match=says) as caught:
            append("out", given, **options)
        assert files_of("out") == before
        return str(caught.value)

    new = f"{inputs}/new/1.tfrecord"
    told = refused(["more/*", new], "already")
    assert "1 of 3 files are those of edition 2" in told
    assert f"where:    {new}\n" in told
    for given in ("old/0.tfrecord", ["more/*", "new/0.tfrecord"]):
        refused(given, "already")
    told = refused("new/*", "differently", shards=3)
    assert "edition 2, converted differently: the plan was 2 shards, is 3" in told
    (inputs / "new" / "0.tfrecord").write_bytes(frames_of(MORE))
    assert "1 input files changed: new/0.tfrecord" in refused("new/*", "differently")
    assert "no such split" in run("append", "out", "more", "--split=val", code=2)
    assert "not a committed dataset" in run("append", "none", "new", code=3)
    assert not (inputs / "none").exists()


def test_a_split_that_metadata_of_tfds_describes(inputs):
    convert("out", "old/*")
    info = {"name": "d", "fileFormat": "array_record", "splits": [{"name": "train"}]}
    path = inputs / "out" / "dataset_info.json"
    path.write_text(json.dumps(info))
    said = run("append", "out", "new", code=2)
    assert "TFDS would read the first alone" in said
    assert_whole("out", OLD)
    path.write_text(json.dumps(info | {"splits": [{"name": "val"}]}))
    run("append", "out", "new")
    assert_whole("out", OLD, NEW)


@pytest.mark.parametrize("edition", [1, 2])
def test_lost_shards_are_made_again_and_all_editions_stay(inputs, edition):
    convert("out", "old/*")
    for source in ("new", "more"):
        append("out", f"{source}/*")
    before = files_of("out")
    part = open_manifest("out").splits["train"].part(edition)
    lost = layout.shard_name("d", layout.write_key("train", part.write), 1, 2)
    pathlib.Path("out", lost).unlink()
    if edition == 1:
        convert("out", "old/*")
    else:
        append("out", "new/*")
    assert_whole("out", OLD, NEW, MORE)
    assert files_of("out")[lost] == before[lost]


def test_to_files_that_were_indexed(inputs):
    (inputs / "found").mkdir()
    write_array_records(inputs / "found" / "some.array_record", OLD)
    run("index", "found")
    run("append", "found", "new")
    assert_whole("found", OLD, NEW)
    # They are not ours to delete, whatever was appended.
    said = run("convert", "more", "found", "--overwrite", code=2)
    assert "gristmill did not write" in said
    assert_whole("found", OLD, NEW)
