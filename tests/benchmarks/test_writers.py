"""The benchmark of writers runs, and writes files that are whole."""

from __future__ import annotations

import pytest

from benchmarks import writers
from gristmill.dataset.arrayrecord.file_writer import ArrayRecordWriter


@pytest.mark.slow
def test_it_measures_every_writer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    written = 0

    class Counting(ArrayRecordWriter):
        def write(self, records):
            nonlocal written
            written += len(records)
            super().write(records)

    monkeypatch.setattr(writers, "ArrayRecordWriter", Counting)
    writers.main(["--rounds", "1", "--records", "80"])
    # In this process: three cases, and two threads twice, ten records to warm up.
    assert written == 80 + 80 + 2 + 2 * (80 + 10) * 2
    out = capsys.readouterr().out
    for line in ("compression alone", "official writer", "two threads over two"):
        assert line in out
