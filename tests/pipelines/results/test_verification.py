"""The report of a verification."""

from __future__ import annotations

import json

import pytest

from tests.support.records import text_records, write_tfrecords
from tests.support.shell import succeeded


@pytest.fixture
def dataset(tmp_path):
    write_tfrecords(tmp_path / "in.tfrecord", text_records(300))
    succeeded("convert", "in.tfrecord", "texts", "--num-shards", "3", cwd=tmp_path)
    return tmp_path / "texts"


def test_report_without_a_runner(dataset, tmp_path):
    succeeded("verify", "texts", "--report", "r.json", cwd=tmp_path)
    found = json.loads((tmp_path / "r.json").read_bytes())
    assert (found["records"], found["shards"], found["findings"]) == (300, 3, [])
