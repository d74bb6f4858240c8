"""Damaged chunks, decoded by the compiled part and by Python: a program.

    python -m tests.storage.fuzz_chunks MODULE SEED COUNT

MODULE is a compiled part to try instead of the installed one, such as one with a
sanitizer. It prints how many cases the compiled part left to Python.
"""

import importlib.util
import os
import random
import struct
import sys

import google_crc32c
import numpy as np

from gristmill.dataset import WriterOptions
from gristmill.dataset.arrayrecord import compiled
from gristmill.dataset.arrayrecord.chunk_hash import hash_bytes
from gristmill.dataset.arrayrecord.chunks import (
    CHUNK_ERRORS,
    CHUNKS,
    WANTED,
    EncodedChunks,
    check_blocks,
    logical,
)
from gristmill.dataset.arrayrecord.file_writer import ChunkEncoder
from tests.storage.chunks import BLOCK_BYTES, chunk, hashed
from tests.support.records import text_records

LEVELS = ("zstd:1", "zstd:19", "uncompressed")
# The most records of a chunk, and the most bytes of each.
SIZES = ((1, 0), (1, 40), (2, 9), (5, 300), (16, 2000), (300, 3))


def bases(chance):
    """Returns records, and the chunk that holds them: of every kind and size."""
    found = []
    for count, size in SIZES:
        text = b" ".join(text_records(40, seed=count)) * 9
        places = (chance.randrange(len(text) // 9) for _ in range(count))
        records = [text[at : at + chance.randint(0, size)] for at in places]
        found += [(records, chunk(records, compression=c)) for c in "\0zb"]
        found += [encoded(records, level) for level in LEVELS]
    return [*found, encoded([chance.randbytes(60_000) for _ in range(5)], "zstd:3")]


def encoded(records, level):
    """Returns records, and the chunk that our writer makes of them."""
    options = WriterOptions(group_size=len(records), compression=level)
    lengths = np.array([*map(len, records)])
    return records, bytes(ChunkEncoder(options).encode(records, lengths).data)


def damaged(data, chance):
    """Returns a chunk with some damage, hashes usually right for it."""
    bad = bytearray(data)
    for _ in range(chance.choice((0, 0, 1, 1, 3))):
        # Mostly where sizes are: in the header, and in the first bytes of parts.
        at = min(chance.choice((chance.randrange(90), len(bad))), len(bad) - 1)
        at = chance.randrange(at + 1) if chance.random() < 0.5 else at
        flipped, other = bad[at] ^ 1 << chance.randrange(8), chance.randrange(256)
        size, new = chance.choice(
            [
                (1, bytes([flipped])),
                (1, bytes([chance.choice((0, 1, 0x7F, 0x80, 0xFF, other))])),
                (chance.randint(1, 9), b""),
                (0, chance.choice((b"\xff" * 9, b"\x80\x01", chance.randbytes(3)))),
            ]
        )
        bad[at : at + size] = new
        bad.extend(bytes(max(0, 42 - len(bad))))
    if chance.random() < 0.8:
        size = len(bad) - 40 if chance.random() < 0.8 else chance.randrange(len(bad))
        words = [size, hash_bytes(bytes(bad[40 : 40 + size]))]
        bad[:40] = hashed(struct.pack("<2Q", *words) + bytes(bad[24:40]))
    cut = chance.randrange(1, len(bad)) if chance.random() < 0.05 else len(bad)
    return bytes(bad[:cut])


def physical(data, begin):
    """Returns the bytes of a file that has a short chunk at an offset."""

    rest = -begin % BLOCK_BYTES
    header = hashed(struct.pack("<2Q", 0, len(data)))
    return data[:rest] + header + data[rest:] if rest < len(data) else data


def check(chance, whole):
    """Compares the two decoders on one case; returns whether Python alone decoded."""

    records, data = chance.choice(whole)
    bad = damaged(data, chance)
    begin = 0
    how = chance.choice(("buffer", "pieces", "file"))
    if how != "buffer" and len(bad) < 5000:
        begin = chance.choice((64, 65_536, 65_536 - chance.randrange(1, len(bad) + 1)))
        bad = physical(bad, begin)
    count = len(records) + (chance.random() < 0.05)
    table = np.zeros(1, CHUNKS)
    limit = 1 << 31 if chance.random() < 0.9 else chance.randrange(5000)
    compared = chance.random() < 0.3
    table[0] = (0, begin, begin + len(bad), count, limit, compared)
    rows = sorted(chance.randrange(count) for _ in range(chance.choice((1, 1, 3))))
    wanted = np.zeros(len(rows), WANTED)
    wanted["row"], wanted["place"] = rows, chance.sample(range(len(rows)), len(rows))
    wanted["crc32c"] = [
        google_crc32c.value(records[row])
        if row < len(records) and chance.random() < 0.3
        else -1
        for row in rows
    ]
    out = [None] * len(rows)
    descriptor = os.memfd_create("chunk")
    os.pwrite(descriptor, bad, begin)
    given = {"buffer": bad, "pieces": [bad], "file": None}[how]
    left = compiled.part.pick(np.array([descriptor]), given, table, wanted, out)
    os.close(descriptor)
    part, compiled.part = compiled.part, None
    bare = logical(bad, begin) if how != "buffer" else bad
    table["begin"], table["end"] = 0, len(bare)
    try:
        if compared and how != "buffer":
            check_blocks(bad, begin)
        encoded = EncodedChunks(bare, table, path="fuzzed")
        decoded = encoded.decode()
        expected = [decoded[row] for row in rows]
        sums = encoded.checksum()
    except (*CHUNK_ERRORS, ValueError) as e:
        expected, sums = e, None
    finally:
        compiled.part = part
    if not left:
        # Of a long chunk, the compiled part does not look at the rest.
        if len(data) < 200_000 or not isinstance(expected, Exception):
            assert [out[place] for place in wanted["place"]] == expected
    else:
        assert (left, out) == ([0], [None] * len(rows))
    lengths = np.empty(count, np.int64)
    if part.checksum(bare, table, np.empty(0, np.uint32), lengths):
        assert sums is None or np.array_equal(lengths, sums[1])
    columns = np.empty(count, np.uint32), np.empty(count, np.int64)
    if part.checksum(bare, table, *columns):
        assert sums is not None
        assert all(map(np.array_equal, columns, sums))
    return bool(left)


def main():
    """See above."""
    path, seed, count = sys.argv[1:]
    spec = importlib.util.spec_from_file_location("_compiled", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    compiled.part = compiled.prepared(module)
    chance = random.Random(int(seed))
    whole = bases(chance)
    left = sum(check(chance, whole) for _ in range(int(count)))
    print(f"{left} of {count} left to Python")


if __name__ == "__main__":
    main()
