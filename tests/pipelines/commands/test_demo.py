"""The demo, also a second time."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner

from gristmill.pipelines.commands.main import cli
from tests.support.shell import succeeded


def test_demo(tmp_path):
    text = succeeded("demo", str(tmp_path / "demo"), cwd=tmp_path)
    assert "4,000 records in 8 shards" in text
    assert "record 2:" in text
    again = succeeded("demo", str(tmp_path / "demo"), cwd=tmp_path)
    assert "committed already" in again


@pytest.mark.parametrize(
    ("directory", "message"),
    [
        ("file", "check the path: a part of it is a file"),
        ("gs://bucket/demo", "the demo writes to local disks only"),
    ],
)
def test_directories_that_cannot_be_used(directory, message, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, ["demo", directory])
    assert done.exit_code in (1, 2)
    assert message in done.stderr
    assert os.listdir(tmp_path) == ["file"]
