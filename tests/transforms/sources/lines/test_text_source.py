"""Lines of text take no options for columns."""

from __future__ import annotations

import pytest

from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import RecordOptions, SourceSpec
from tests.support.conversion import convert, job_of, read_output


def test_a_record_is_a_line(tmp_path):
    (tmp_path / "in").write_text("some text\nin two lines\n")
    for record in ("", "line"):
        options = RecordOptions(record=record)
        found = find_inputs([f"{tmp_path}/in"], options=options)
        assert found.spec == SourceSpec("text", "line")


@pytest.mark.parametrize(("data", "records"), [(b"", []), (b"\n", [b""])])
def test_a_byte_order_mark_is_no_line(tmp_path, data, records):
    (tmp_path / "in").write_bytes(b"\xef\xbb\xbf" + data)
    options = RecordOptions(input_format="text")
    convert(job_of(tmp_path / "in", tmp_path / "out", records=options))
    assert read_output(tmp_path / "out") == records
