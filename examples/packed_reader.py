"""Packed rows, spans of messages and segment indexes, read with numpy alone.

`docs/reference/format.md` describes the bytes. `id_bytes` is that of the split in
`dataset.json`: 2, 3 or 4 bytes for each token.
"""

from __future__ import annotations

import itertools

import numpy as np

ROLES = (
    "system",
    "developer",
    "user",
    "assistant",
    "tool",
    "thinking",
    "tool_call",
    "other",
)


def read_row(row: bytes, id_bytes: int) -> list[tuple[int, np.ndarray]]:
    """Returns the position in its document, and the tokens, of each piece."""
    words = np.frombuffer(row[: len(row) // 4 * 4], "<u4")
    pieces, later = int(words[0]) & 0x1FFFFFFF, bool(words[0] >> 31)
    lengths = words[1 : 1 + pieces].astype(np.int64)
    firsts = words[1 + pieces : 1 + 2 * pieces] if later else np.zeros(pieces, "u4")
    n, at = int(lengths.sum()), 4 * (1 + pieces + later * pieces)
    assert len(row) == at + n * id_bytes or words[0] >> 30 & 1
    tokens = np.frombuffer(row, "<u2", n, at).astype(np.uint32)
    if id_bytes > 2:
        kind = {3: "u1", 4: "<u2"}[id_bytes]
        tokens |= np.frombuffer(row, kind, n, at + 2 * n).astype(np.uint32) << 16
    pieces_of_tokens = np.split(tokens, lengths.cumsum()[:-1])
    return list(zip(firsts.tolist(), pieces_of_tokens, strict=True))


def read_spans(row: bytes, id_bytes: int) -> list[list[tuple]]:
    """Returns the spans of each piece.

    Each has its first token, end, role, message, whether it is trained on, and weight.
    """
    words = np.frombuffer(row[: len(row) // 4 * 4], "<u4")
    word, pieces = int(words[0]), int(words[0]) & 0x1FFFFFFF
    n = int(words[1 : 1 + pieces].sum())
    at = 4 * (1 + pieces + (word >> 31) * pieces) + n * id_bytes
    if not word >> 30 & 1:
        return [[(0, int(words[1 + p]), "other", 0, True, 1.0)] for p in range(pieces)]

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while row[at] > 127:
            value, shift, at = value | (row[at] & 127) << shift, shift + 7, at + 1
        value, at = value | row[at] << shift, at + 1
        return value

    counts = [varint() for _ in range(pieces)]
    heads = row[len(row) - sum(counts) :]
    trained = sum(head >> 3 & 1 for head in heads) if word >> 29 & 1 else 0
    weights_at = len(row) - len(heads) - 4 * trained
    weights = iter(np.frombuffer(row, "<f4", trained, weights_at).tolist())
    found, rest = [], iter(heads)
    for count in counts:
        found.append([])
        end, message = 0, -1
        for head in itertools.islice(rest, count):
            length, gap, step = varint(), head >> 5, head >> 4 & 1
            if gap == 7:
                gap, step = varint(), varint()
                step = -(step + 1) // 2 if step & 1 else step // 2
            begin, message = end + gap, message + step
            end, is_trained = begin + length, bool(head >> 3 & 1)
            weight = next(weights, 1.0) if is_trained else 1.0
            found[-1].append((begin, end, ROLES[head & 7], message, is_trained, weight))
    assert at == weights_at
    return found


def read_column(data: bytes, at: int) -> tuple[np.ndarray, int]:
    """Returns the numbers of a column, and where it ends."""
    bits, far = np.frombuffer(data, "<u4", 2, at).tolist()
    count = int(np.frombuffer(data, "<u8", 1, at + 8)[0])
    which = np.frombuffer(data, "<u4", far, at + 16)
    steps_of_far = np.frombuffer(data, "<i8", far, at + 16 + 4 * far)
    at += 16 + 12 * far
    packed = np.frombuffer(data, np.uint8, -(-bits * count // 8), at)
    each = np.unpackbits(packed, count=bits * count, bitorder="little")
    numbers = each.reshape(count, bits) @ (1 << np.arange(bits, dtype=np.int64))
    steps = numbers >> 1 ^ -(numbers & 1)
    steps[which] = steps_of_far
    return np.cumsum(steps), at + len(packed)


def read_segments(path: str) -> tuple[np.ndarray, ...]:
    """Returns the columns of the segment index of a shard.

    Returns:
        Where the pieces of each row end; the document and the first token of each
        piece, row by row; the source file of each document, and its place there.
    """
    with open(path, "rb") as file:
        data = file.read()
    # Behind the header and the checksum of the sources.
    columns, at = [], 40 + 4
    for _ in range(5):
        column, at = read_column(data, at)
        columns.append(column)
    files, places, in_pieces, row, steps = columns
    owners = np.repeat(np.arange(len(files)), in_pieces)
    firsts = np.zeros(len(row), int)
    later = np.append(0, np.diff(owners)) == 0
    later[:1] = False
    firsts[later] = steps
    total = np.append(0, np.cumsum(firsts))
    begins = np.cumsum(in_pieces) - in_pieces
    firsts = total[1:] - np.repeat(total[begins], in_pieces)
    order = np.argsort(row, kind="stable")
    row_ends = np.cumsum(np.bincount(row))
    return row_ends, owners[order], firsts[order], files, places
