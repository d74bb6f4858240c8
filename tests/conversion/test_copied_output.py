"""Shards made of shards: chunks copied as they are, and nothing wrong in the output."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Iterator

import pytest

from gristmill.dataset.arrayrecord.file_writer import ArrayRecordWriter
from gristmill.dataset.arrayrecord.shard_writer import ShardWriter
from gristmill.dataset.arrayrecord.writer_options import WriterOptions
from gristmill.dataset.base.errors import (
    DataLossError,
    GristmillError,
    StorageError,
    TransposedChunkError,
)
from gristmill.transforms.planning.shard_plan import SourceRange
from gristmill.transforms.sources.shards import open_shard as open_shard_module
from gristmill.transforms.sources.source import source_of
from tests.servers.buckets import upload
from tests.servers.gcs_server import GcsServer
from tests.support.conversion import (
    contents,
    convert,
    dataset_of,
    job_of,
    prepared_of,
    read_output,
    shards_of,
)
from tests.support.records import (
    read_array_records,
    text_records,
    write_array_records,
)

RECORDS = text_records(300)


@pytest.mark.parametrize("group_size", [1, 4])
@pytest.mark.parametrize("shards", [1, 2, 5, 9])
def test_chunks_of_a_dataset_are_copied(tmp_path, shards, group_size):
    """At a border within a chunk, records are encoded again."""
    source = dataset_of(tmp_path, RECORDS, group_size=group_size)
    plan, options = ("num_shards", shards), WriterOptions(group_size=group_size)
    convert(job_of(str(source), tmp_path / "new", plan=plan, writer=options))
    assert read_output(tmp_path / "new") == RECORDS
    if (shards, group_size) == (1, 1):
        # As if they had been converted from the files of the source.
        convert(job_of(tmp_path / "train.tfrecord", tmp_path / "anew"))
        (name,) = shards_of(tmp_path / "anew")
        made = contents(tmp_path / "new"), contents(tmp_path / "anew")
        assert made[0][name] == made[1][name]


@pytest.mark.parametrize("policy", ["fail", "skip"])
def test_transposed_chunks_are_refused(tmp_path, policy):
    options = "group_size:1,transpose:true,zstd:3"
    write_array_records(tmp_path / "a.array_record", RECORDS, options=options)
    with pytest.raises(TransposedChunkError, match=r"dataset\.Writer"):
        convert(job_of(tmp_path / "a.array_record", tmp_path / "b", on_corrupt=policy))


def test_what_is_damaged_in_transit_changes_no_byte(tmp_path, monkeypatch):
    source = dataset_of(tmp_path, RECORDS)
    with GcsServer("bucket") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        upload(server, source, "d")
        convert(job_of("gs://bucket/d", tmp_path / "whole"))
        whole = contents(tmp_path / "whole")
        (name,) = shards_of(tmp_path / "whole")
        for skip in range(3):
            open_shard_module.kept_shard.cache_clear()
            server.faults.clear()
            server.fail("flip", "media", name="-00000-of-", skip=skip)
            convert(job_of("gs://bucket/d", tmp_path / f"{skip}"))
            assert contents(tmp_path / f"{skip}")[name] == whole[name]


@pytest.mark.parametrize("kind", ["lose", "double", "change"])
def test_chunks_that_are_lost_on_the_way_are_found(tmp_path, monkeypatch, kind):
    source = dataset_of(tmp_path, RECORDS)
    append, happened = ArrayRecordWriter.append, []

    def faulty(self, chunks):
        happened.append(kind)
        if kind == "lose":
            return
        if kind == "double":
            append(self, chunks)
        else:
            data = bytearray(chunks.data)
            data[len(data) // 2] ^= 1
            chunks = dataclasses.replace(chunks, data=bytes(data))
        append(self, chunks)

    with monkeypatch.context() as patch:
        # Chunks that are lost in memory.
        patch.setattr(ArrayRecordWriter, "append", faulty)
        job = job_of(str(source), tmp_path / "new")
        with pytest.raises((DataLossError, StorageError), match="finished"):
            convert(job)
    assert happened
    assert not (tmp_path / "new" / "dataset.json").exists()


def mutations(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Yields bytes with a few of them flipped, moved, repeated or cut out."""
    chance = random.Random(seed)
    for _ in range(count):
        at, size = chance.randrange(len(data)), chance.randrange(1, 40)
        piece = data[at : at + size]
        changed = chance.choice(
            [
                bytes(byte ^ 1 << chance.randrange(8) for byte in piece),
                chance.randbytes(len(piece)),
                bytes(len(piece)),
                data[(start := chance.randrange(len(data))) : start + len(piece)],
            ]
        )
        changed += bytes(len(piece) - len(changed))
        yield data[:at] + changed + data[at + size :]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "seed"), [(40, 1), pytest.param(5000, 2, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("group_size", [1, 4])
def test_mutated_chunks_give_no_wrong_record(tmp_path, group_size, count, seed):
    options = WriterOptions(group_size=group_size)
    source = dataset_of(tmp_path, RECORDS[:90], group_size=group_size)
    prepared = prepared_of(job_of(str(source), tmp_path / "new", writer=options))
    file = prepared.files[0]
    path, copy = pathlib.Path(file.path), tmp_path / "copy"
    data = path.read_bytes()
    records = read_array_records(path)
    chunks_end = len(data) - (1 << 16)  # The rest is of zeros, and the postscript.
    refused = 0
    for changed in mutations(data[:chunks_end], count, seed):
        path.write_bytes(changed + data[chunks_end:])
        open_shard_module.kept_shard.cache_clear()
        whole = SourceRange(file_index=0, begin_bytes=0, end_bytes=file.size_bytes)
        unchecked = file._replace(version=None)  # Its change is not the subject.
        reader = source_of(prepared.files.spec).read(unchecked, whole)
        try:
            with ShardWriter(str(copy), options=options) as copier:
                copied = reader.copy(copier, options)
                written = copier.finish()
        except GristmillError:
            refused += 1
            continue
        if copied is not None:
            assert copied[0] == written.digest
            assert copied[1].tolist() == list(range(written.digest.records))
        assert read_array_records(copy) == records
    assert refused > 0
