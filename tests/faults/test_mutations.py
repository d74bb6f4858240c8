"""Damaged ArrayRecord files: every record given is one that was written."""

from __future__ import annotations

import collections
import functools
import itertools
import random
from collections.abc import Callable, Sequence

import pytest

from gristmill import loader
from gristmill.dataset import GristmillError, WriterOptions
from gristmill.pipelines.anywhere import index, verify
from gristmill.pipelines.options.job_options import IndexOptions
from gristmill.transforms.beam.read_ranges import FileRange
from gristmill.transforms.indexing.index_job import IndexTask, index_shard
from gristmill.transforms.sources.shards.source_split import list_shards
from gristmill.transforms.sources.source import source_of
from tests.support.conversion import convert, job_of, read_output
from tests.support.records import footer_of, write_array_records

ENCODINGS = (
    "group_size:1,zstd:3",
    "group_size:16,zstd:3",
    "group_size:4,brotli:5",
    "group_size:3,snappy",
    "group_size:1,uncompressed",
)
BLOCK_BYTES = 1 << 16


def make_records():
    """Records of many sizes, which compress and do not, for five blocks."""
    chance = random.Random(0)
    words = [chance.randbytes(chance.randint(2, 9)).hex().encode() for _ in range(300)]
    records = [
        b" ".join(chance.choices(words, k=chance.randint(5, 150))) for _ in range(120)
    ]
    records += [chance.randbytes(chance.randint(0, 3000)) for _ in range(60)]
    records += [b"", b"", bytes(5000), chance.randbytes(90_000)]
    chance.shuffle(records)
    return records


RECORDS = make_records()


def damaged(data, chance):
    """Damages a file in one place, as often in a header as anywhere else."""
    out = bytearray(data)
    at = chance.randrange(len(data))
    while not any(data[at // 64 * 64 :][:64]):  # The rest of a block says nothing.
        at = chance.randrange(len(data))
    if chance.random() < 0.5:
        begin = chance.choice(footer_of(data).chunk_offsets.tolist())
        at = min(begin + chance.randrange(40), len(data) - 1)
    kind = chance.choice(("flip", "over", "zero", "cut", "drop", "swap", "copy"))
    sizes = {"over": (1, 2, 30, 400), "swap": (4096, BLOCK_BYTES)}
    size = chance.choice(sizes.get(kind, (1, 8, 40, 512, 4096, BLOCK_BYTES)))
    end = min(at + size, len(data))
    if kind == "flip":
        out[at] ^= 1 << chance.randrange(8)
    elif kind == "over":
        out[at:end] = chance.randbytes(end - at)
    elif kind == "zero":
        out[at:end] = bytes(end - at)
    elif kind == "cut":
        del out[chance.choice((at, at // BLOCK_BYTES * BLOCK_BYTES)) :]
    elif kind == "drop":
        out[at:] = data[end:] + bytes(end - at)
    elif kind == "swap":
        a, b = (n * size for n in chance.sample(range(len(data) // size), 2))
        out[a : a + size], out[b : b + size] = out[b : b + size], out[a : a + size]
    else:
        begin = chance.randrange(len(data) - (end - at) + 1)
        out[at:end] = data[begin:][: end - at]
    return bytes(out)


Piece = Callable[[], list[tuple[int, bytes]]]
"""Reads some records, each with its number."""


def by_loader(path):
    """By batches, then record by record."""
    dataset = loader.open(path, cache_dir="")
    assert len(dataset) == len(RECORDS)
    order = random.Random(0).sample(range(len(RECORDS)), len(RECORDS))
    read: Callable[[Sequence[int]], list[tuple[int, bytes]]]
    read = lambda some: [*zip(some, dataset.read(some), strict=True)]  # noqa: E731
    for size in (8, 1):
        for begin in range(0, len(order), size):
            yield functools.partial(read, order[begin : begin + size])


def by_transform(path):
    """As `ReadArrayRecords` does, without a pipeline."""

    def read(begin, end):
        batches = [*FileRange(file, begin, end).batches()]
        return [*itertools.chain(*(zip(b.places, b.records) for b in batches))]  # noqa: B905

    (file,) = list_shards([str(path)], None)
    for cut in source_of(file.spec).cut(file, range_bytes=16 << 10):
        yield functools.partial(read, *cut)


def by_index(path):
    """With the index that `gristmill index` makes of it."""
    size = path.stat().st_size
    index_shard(IndexTask(str(path.parent), "mutated", "train", 0, path.name, size))
    yield from by_loader(path)


def by_copy(path):
    """Of a shard of a dataset, whose chunks are copied."""
    group, _, compression = ENCODING_OF[path.parent].partition(",")
    options = WriterOptions(group_size=int(group[11:]), compression=compression)
    out = path.parent.with_name(f"out-{len([*path.parent.parent.iterdir()])}")

    def read():
        convert(job_of(str(path.parent), out, writer=options))
        return [*enumerate(read_output(out))]

    yield read


def is_refused(read, path):
    """Whether a reader refuses a part; what it gives is what was written."""
    given = set()
    refused, pieces = False, read(path)
    while True:
        try:
            if (piece := next(pieces, None)) is None:
                break
            found = piece()
        except GristmillError:
            refused = True
            continue
        assert all(record == RECORDS[number] for number, record in found)
        given.update(number for number, _ in found)
    assert refused or given == {*range(len(RECORDS))}
    return refused


ENCODING_OF = {}
READERS = (by_loader, by_transform, by_index, by_copy)
every_encoding = pytest.mark.parametrize("encoding", ENCODINGS)


def refusals(encoding, seeds, folder):
    """How often each reader refused a file, undamaged for the seed 0.

    That it is not the one that was written, a verification of the dataset always finds.
    """
    shard = folder / "dataset" / "x.array_record"
    shard.parent.mkdir()
    ENCODING_OF[shard.parent] = encoding
    write_array_records(shard, RECORDS, options=encoding)
    index(IndexOptions(files=(str(shard),)), workers=1)
    good, found = shard.read_bytes(), collections.Counter()
    for seed in seeds:
        data = damaged(good, random.Random(seed)) if seed else good
        shard.write_bytes(data)
        findings = verify(str(shard.parent), workers=1).findings
        assert bool(findings) == (data != good), seed
        for read in READERS:
            path = shard if read is by_copy else folder / f"{seed}.array_record"
            path.write_bytes(data)
            found[read] += is_refused(read, path)
    return found


@pytest.mark.slow
@pytest.mark.one_in(7)
@every_encoding
def test_no_wrong_byte_and_no_raw_error(encoding, tmp_path, decoding):
    count = 6 if decoding == "compiled" else 3
    found = refusals(encoding, range(1, count + 1), tmp_path)
    assert all(found[read] > count / 2 for read in READERS)


@pytest.mark.one_in(3)
@every_encoding
def test_good_files_are_read(encoding, tmp_path):
    assert not refusals(encoding, range(1), tmp_path).total()


@pytest.mark.soak
@every_encoding
def test_thousands_of_files(encoding, tmp_path):
    refusals(encoding, range(1, 700), tmp_path)
