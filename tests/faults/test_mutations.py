"""Damaged ArrayRecord files: every record given is one that was written."""

import collections
import functools
import itertools
import random

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
from tests.support.records import footer_of, text_records, write_array_records

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
    records = [chance.randbytes(chance.randint(0, 3000)) for _ in range(60)]
    records += [b"", b"", bytes(5000), chance.randbytes(90_000)]
    records += text_records(150)
    chance.shuffle(records)
    return records


RECORDS = make_records()


def damaged(data, chance):
    """Damages a file in one place, as often in a header as anywhere else."""
    out, size = bytearray(data), chance.choice((1, 8, 40, 512, 4096, BLOCK_BYTES))
    at, other = (chance.randrange(len(data) - size) for _ in range(2))
    if chance.random() < 0.5:
        begins = footer_of(data).chunk_offsets.tolist()
        at = min(chance.choice(begins) + chance.randrange(40), len(data) - size)
    while not any(data[at : at + 64]):  # The rest of a block says nothing.
        at = chance.randrange(len(data) - size)
    end = at + size
    here, there = data[at:end], data[other : other + size]
    kind = chance.choice(("flip", "over", "zero", "cut", "drop", "swap", "copy"))
    if kind == "flip":
        out[at] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del out[chance.choice((at, at // BLOCK_BYTES * BLOCK_BYTES)) :]
    elif kind == "drop":
        out[at:] = data[end:] + bytes(size)
    else:
        others = {"over": chance.randbytes(size), "zero": bytes(size)}
        out[at:end] = others.get(kind, there)
        if kind == "swap":
            out[other : other + size] = here
    return bytes(out)


def by_loader(path):
    """By batches, then record by record."""
    dataset = loader.open(path, cache_dir="")
    assert len(dataset) == len(RECORDS)
    order = random.Random(0).sample(range(len(RECORDS)), len(RECORDS))

    def read(some):
        return [*zip(some, dataset.read(some), strict=True)]

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
    """Whether a reader refuses a part; what it gives is what was written.

    A reader yields functions that read some records, each with its number.
    """
    given, refused, pieces = set(), False, read(path)
    while True:
        try:
            if (piece := next(pieces, None)) is None:
                break
            found = piece()
        except GristmillError:
            refused = True
            continue
        for number, record in found:
            # Without checksums of records, a file does not tell a whole chunk that lies
            # exactly where another one was; with those of its index, `verify` does.
            whole = record in RECORDS and read in (by_loader, by_index)
            assert record == RECORDS[number] or whole
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
            refused = is_refused(read, path)
            assert data != good or not refused
            found[read] += refused
    return found


@pytest.mark.slow
@pytest.mark.one_in(7)
@every_encoding
def test_no_wrong_byte_and_no_raw_error(encoding, tmp_path, decoding):
    count = 6 if decoding == "compiled" else 3
    found = refusals(encoding, range(count + 1), tmp_path)
    assert all(found[read] > count / 2 for read in READERS)


@pytest.mark.soak
@every_encoding
def test_thousands_of_files(encoding, tmp_path):
    refusals(encoding, range(1, 700), tmp_path)
