"""The soak of reading from a bucket, a small one: records under mixed faults."""

import pytest

from benchmarks import gcs_soak


@pytest.mark.slow
def test_every_record_is_right_whatever_goes_wrong() -> None:
    found = gcs_soak.soak(records=12_000, workers=2, faults_per_second=10, seed=1)
    assert found["different"] == 0
    assert found["records"] >= 12_000
    assert found["retries"] > 0
    assert len(found["faults"]) > 2
