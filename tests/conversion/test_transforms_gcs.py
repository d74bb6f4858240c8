"""The transforms on gs:// paths: what they give and leave is that of a local disk."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from gristmill.dataset.storage.lookup import storage_for
from gristmill.pipelines import (
    convert_tf_to_arrayrecord_disk,
    convert_tf_to_arrayrecord_gcs,
)
from gristmill.transforms import (
    ReadArrayRecords,
    ReadTFRecords,
    VerifyDataset,
    WriteArrayRecords,
)
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import contents
from tests.support.pipelines import BUNDLES_TWICE, IN_MEMORY, run
from tests.support.records import frames_of, text_records

RECORDS = [*text_records(400), b"", bytes(200_000)]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with GcsServer("in", "out") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("in", "raw/a.tfrecord", frames_of(RECORDS[:100]))
        server.objects.put("in", "raw/b.tfrecord", frames_of(RECORDS[100:]))
        yield server


def stored(folder: str) -> dict[str, bytes]:
    """Returns all objects below a folder of the output, by relative name."""
    storage = storage_for("gs://out")
    return {
        info.path.removeprefix(f"gs://out/{folder}/"): storage.read(info.path)
        for info in storage.match(f"gs://out/{folder}/**")
    }


@pytest.mark.slow
def test_read_write_verify(server: GcsServer, tmp_path: pathlib.Path) -> None:
    options = {"num_shards": 3, "shard_bytes": 50_000}
    local = WriteArrayRecords(str(tmp_path / "data"), **options)
    run(beam.Create(RECORDS), local)
    (result,) = run(
        ReadTFRecords("gs://in/raw/*.tfrecord", range_bytes=20_000),
        WriteArrayRecords("gs://out/some/data", **options),
        argv=BUNDLES_TWICE,
    )
    assert result.records == len(RECORDS)
    assert stored("some/data") == contents(tmp_path / "data")
    reading = ReadArrayRecords("gs://out/some/data", range_bytes=20_000)
    assert sorted(run(reading)) == sorted(RECORDS)
    (verified,) = run(VerifyDataset("gs://out/some/data"))
    assert (verified.findings, verified.records) == ((), len(RECORDS))


@pytest.mark.slow
def test_drop_in(server: GcsServer) -> None:
    options = PipelineOptions(list(IN_MEMORY))
    args = {"input": "gs://in/raw/*.tfrecord", "output": "gs://out/each"}
    convert_tf_to_arrayrecord_gcs(args=args, pipeline_options=options).run()
    args["output"] = "gs://out/prefix/data"
    convert_tf_to_arrayrecord_disk(2, args, options).run()
    assert [name for name in stored("each") if "/" not in name] == [
        "a.tfrecord.arrayrecord",
        "b.tfrecord.arrayrecord",
        "dataset.json",
    ]
    assert [name for name in stored("prefix") if "/" not in name] == [
        "data-00000-of-00002.arrayrecord",
        "data-00001-of-00002.arrayrecord",
        "dataset.json",
    ]
    for dataset in ("gs://out/each", "gs://out/prefix"):
        (verified,) = run(VerifyDataset(dataset))
        assert (verified.findings, verified.records) == ((), len(RECORDS))
