"""Plain ArrayRecord files that are damaged by seeded chance, and readers of them.

Files of five encodings, from the official writer, are damaged in one place each. The
official reader, the loader and `ReadArrayRecords` read all of each, in small parts, and
so does the loader after `gristmill index`. A reader may give the records as they were
written, or refuse.
"""

from __future__ import annotations

import functools
import itertools
import pathlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gristmill import loader
from gristmill.dataset import GristmillError
from gristmill.dataset.arrayrecord.footer import Footer, chunk_ranges, read_footer
from gristmill.transforms.beam.read_ranges import FileRange
from gristmill.transforms.indexing.index_job import IndexTask, index_shard
from gristmill.transforms.sources.shards.source_split import list_shards
from gristmill.transforms.sources.source import source_of

_BLOCK_BYTES = 1 << 16
_CHUNK_HEADER_BYTES = 40
# Small, so that the rest is read although some records are refused.
_BATCH = 8
_RANGE_BYTES = 16 << 10

ENCODINGS = (
    "group_size:1,zstd:3",
    "group_size:16,zstd:3",
    "group_size:4,brotli:5",
    "group_size:3,snappy",
    "group_size:1,uncompressed",
)
"""The options of the official writer."""

READERS = ("official reader", "loader", "`ReadArrayRecords`", "`index`, then loader")
OUTCOMES = ("same", "refused", "wrong", "other")
"""What may come of a reading; the last is an error that is not gristmill's own."""


def make_records(seed: int = 0) -> list[bytes]:
    """Returns records of many sizes, which compress and do not, for five blocks."""
    chance = random.Random(seed)
    words = [chance.randbytes(chance.randint(2, 9)).hex().encode() for _ in range(300)]
    records = [
        b" ".join(chance.choices(words, k=chance.randint(5, 150))) for _ in range(120)
    ]
    records += [chance.randbytes(chance.randint(0, 3000)) for _ in range(60)]
    records += [b"", b"", bytes(5000), chance.randbytes(90_000)]
    chance.shuffle(records)
    return records


