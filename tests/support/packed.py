"""Datasets of packed rows, made in a moment of documents that are ids already."""

import random
from collections.abc import Sequence

from gristmill.dataset import WriterOptions, encode_example
from gristmill.transforms import PackOptions
from tests.support import conversion
from tests.support.records import frames_of

Documents = Sequence[Sequence[int]]


def documents(count, *, seed, mean=20):
    """Returns documents of ids below 60,000, none of them empty."""
    chance = random.Random(seed)
    return [
        [chance.randrange(60_000) for _ in range(1 + int(chance.expovariate(1 / mean)))]
        for _ in range(count)
    ]


def pack(
    folder,
    shards,
    *,
    length=32,
    method="concat",
    vocabulary_size=None,
    rows="packed",
    group_size=1,
):
    """Packs lists of documents, a shard for each, and returns the dataset."""
    inputs = folder / "in"
    inputs.mkdir(parents=True)
    for number, docs in enumerate(shards):
        records = [encode_example({"ids": list(doc)}) for doc in docs]
        (inputs / f"{number:05d}.tfrecord").write_bytes(frames_of(records))
    job = conversion.job_of(
        inputs,
        folder / "out",
        name="d",
        plan=("match_shards", None),
        pack=PackOptions(
            length=length,
            method=method,
            column="ids",
            vocabulary_size=vocabulary_size,
            rows=rows,
        ),
        writer=WriterOptions(group_size=group_size),
    )
    conversion.convert(job)
    return job.output
