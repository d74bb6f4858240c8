"""What users say of inputs, and what is found in them (`formats`)."""

from __future__ import annotations

import dataclasses

import pytest

from gristmill.dataset.base.errors import InputError, JobChangedError
from gristmill.transforms.sources.find_inputs import find_inputs
from gristmill.transforms.sources.formats import TFRECORD, RecordOptions, SourceSpec
from gristmill.transforms.sources.input_files import InputFiles
from tests.support.conversion import convert, job_of
from tests.support.records import frames_of

SPECS = [
    TFRECORD,
    SourceSpec("tfrecord", "column:a", ("a", "b"), '{"a": "int64"}'),
]


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_survives_its_file(tmp_path, spec):
    assert SourceSpec.from_json(spec.to_json()) == spec
    (tmp_path / "in").write_bytes(frames_of([b"one"]))
    files = dataclasses.replace(find_inputs([str(tmp_path / "in")]), spec=spec)
    again = InputFiles.of_arrays(files.arrays())
    assert (again.spec, list(again.paths)) == (spec, list(files.paths))
    assert (again[0].spec or TFRECORD) == spec


@pytest.mark.parametrize("record", ["exam", "column", "column:", "line:a", ":"])
def test_records_of_no_kind_are_refused(record):
    with pytest.raises(InputError, match="unknown `record`"):
        RecordOptions(record=record)


@pytest.mark.parametrize("columns", [("",), ("a", ""), ("a", "b", "a")])
def test_columns_without_a_name_or_twice_are_refused(columns):
    with pytest.raises(InputError, match="`columns` names"):
        RecordOptions(columns=columns)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (RecordOptions(columns=("a", "b")), "`columns` a,b"),
        (RecordOptions(record="example"), "`record` example"),
    ],
)
def test_options_for_columns_are_not_for_tfrecords(tmp_path, options, named):
    (tmp_path / "in").write_bytes(frames_of([b"one"]))
    with pytest.raises(InputError, match="is not for TFRecord files") as caught:
        find_inputs([str(tmp_path / "in")], options=options)
    assert named in str(caught.value)


def test_a_job_with_other_options_is_another_job(tmp_path):
    (tmp_path / "in").write_bytes(frames_of([b"one"]))
    job = job_of(tmp_path / "in", tmp_path / "out")
    convert(job)
    said = RecordOptions(input_format="tfrecord")
    with pytest.raises(JobChangedError):
        convert(dataclasses.replace(job, records=said))