def write_file(path: pathlib.Path, records: Sequence[bytes], options: str) -> None:
    """Writes a file with the official writer."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()


class Mutator:
    """Damages a good file in one place, by chance.

    Args:
      data: The file.
      headers: Where its chunks begin, the footer and the postscript included.
    """

    def __init__(self, data: bytes, headers: Sequence[int]):
        """Changes nothing yet."""
        self._data, self._headers = data, headers
        # The rest of the last blocks is zeros, which say nothing.
        self._used = [
            at
            for begin in range(0, len(data), 64)
            if any(data[begin : begin + 64])
            for at in range(begin, begin + 64)
        ]

    def damage(self, seed: int) -> tuple[str, bytes]:
        """Returns the mutation, and the damaged bytes."""
        chance = random.Random(seed)
        kind = chance.choice(tuple(KINDS))
        damaged = bytearray(self._data)
        # As often in a header as anywhere else: few bytes decide what is read.
        at = chance.choice(self._used)
        if chance.random() < 0.5:
            begin = chance.choice(self._headers)
            at = min(begin + chance.randrange(_CHUNK_HEADER_BYTES), len(damaged) - 1)
        KINDS[kind](damaged, at, chance)
        return kind, bytes(damaged)


def _flip(data: bytearray, at: int, chance: random.Random) -> None:
    data[at] ^= 1 << chance.randrange(8)


def _change(data: bytearray, at: int, chance: random.Random) -> None:
    data[at] = chance.randrange(256)


def _overwrite(data: bytearray, at: int, chance: random.Random) -> None:
    size = min(chance.randint(2, 400), len(data) - at)
    data[at : at + size] = chance.randbytes(size)


def _zero(data: bytearray, at: int, chance: random.Random) -> None:
    size = min(chance.choice((8, 512, 4096, _BLOCK_BYTES)), len(data) - at)
    data[at : at + size] = bytes(size)


def _truncate(data: bytearray, at: int, chance: random.Random) -> None:
    del data[chance.choice((at, at // _BLOCK_BYTES * _BLOCK_BYTES)) :]


def _remove(data: bytearray, at: int, chance: random.Random) -> None:
    """Removes bytes, and keeps the size of the file."""
    size = min(chance.choice((1, 24, 40, _BLOCK_BYTES)), len(data) - at)
    del data[at : at + size]
    data += bytes(size)


def _swap(data: bytearray, at: int, chance: random.Random) -> None:
    """Exchanges two blocks, of the file system or of the format."""
    size = chance.choice((4096, _BLOCK_BYTES))
    a, b = chance.sample(range(len(data) // size), 2)
    first, second = slice(a * size, a * size + size), slice(b * size, b * size + size)
    data[first], data[second] = data[second], data[first]


def _copy(data: bytearray, at: int, chance: random.Random) -> None:
    """Writes a part of the file over another part of it."""
    size = min(chance.choice((8, 40, 512, 4096)), len(data) - at)
    begin = chance.randrange(len(data) - size)
    data[at : at + size] = data[begin : begin + size]


KINDS: dict[str, Callable[[bytearray, int, random.Random], None]] = {
    "one bit flipped": _flip,
    "one byte changed": _change,
    "bytes overwritten": _overwrite,
    "bytes zeroed": _zero,
    "file truncated": _truncate,
    "bytes removed": _remove,
    "blocks exchanged": _swap,
    "bytes of another place": _copy,
}


def footer_of(path: str) -> Footer:
    """Returns the footer of a local file."""
    data = pathlib.Path(path).read_bytes()
    return read_footer(lambda begin, end: data[begin:end], len(data), path=path)


Pieces = Iterator[tuple[Sequence[int], Callable[[], Sequence[bytes]]]]
"""Numbers of records, and what reads them."""


def _in_batches(
    count: int, read: Callable[[list[int]], Sequence[bytes]], size: int
) -> Pieces:
    """Yields all numbers in random order, so many at a time."""
    order = random.Random(0).sample(range(count), count)
    for begin in range(0, count, size):
        batch = order[begin : begin + size]
        yield batch, functools.partial(read, batch)


def read_officially(path: str) -> tuple[int, Pieces]:
    """Reads with the official reader, as its data source does."""
    from array_record.python.array_record_module import ArrayRecordReader

    def opened() -> Any:
        return ArrayRecordReader(path, options="readahead_buffer_size:0")

    reader = opened()

    def read(batch: list[int]) -> Sequence[bytes]:
        nonlocal reader
        try:
            return list(reader.read(batch))
        except Exception:
            reader = opened()  # After an error it reads nothing else.
            raise

    count = reader.num_records()
    if not reader.ok():
        # Of a file whose end it cannot read it says no more than that.
        raise ValueError("it is not ok, and has no records")
    return count, _in_batches(count, read, _BATCH)


def read_with_loader(path: str) -> tuple[int, Pieces]:
    """Reads with the loader: batches, then record by record."""
    dataset = loader.open(path, cache_dir="")
    batches = _in_batches(len(dataset), dataset.read, _BATCH)
    singly = _in_batches(len(dataset), lambda batch: [dataset[batch[0]]], 1)
    return len(dataset), itertools.chain(batches, singly)


def read_with_transform(path: str) -> tuple[int, Pieces]:
    """Reads as `ReadArrayRecords` does, without a pipeline."""
    (file,) = list_shards([path], None)
    footer = footer_of(path)
    ends = np.cumsum(footer.chunk_records)

    def pieces() -> Pieces:
        cuts = source_of(file.spec).cut(file, range_bytes=_RANGE_BYTES)
        chunks = chunk_ranges(footer, range_bytes=_RANGE_BYTES)
        for cut, (first, last) in zip(cuts, chunks, strict=True):
            begin = int(ends[first] - footer.chunk_records[first])
            yield (
                range(begin, int(ends[last - 1])),
                lambda cut=cut: [
                    record
                    for batch in FileRange(file, *cut).batches()
                    for record in batch.records
                ],
            )

    return footer.records, pieces()


def index_and_read(path: str) -> tuple[int, Pieces]:
    """Indexes a file, and reads it with its index."""
    place = pathlib.Path(path)
    size = place.stat().st_size
    index_shard(IndexTask(str(place.parent), "mutated", "train", 0, place.name, size))
    return read_with_loader(path)


def outcome(
    read: Callable[[str], tuple[int, Pieces]], path: str, records: Sequence[bytes]
) -> tuple[str, str]:
    """Returns the outcome of a reading, one of `OUTCOMES`, and an error.

    Every record that is given must be the one that was written, also where others are
    refused.
    """
    result, message = "same", ""
    pieces: Pieces = iter(())
    try:
        count, pieces = read(path)
        if count != len(records):
            return "wrong", f"{count:,} records"
    except Exception as e:
        result, message = _error(e)
    for numbers, get in pieces:
        try:
            got = get()
        except Exception as e:
            found, message = _error(e)
            result = found if result != "other" else result
        else:
            if list(got) != [records[number] for number in numbers]:
                return "wrong", f"records {numbers}"
    return result, message


def _error(error: Exception) -> tuple[str, str]:
    kind = "refused" if isinstance(error, GristmillError) else "other"
    return kind, f"{type(error).__name__}: {error}"


READS = dict(
    zip(
        READERS,
        (read_officially, read_with_loader, read_with_transform, index_and_read),
        strict=True,
    )
)


def run_mutations(
    encoding: str, seeds: Sequence[int], folder: pathlib.Path
) -> Iterator[tuple[int, str, dict[str, tuple[str, str]]]]:
    """Damages a file of one encoding by each seed, and lets everybody read it.

    Args:
      encoding: One of `ENCODINGS`.
      seeds: Seeds of the damage.
      folder: For the files; empty.

    Yields:
      The seed, what was done, and the outcome of each reader.
    """
    records = make_records()
    good = folder / "good.array_record"
    write_file(good, records, encoding)
    data = good.read_bytes()
    begins = footer_of(str(good)).chunk_offsets.tolist()
    mutator = Mutator(data, [*begins, len(data) - _BLOCK_BYTES + 24])
    for seed in seeds:
        kind, damaged = mutator.damage(seed)
        path = folder / f"{seed}.array_record"
        path.write_bytes(damaged)
        found = {
            name: outcome(read, str(path), records) for name, read in READS.items()
        }
        if found[READERS[0]][0] == "other":  # It has no errors of ours.
            found[READERS[0]] = ("refused", found[READERS[0]][1])
        yield seed, kind, found
        path.unlink()
        (folder / "index" / f"{path.name}.index").unlink(missing_ok=True)
