"""A reader of datasets in one file, with numpy and the codecs, without gristmill.

    python examples/reader.py DATASET [SPLIT [EDITION]]

It follows docs/reference/format.md alone, as a start for readers in other languages.
"""

import io
import itertools
import json
import pathlib
import struct
import sys

import brotli
import cramjam
import numpy as np
import zstandard

BLOCK = 65_536  # Bytes of a block of a shard; the first 24 are its header.


def require(condition, path, problem):
    """Raises ValueError, which names a file, unless a condition holds."""
    if not condition:
        raise ValueError(f"{path}: {problem}")


CRCS = np.arange(256, dtype=np.uint32)  # The CRC-32C of every byte.
for _ in range(8):
    CRCS = CRCS >> 1 ^ 0x82F63B78 * (CRCS & 1)
CRCS = CRCS.tolist()


def crc32c(data):
    """Returns the CRC-32C of bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = CRCS[(crc ^ byte) & 255] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def records_digest(records):
    """Returns the digest of records, as in `dataset.json`."""
    words = [crc32c(record) | len(record) << 32 for record in records]
    lanes = []
    for key in (0xBB67AE8584CAA73B, 0x6A09E667F3BCC908):
        z = np.array(words, np.uint64) + np.uint64(key)
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9
        z = (z ^ z >> 27) * 0x94D049BB133111EB
        lanes.append(f"{(z ^ z >> 31).sum():016x}")
    return "".join(lanes)


def read_varint(data, at=0):
    """Returns the number at a place, and the place after it."""
    value = shift = 0
    while data[at] > 127:
        value, shift, at = value | (data[at] & 127) << shift, shift + 7, at + 1
    return value | data[at] << shift, at + 1


def decompress(kind, part):
    """Returns the bytes that a part of a chunk decodes to."""
    if kind == 0:
        return part
    size, at = read_varint(part)
    if kind == ord("z"):
        return zstandard.ZstdDecompressor().decompress(part[at:], max_output_size=size)
    if kind == ord("s"):
        return bytes(cramjam.snappy.decompress_raw(part[at:]))
    return brotli.decompress(part[at:])


def origin_of(number, part):
    """Returns the edition that the records of an edition came with."""
    removed = part.get("removed")
    while removed:
        number, removed = removed["edition"], removed.get("before")
    return number


def state_of(split, edition):
    """Returns the editions of a split when one was the newest, None for now."""
    for state in [split, *reversed(split.get("replaced", []))]:
        parts = state.get("editions", [state])
        numbers = [part.get("edition", place) for place, part in enumerate(parts, 1)]
        for count in range(len(parts), 0, -1):
            newest = max(numbers[:count])
            rest = map(origin_of, numbers[count:], parts[count:])
            if edition is None or newest == edition < min(rest, default=edition + 1):
                return parts[:count]
    raise ValueError(f"no state is known in which edition {edition} was the newest")


def read_table(root, part):
    """Yields (path, records, bytes) of the shards of an edition."""
    path = check_path(root, part["table"])
    data = path.read_bytes()
    whole = len(data) == part["table_bytes"] and crc32c(data) == part["table_crc32c"]
    require(whole, path, "another size or checksum than dataset.json has")
    table = np.load(io.BytesIO(data), allow_pickle=False)
    require(table["version"] == 1, path, "a table of another version")
    columns = [table[name].tolist() for name in ("path_ends", "records", "file_bytes")]
    begins, blob = [0, *columns[0]], table["path_blob"].tobytes()
    for begin, end, records, size in zip(begins, *columns, strict=False):
        yield blob[begin:end].decode(), records, size


def check_path(root, name):
    """Returns the path of a file of the dataset; refuses one outside."""
    bad = {"", ".", ".."} & {*name.split("/")} or "\\" in name or "\0" in name
    require(not bad and "://" not in name, root / "dataset.json", f"path {name!r}")
    return root / name


def read_index(path, records, size):
    """Returns the start of each chunk and their end, their first records, checksums."""
    data = path.read_bytes().ljust(80)
    version, group = np.frombuffer(data, "<u4", 2, 8).tolist()
    stride, _, body_crc, head_crc = np.frombuffer(data, "<u4", 4, 56).tolist()
    whole = data[:8] == b"GMINDEX\n" and crc32c(data[:68]) == head_crc
    require(whole and version == 1, path, "a damaged header, or another version")
    counted, chunks, end, file_bytes, _ = np.frombuffer(data, "<i8", 5, 16).tolist()
    body = data[80 : len(data) - int.from_bytes(data[72:80], "little")]
    ours = (counted, file_bytes, crc32c(body)) == (records, size, body_crc)
    require(ours, path, "a damaged body, or of another shard")
    at = 80 + 8 * -(-chunks // stride)
    bases = np.frombuffer(data[80:at], "<i8")
    firsts = np.arange(chunks) * group
    if not group:
        firsts = np.frombuffer(data, "<i8", chunks, at)
        at += 8 * chunks
    offsets = bases.repeat(stride)[:chunks] + np.frombuffer(data, "<u4", chunks, at)
    crcs = np.frombuffer(data, "<u4", records, at + 4 * chunks).tolist()
    return [*offsets.tolist(), end], [*firsts.tolist(), records], crcs


def read_chunk(data, begin, end, count):
    """Returns the records of a chunk; raises an error of any kind at damage."""
    cuts = range(begin // BLOCK * BLOCK, end, BLOCK)
    chunk = b"".join(data[max(a + 24, begin) : min(a + BLOCK, end)] for a in cuts)
    size, kind, decoded = struct.unpack_from("<8xQ8xQQ", chunk)
    if kind != ord("r") | count << 8 or 40 + size > len(chunk):
        raise ValueError("the header of the chunk")
    body, compression = chunk[40 : 40 + size], chunk[40]
    cut, at = read_varint(body, 1)
    sizes = decompress(compression, body[at : at + cut])
    values = decompress(compression, body[at + cut :])
    ends, at = [0], 0
    for _ in range(count):
        length, at = read_varint(sizes, at)
        ends.append(ends[-1] + length)
    if at != len(sizes) or ends[-1] != len(values) or len(values) != decoded:
        raise ValueError("the sizes of the records")
    return [values[a:b] for a, b in itertools.pairwise(ends)]


def read_shard(path, index, records, size):
    """Yields the records of a shard, each compared with its checksum."""
    offsets, firsts, crcs = read_index(index, records, size)
    data = path.read_bytes()
    require(len(data) == size, path, f"{size} bytes expected, {len(data)} found")
    spans = zip(itertools.pairwise(offsets), itertools.pairwise(firsts), strict=True)
    for (begin, end), (first, last) in spans:
        try:
            chunk = read_chunk(data, begin, end, last - first)
        except Exception as error:
            raise ValueError(f"{path}: a damaged chunk at byte {begin}") from error
        for record, crc in zip(chunk, crcs[first:last], strict=True):
            require(crc32c(record) == crc, path, f"a damaged record at byte {begin}")
            yield record


def read(dataset, split, edition=None):
    """Returns the records of a split in order, now or as of an edition."""
    root, found = pathlib.Path(dataset), []
    for part in state_of(read_metadata(root)["splits"][split], edition):
        for path, records, size in read_table(root, part):
            index = check_path(root, f"index/{path}.index")
            found += read_shard(check_path(root, path), index, records, size)
    return found


def read_metadata(root):
    """Returns `dataset.json`."""
    path = root / "dataset.json"
    text = path.read_text("utf-8").strip()
    require(text[-1:] == "}", path, "not a whole JSON object")
    fields = json.loads(text)
    kind = fields.get("format"), fields.get("format_version")
    require(kind == ("gristmill.dataset", 1), path, "of another version")
    return fields


if __name__ == "__main__":
    _, path, *state = sys.argv
    for split in state[:1] or read_metadata(pathlib.Path(path))["splits"]:
        found = read(path, split, *map(int, state[1:]))
        print(split, len(found), records_digest(found))
