"""Datasets of packed rows, made in a moment of documents that are ids already."""

from __future__ import annotations

import dataclasses
import pathlib
import random
from collections.abc import Sequence

import google_crc32c
import numpy as np

from gristmill.dataset.metadata import layout
from gristmill.dataset.metadata.open_manifest import open_manifest
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.packed.row_format import RowBatch, RowFormat, encode_rows
from gristmill.dataset.packed.segment_index import SegmentIndex
from gristmill.transforms.conversion.begin_job import begin_job
from gristmill.transforms.conversion.commit_shards import commit_shards
from gristmill.transforms.conversion.shard_tasks import make_shard, shard_tasks
from gristmill.transforms.jobs.conversion_job import ConversionJob
from gristmill.transforms.planning.shard_plan import PlanOptions
from tests.support.records import frames_of

Documents = Sequence[Sequence[int]]


def documents(count: int, *, seed: int, mean: int = 20) -> list[list[int]]:
    """Returns documents of ids below 60,000, none of them empty."""
    chance = random.Random(seed)
    return [
        [chance.randrange(60_000) for _ in range(1 + int(chance.expovariate(1 / mean)))]
        for _ in range(count)
    ]


def concatenated(docs: Documents, length: int) -> RowBatch:
    """Returns rows of documents one after the other, cut where a row ends."""
    ends, lengths, firsts, used = [], [], [], 0
    for doc in docs:
        first = 0
        while first < len(doc):
            taken = min(len(doc) - first, length - used)
            lengths.append(taken)
            firsts.append(first)
            first, used = first + taken, used + taken
            if used == length:
                ends.append(len(lengths))
                used = 0
    if used:
        ends.append(len(lengths))
    tokens = [token for doc in docs for token in doc]
    columns = (np.array(column, np.uint32) for column in (lengths, firsts, tokens))
    return RowBatch(np.array(ends, np.int64), *columns)


def pack(folder: pathlib.Path, shards: Sequence[Documents], *, length: int = 32) -> str:
    """Packs lists of documents, a shard for each, and returns the dataset."""
    inputs = folder / "in"
    inputs.mkdir(parents=True)
    held, segments = [], []
    for number, docs in enumerate(shards):
        batch = concatenated(docs, length)
        records = encode_rows(RowFormat(length), batch)
        (inputs / f"{number:05d}.tfrecord").write_bytes(frames_of(records))
        counts = PackedCounts(
            documents=len(docs),
            tokens=len(batch.tokens),
            pieces=len(batch.lengths),
            padding_tokens=len(records) * length - len(batch.tokens),
        )
        held.append(counts)
        index = SegmentIndex(
            row_ends=batch.row_ends,
            piece_documents=(np.cumsum(batch.firsts == 0) - 1).astype(np.uint32),
            piece_firsts=batch.firsts,
            document_places=np.arange(len(docs)),
            span_documents=np.array([len(docs)]),
        )
        segments.append(index.encode())
    job = ConversionJob(
        inputs=(str(inputs / "*.tfrecord"),),
        output=str(folder / "out"),
        name="d",
        plan=PlanOptions(kind="match_shards", value=None),
    )
    prepared = begin_job(job).prepared
    results = []
    for task, counts, index in zip(shard_tasks(prepared), held, segments, strict=True):
        made = make_shard(task)
        path = layout.segments_path(made.report.path)
        (folder / "out" / path).write_bytes(index)
        report = dataclasses.replace(
            made.report,
            packed=counts,
            segments_bytes=len(index),
            segments_crc32c=google_crc32c.value(index),
        )
        results.append(made._replace(report=report))
    commit_shards([job], results)
    manifest = open_manifest(job.output)
    packed = sum(held, PackedCounts()).as_dict() | {
        "format": 1,
        "rows": "packed",
        "length": length,
        "id_bytes": 2,
        "method": "best-fit",
    }
    split = dataclasses.replace(manifest.splits["train"], packed=packed)
    data = dataclasses.replace(manifest, splits={"train": split}).encode()
    (pathlib.Path(job.output) / "dataset.json").write_bytes(data)
    return job.output
