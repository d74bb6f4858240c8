"""What jobs on Beam count: an index and a verification.

`test_convert_tfrecords` and `test_write_arrayrecords` have the others.
"""

from __future__ import annotations

import logging
import pathlib

import pytest

from gristmill.transforms import IndexArrayRecords, VerifyDataset
from gristmill.transforms.beam import job_metrics
from tests.support.pipelines import counters, distributions, ended
from tests.support.records import text_records, write_array_records


def test_an_index_and_a_verification(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "gristmill")
    for name in ("x", "y"):
        write_array_records(tmp_path / name, text_records(5))
    result = ended(IndexArrayRecords(files=tmp_path / "*"))
    assert counters(result) == {
        **{"planned-shards": 2, "made-shards": 2, "records": 10},
        "raw-bytes": 2 * sum(map(len, text_records(5))),
    }
    stored_bytes = sum((tmp_path / name).stat().st_size for name in ("x", "y"))
    assert distributions(result)["shard-bytes"].sum == stored_bytes

    (tmp_path / "y").write_bytes(b"damaged")
    result = ended(VerifyDataset(tmp_path))
    counted = counters(result)
    assert counted["planned-shards"] == counted["verified-shards"] == 2
    assert counted["findings"] == 2
    assert distributions(result)["shard-milliseconds"].count == 2
    *said, last = caplog.records
    assert (last.levelname, {each.levelname for each in said}) == ("WARNING", {"INFO"})
    assert "verified 2 shards, 5 records, 2 findings, the first y" in last.getMessage()


def test_names_are_those_that_are_documented() -> None:
    with pytest.raises(KeyError):
        job_metrics.counter("shards")
