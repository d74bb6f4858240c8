"""The coders of results: what comes back is the same, and equal bytes if equal."""

from __future__ import annotations

import pathlib
import shutil

import apache_beam as beam
import pytest
from apache_beam.coders import registry
from apache_beam.portability.api import schema_pb2
from apache_beam.typehints.schemas import named_tuple_to_schema

from gristmill.dataset import Manifest, PackedCounts, open_manifest
from gristmill.transforms import (
    ConversionJob,
    ConversionResult,
    ConvertFiles,
    Finding,
    IndexArrayRecords,
    ReadTFRecords,
    VerifyDataset,
    VerifyResult,
    WriteArrayRecords,
    WriteResult,
)
from tests.support.conversion import dataset_of
from tests.support.pipelines import run
from tests.support.records import frames_of

# Their modules register the coders.
TRANSFORMS = (ConvertFiles, IndexArrayRecords, VerifyDataset, WriteArrayRecords)
FINDING = Finding("a\udcff-00000", "wrong", "1", "2")
FOUND = VerifyResult(
    *("d", 3, None, None, (FINDING,), ("left",), 1, 2, PackedCounts(documents=5))
)


def test_results_come_back(tmp_path: pathlib.Path) -> None:
    manifest = open_manifest(dataset_of(tmp_path, [b"a", b"b", b"c"]))
    for kind, result in {
        Manifest: manifest,
        ConversionResult: ConversionResult(manifest, ("train",)),
        VerifyResult: FOUND,
        WriteResult: WriteResult("o", "train", 1, 2, 3, 4, True),
    }.items():
        coder = registry.get_coder(kind)
        assert coder.is_deterministic()
        data = coder.encode(result)
        assert not data.startswith(b"\x80")  # As a pickle does.
        back = coder.decode(data)
        assert (back, type(back)) == (result, type(result))
        assert coder.encode(back) == data
        assert coder == registry.get_coder(kind)


def test_other_languages_read_the_result_of_a_write() -> None:
    schema = named_tuple_to_schema(WriteResult)
    kinds = {field.name: field.type.atomic_type for field in schema.fields}
    texts, counts = ("output", "split"), ("shards", "records", "raw_bytes")
    assert {kinds[name] for name in texts} == {schema_pb2.STRING}
    assert {kinds[name] for name in (*counts, "file_bytes")} == {schema_pb2.INT64}
    assert kinds["committed_before"] == schema_pb2.BOOLEAN


@pytest.mark.slow
def test_results_are_keys_and_rows(tmp_path: pathlib.Path) -> None:
    (tmp_path / "in").write_bytes(frames_of([b"a", b"b"]))
    out = tmp_path / "out"
    write = WriteArrayRecords(out, num_shards=1)
    rows = (beam.Select("records", "split"), beam.Map(tuple))
    assert run(ReadTFRecords(tmp_path / "in"), write, *rows) == [(2, "train")]
    job = ConversionJob(inputs=(tmp_path / "in",), output=tmp_path / "c", name="c")
    shutil.copytree(out, tmp_path / "found", ignore=shutil.ignore_patterns("*.json"))
    count = (beam.Map(lambda one: (one, 1)), beam.GroupByKey(), beam.Keys())
    for chain, kind in (
        ([ReadTFRecords(tmp_path / "in"), write], WriteResult),
        ([ConvertFiles(jobs=(job,))], ConversionResult),
        ([VerifyDataset(out)], VerifyResult),
        ([IndexArrayRecords(files=f"{tmp_path}/found/*array_record*")], Manifest),
    ):
        (found,) = run(*chain, *count)
        assert type(found) is kind
