"""`gristmill verify` and `index`, as a shell calls them: here and by Beam's runners."""

from __future__ import annotations

import json

import pytest

from gristmill.pipelines.verify import verify
from tests.support.conversion import contents
from tests.support.records import text_records, write_array_records, write_tfrecords
from tests.support.shell import gristmill, succeeded

RUNNER = ("--runner", "FnApiRunner", "--direct_runner_bundle_repeat=1")


@pytest.fixture
def dataset(tmp_path):
    write_tfrecords(tmp_path / "in.tfrecord", text_records(300))
    succeeded("convert", "in.tfrecord", "texts", "--num-shards", "3", cwd=tmp_path)
    return tmp_path / "texts"


@pytest.mark.slow
def test_verify_by_a_runner_says_the_same(dataset, tmp_path):
    here = json.loads(succeeded("verify", "texts", "--json", cwd=tmp_path))
    there = json.loads(succeeded("verify", "texts", *RUNNER, "--json", cwd=tmp_path))
    assert {**here, "seconds": 0} == {**there, "seconds": 0}
    assert (here["records"], here["findings"]) == (300, [])

    shard = dataset / "texts-train.array_record-00001-of-00003"
    data = bytearray(shard.read_bytes())
    data[5000] ^= 1
    shard.write_bytes(data)
    done = gristmill("verify", "texts", *RUNNER, "--report", "r.json", cwd=tmp_path)
    assert done.returncode == 3
    assert "DAMAGED" in done.stdout
    found = json.loads((tmp_path / "r.json").read_bytes())
    assert {finding["path"] for finding in found["findings"]} == {shard.name}
    quick = verify(str(dataset), quick=True, beam_options=["--runner=FnApiRunner"])
    assert (quick.quick, quick.records, quick.findings) == (True, None, ())


@pytest.mark.slow
def test_index_refuses_damaged_files(tmp_path):
    path = tmp_path / "x.array_record"
    write_array_records(path, text_records(500))
    data = bytearray(path.read_bytes())
    data[9000] ^= 1
    path.write_bytes(data)
    done = gristmill("index", "x.array_record", cwd=tmp_path)
    assert done.returncode == 3
    assert "x.array_record" in done.stderr
    assert not (tmp_path / "dataset.json").exists()


@pytest.mark.slow
def test_index_by_a_runner_writes_the_same(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder / "old").mkdir(parents=True)
        for shard in range(2):
            path = tmp_path / folder / "old" / f"x-{shard}.array_record"
            write_array_records(path, text_records(40, seed=shard))
    text = succeeded("index", "old/*", cwd=tmp_path / "one")
    assert succeeded("index", "old/*", *RUNNER, cwd=tmp_path / "two") == text
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
