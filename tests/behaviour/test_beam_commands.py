"""`verify` and `index` on Beam's runners, and what options of runners are refused."""

from __future__ import annotations

import json

import pytest

from gristmill.pipelines.commands import main as cli
from gristmill.pipelines.results.verification import Verification
from gristmill.pipelines.verify import verify
from tests.pipelines.commands.test_main import gristmill, succeeded
from tests.support.conversion import contents
from tests.support.records import text_records, write_array_records, write_tfrecords

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
    found = Verification.read(str(tmp_path / "r.json"))
    assert {finding.path for finding in found.findings} == {shard.name}
    quick = verify(str(dataset), quick=True, beam_options=["--runner=FnApiRunner"])
    assert (quick.quick, quick.records, quick.findings) == (True, 0, ())


def test_report_without_a_runner(dataset, tmp_path):
    succeeded("verify", "texts", "--report", "r.json", cwd=tmp_path)
    found = Verification.read(str(tmp_path / "r.json"))
    assert (found.records, found.shards, found.findings) == (300, 3, ())


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("verify", "x", "--wait"), "--runner DataflowRunner"),
        (("index", "x", "--cross-region", *RUNNER), "--runner DataflowRunner"),
        (("verify", "x", "--", "--region=x"), "add --runner"),
        (("index", "x", "--workers=2", *RUNNER), "--workers"),
        (("convert", "a", "b", "--num-shrads=3", *RUNNER), "No such option"),
        (("convert", "a", "b", "--region=x"), "No such option"),
    ],
)
def test_options_without_effect_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(arguments)
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err
