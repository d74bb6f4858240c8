"""The report of a verification."""

from __future__ import annotations

import json

import pytest

from tests.support.records import text_records, write_tfrecords
from tests.support.shell import gristmill, succeeded


@pytest.fixture
def dataset(tmp_path):
    write_tfrecords(tmp_path / "in.tfrecord", text_records(300))
    succeeded("convert", "in.tfrecord", "texts", "--num-shards", "3", cwd=tmp_path)
    return tmp_path / "texts"


@pytest.mark.slow
def test_report_without_a_runner(dataset, tmp_path):
    succeeded("verify", "texts", "--report", "r.json", cwd=tmp_path)
    found = json.loads((tmp_path / "r.json").read_bytes())
    assert (found["records"], found["shards"], found["findings"]) == (300, 3, [])


@pytest.mark.slow
def test_a_quick_verification_says_what_it_did_not_look_at(dataset, tmp_path):
    shard = dataset / "texts-train.array_record-00001-of-00003"
    data = bytearray(shard.read_bytes())
    data[5000] ^= 1
    shard.write_bytes(data)
    text = succeeded("verify", "texts", "--quick", cwd=tmp_path)
    assert "whole" not in text
    assert "nothing wrong in what was checked; 3 shards" in text
    assert "  checked      metadata, names of files, sizes of shards\n" in text
    assert "  NOT checked  contents of shards, contents of indexes" in text
    found = json.loads(succeeded("verify", "texts", "--quick", "--json", cwd=tmp_path))
    assert (found["records"], found["raw_bytes"], found["shards"]) == (None, None, 3)
    assert found["checked"] == ["metadata", "names of files", "sizes of shards"]
    assert found["not_checked"] == ["contents of shards", "contents of indexes"]


@pytest.mark.slow
def test_a_damaged_shard_can_be_made_again_as_the_text_says(dataset, tmp_path):
    shard = dataset / "texts-train.array_record-00001-of-00003"
    data = bytearray(whole := shard.read_bytes())
    data[5000] ^= 1
    shard.write_bytes(data)
    done = gristmill("verify", "texts", cwd=tmp_path)
    assert done.returncode == 3
    assert shard.name in done.stdout
    assert "run the same `gristmill convert` or `gristmill pack` again" in done.stdout
    shard.unlink()
    succeeded("convert", "in.tfrecord", "texts", "--num-shards", "3", cwd=tmp_path)
    assert shard.read_bytes() == whole
    assert "whole" in succeeded("verify", "texts", cwd=tmp_path)
