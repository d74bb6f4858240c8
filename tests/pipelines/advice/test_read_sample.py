"""Samples of real files: of all formats, from everywhere."""

from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
import pathlib
from collections.abc import Callable

import pytest

from gristmill.dataset.metadata import layout
from gristmill.pipelines.advice import read_sample as reading
from gristmill.pipelines.advice.encoded_sizes import amount, encode_sample
from gristmill.pipelines.advice.read_sample import Sample, read_sample
from gristmill.transforms.conversion.job_inputs import list_inputs
from gristmill.transforms.jobs.conversion_job import ConversionJob
from tests.support.datasets import convert
from tests.support.gcs_server import GcsServer
from tests.support.records import frames_of, text_records


def job_of(*inputs: str | pathlib.Path, **more: str) -> ConversionJob:
    return ConversionJob(
        inputs=tuple(map(str, inputs)), output="/nowhere/out", name="d", **more
    )


def sample_of(
    job: ConversionJob, *, clock: Callable[[], float] = lambda: 0.0
) -> Sample:
    return read_sample(job, list_inputs(job), clock=clock)


def records_of(sample: Sample) -> list[bytes]:
    return [record for part in sample.parts for record in part.records]


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Files whose records become longer: the first ones tell nothing of the last."""
    folder = tmp_path_factory.mktemp("changing")
    for number in range(6):
        texts = text_records(3000, seed=number)
        with open(folder / f"{number}.jsonl", "wb") as file:
            for place, text in enumerate(texts):
                row = {"id": place, "text": text.decode() * (1 + 2 * number)}
                file.write(json.dumps(row).encode() + b"\n")
    return folder


@pytest.mark.slow
@pytest.mark.one_in(3)
@pytest.mark.parametrize("offset", [0, 0.25, 0.5, 0.75])
def test_a_sample_tells_of_all_of_it(
    changing: pathlib.Path, offset: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It follows from the names of the files, which are others in every run, and one
    # sample of 20 may be further away than its error says.
    monkeypatch.setattr(reading, "offset_of", lambda digest: offset)
    sample = sample_of(job_of(changing))
    assert not sample.whole
    assert 20 <= len(sample.parts) <= 64
    found = amount(sample, [len(part.records) for part in sample.parts])
    # Where the parts lie depends on the paths, and 1 of 20 samples is off by more than
    # its error: of 200, none by twice of it.
    assert found.value == pytest.approx(18_000, abs=2 * found.error)
    assert 0 < found.relative_error < 0.5
    stored = sum(part.stored_bytes for part in sample.parts)
    assert stored < 0.5 * sample.input_bytes
    # The head of the input alone would say twice as many or more.
    first = min(sample.parts, key=lambda part: part.part.begin)
    head = len(first.records) / first.stored_bytes * sample.input_bytes
    assert head > 2 * 18_000


@pytest.mark.slow
def test_the_same_inputs_give_the_same_sample(changing: pathlib.Path) -> None:
    job = job_of(changing)
    assert sample_of(job) == sample_of(job)


def test_a_slow_storage_ends_it_early_but_not_at_once(changing: pathlib.Path) -> None:
    clock = itertools.count(0, 0.3)
    late = sample_of(job_of(changing), clock=lambda: next(clock))
    assert len(late.parts) == 8
    clock = itertools.count(0, 10)
    assert len(sample_of(job_of(changing), clock=lambda: next(clock)).parts) == 1


def test_a_small_input_is_read_as_a_whole(tmp_path: pathlib.Path) -> None:
    records = text_records(1000)
    (tmp_path / "a.tfrecord").write_bytes(frames_of(records[:700]))
    (tmp_path / "b.tfrecord").write_bytes(frames_of(records[700:]))
    sample = sample_of(job_of(tmp_path))
    assert sample.whole
    assert sorted(records_of(sample)) == sorted(records)
    found = amount(sample, [len(part.records) for part in sample.parts])
    assert (found.value, found.error) == (pytest.approx(1000), 0)


@pytest.mark.parametrize("group_size", [1, 16])
@pytest.mark.parametrize("compression", ["zstd:3", "uncompressed"])
def test_sizes_are_those_of_the_writer(
    tmp_path: pathlib.Path, compression: str, group_size: int
) -> None:
    files = [text_records(2000, seed=seed) for seed in range(2)]
    dataset = pathlib.Path(
        convert(tmp_path, files, compression=compression, group_size=group_size)
    )
    sample = sample_of(job_of(tmp_path / "in-train"))
    found = encode_sample([sample], compression=compression, group_size=group_size)
    found = found.with_shards(2)
    paths = list(dataset.glob("*.array_record*"))
    shards = sum(path.stat().st_size for path in paths)
    indexes = sum(
        (dataset / layout.index_path(path.name)).stat().st_size for path in paths
    )
    assert found.shard_bytes.value == pytest.approx(shards, rel=0.01, abs=1 << 16)
    assert found.index_bytes.value == pytest.approx(indexes, rel=0.03)
    # A shard of so few records is filled up to a block: the chunks are right, too.
    assert found.chunk_bytes * 4000 / group_size == pytest.approx(shards, rel=0.3)


@pytest.mark.slow
def test_of_compressed_files_only_heads_are_read(tmp_path: pathlib.Path) -> None:
    lines = [json.dumps({"text": text.hex()}) for text in text_records(30_000)]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode(), 1))
    sample = sample_of(job_of(path))
    assert sample.heads
    assert not sample.whole
    assert len(sample.parts) == 1
    found = amount(sample, [len(part.records) for part in sample.parts])
    assert found.value == pytest.approx(30_000, rel=0.05)


def test_a_function_changes_what_is_measured(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.tfrecord").write_bytes(frames_of([b"ab", b"", b"cd"]))
    (tmp_path / "twice.py").write_text(
        "def twice(record):\n    return [record, record] if record else None\n"
    )
    monkeypatch.chdir(tmp_path)
    sample = sample_of(job_of(tmp_path / "in", map="twice:twice"))
    assert records_of(sample) == [b"ab", b"ab", b"cd", b"cd"]
    assert sample.parts[0].read_records == 3


def test_damage_is_noted_and_does_not_end_it(tmp_path: pathlib.Path) -> None:
    data = bytearray(frames_of(text_records(3000)))
    data[len(data) // 2] ^= 1
    (tmp_path / "a.tfrecord").write_bytes(data)
    sample = sample_of(job_of(tmp_path))
    assert sample.damaged.startswith("corrupt record")
    assert 2900 < len(records_of(sample)) < 3000
    (tmp_path / "a.tfrecord").write_bytes(frames_of([b"a" * 100])[:60])
    nothing = sample_of(job_of(tmp_path))
    assert (records_of(nothing), nothing.damaged != "") == ([], True)


@pytest.mark.slow
def test_parquet_and_buckets(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [text.decode() for text in text_records(20_000)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": rows}), path, row_group_size=4000)
    local = sample_of(job_of(path))
    assert records_of(local)
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        server.objects.put("bucket", "raw/a.parquet", path.read_bytes())
        there = sample_of(job_of("gs://bucket/raw/a.parquet"))
    assert len(records_of(there)) == pytest.approx(20_000, rel=0.02)
    assert dataclasses.replace(there, parts=()) == dataclasses.replace(local, parts=())
