"""`gristmill bench-loader`, which must find out what limits a loader."""

import pytest

from tests.commands.conftest import json_of, refused
from tests.support.datasets import convert
from tests.support.records import text_records

FILES = [text_records(2000, seed=1), text_records(2000, seed=2)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return convert(tmp_path_factory.mktemp("data"), FILES)


def bench_json(line):
    return json_of(f"bench-loader {line} --seconds 0.4")


@pytest.mark.alone
def test_a_trainer_that_takes_no_time_is_limited_by_reading(dataset):
    # Of the few batches of a short run one may wait for a processor that others use,
    # which looks like decode: of several runs one is undisturbed.
    for _ in range(10):
        found = bench_json(f"{dataset} --batch-size 500")
        if found["cause"] == "read":
            break
    stats = found["stats"]
    assert (found["cause"], found["step_seconds"]) == ("read", 0)
    assert found["waiting_share"] > 0.2
    assert stats["records"] == stats["batches"] * 500
    assert 0.4 <= stats["wait_seconds"] / found["waiting_share"] < 10


@pytest.mark.alone
def test_a_slow_trainer_is_the_limit(dataset):
    found = bench_json(f"{dataset} --step-ms 60 --batch-size 100")
    assert (found["cause"], found["step_seconds"]) == ("trainer", 0.06)
    assert found["stats"]["records"] / found["seconds"] < 100 / 0.06


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_decode_that_fails(dataset, tmp_path, monkeypatch, workers):
    (tmp_path / "bad_module.py").write_text("def decode(records):\n    return 1 / 0\n")
    monkeypatch.chdir(tmp_path)
    line = f"bench-loader {dataset} --decode bad_module:decode --seconds 0.2"
    text = refused(f"{line} --workers {workers}", code=1)
    assert "--decode function failed: ZeroDivisionError: division by zero" in text
    assert "where:    bad_module:decode, in the batch of step 0" in text
    assert ("bad_module.py, line 2: return 1 / 0" in text) == (workers == 0)
    assert "to do: " in text
