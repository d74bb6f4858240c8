"""The demo, also a second time."""

from __future__ import annotations

from tests.support.shell import succeeded


def test_demo(tmp_path):
    text = succeeded("demo", str(tmp_path / "demo"), cwd=tmp_path)
    assert "4,000 records in 8 shards" in text
    assert "record 2:" in text
    again = succeeded("demo", str(tmp_path / "demo"), cwd=tmp_path)
    assert "committed already" in again
