"""Riegeli chunks and ArrayRecord files made by hand, to lie in any field of them."""

import struct

import cramjam
import zstandard

from gristmill.dataset.arrayrecord.chunk_hash import hash_bytes

BLOCK_BYTES = 1 << 16
FIRST_CHUNK = 64  # After the file's signature.
MAGIC = 0x71930E704FDAE05E


def varint(value):
    """Returns a number as protocol buffers and Riegeli write it."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def message(fields):
    """Returns a protocol buffer message of varints and byte strings."""
    out = b""
    for number, value in fields:
        if isinstance(value, bytes):
            out += varint(number << 3 | 2) + varint(len(value)) + value
        else:
            out += varint(number << 3) + varint(value)
    return out


def part(data, compression, *, claims=None):
    """Returns one compressed part of a chunk, which may lie about its size."""
    if compression == "\0":
        return data
    if compression == "z":
        packed = zstandard.ZstdCompressor(write_content_size=False).compress(data)
    elif compression == "b":
        packed = bytes(cramjam.brotli.compress(data, 3))
    else:
        packed = bytes(cramjam.snappy.compress_raw(data))
    return varint(len(data) if claims is None else claims) + packed


def chunk(
    records,
    *,
    compression="\0",
    kind="r",
    record_count=None,
    decoded_bytes=None,
    sizes=None,
    sizes_claim=None,
    values_claim=None,
    sizes_bytes=None,
    frame=None,
):
    """Returns a chunk; every argument after the compression overrides a true field.

    A `frame` is the records compressed by zstd elsewhere. The two hashes are right for
    what the chunk says.
    """
    if frame is not None:
        compression = "z"
    if sizes is None:
        sizes = b"".join(varint(len(record)) for record in records)
    packed_sizes = part(sizes, compression, claims=sizes_claim)
    body = compression.encode()
    body += varint(len(packed_sizes) if sizes_bytes is None else sizes_bytes)
    body += packed_sizes
    if frame is None:
        body += part(b"".join(records), compression, claims=values_claim)
    else:
        body += varint(sum(map(len, records))) + frame
    count = len(records) if record_count is None else record_count
    total = sum(map(len, records)) if decoded_bytes is None else decoded_bytes
    words = (len(body), hash_bytes(body), count << 8 | ord(kind), total)
    return hashed(struct.pack("<4Q", *words)) + body


def hashed(header):
    """Returns the rest of a header with its hash before it."""
    return struct.pack("<Q", hash_bytes(header)) + header


def footer_entry(offset, decoded_bytes, records):
    """Returns the footer's record of one chunk."""
    return message([(1, offset), (2, decoded_bytes), (3, records)])


def footer_metadata(chunks, records, options=b"group_size:1"):
    """Returns the footer's first record."""
    return message([(1, message([(1, 1), (2, chunks), (3, records), (4, options)]))])


def array_record_file(chunks, footer, *, postscript=None, footer_chunk=None):
    """Returns a file of two blocks: chunks, and a footer of these records."""
    data = bytes(FIRST_CHUNK) + b"".join(chunks)
    footer_at = len(data)
    if postscript is None:
        postscript = message([(1, len(data)), (2, MAGIC)])
    data += chunk(footer) if footer_chunk is None else footer_chunk
    if len(data) > BLOCK_BYTES:
        raise ValueError("too much for one block")
    # Of the last block, which begins in the chunk that ends where the block ends.
    header = hashed(struct.pack("<QQ", BLOCK_BYTES - footer_at, BLOCK_BYTES))
    tail = header + chunk([postscript])
    return data.ljust(BLOCK_BYTES, b"\0") + tail.ljust(BLOCK_BYTES, b"\0")
