"""The coders of results: what comes back is the same, and equal bytes if equal."""

from __future__ import annotations

import pathlib

import apache_beam as beam
import pytest
from apache_beam.coders import registry

from gristmill.dataset import Manifest, PackedCounts, open_manifest
from gristmill.transforms import (
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
        assert coder.is_deterministic() or kind is WriteResult
        data = coder.encode(result)
        assert not data.startswith(b"\x80")  # As a pickle does.
        back = coder.decode(data)
        assert (back, type(back)) == (result, type(result))
        assert coder.encode(back) == data
        assert coder == registry.get_coder(kind)


@pytest.mark.slow
def test_results_are_keys_and_rows(tmp_path: pathlib.Path) -> None:
    (tmp_path / "in").write_bytes(frames_of([b"a", b"b"]))
    written = run(
        ReadTFRecords(tmp_path / "in"),
        WriteArrayRecords(tmp_path / "out", num_shards=1),
        beam.Distinct(),
        beam.Select("records", "split"),
        beam.Map(tuple),
    )
    assert written == [(2, "train")]
    verified = run(VerifyDataset(tmp_path / "out"), beam.Distinct())
    assert [found.records for found in verified] == [2]
