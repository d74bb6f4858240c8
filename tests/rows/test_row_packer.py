"""The packer of rows: every token of every document is in them, once, as it was."""

from __future__ import annotations

import contextlib
import pathlib
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.packed.counts import IN_ROWS, PackedCounts, PackedSplit
from gristmill.dataset.packed.recount import RowCounter
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from gristmill.dataset.packed.segment_index import SegmentIndex
from gristmill.transforms.jobs.pack_options import (
    ChatOptions,
    PackOptions,
    TokenizerSpec,
)
from gristmill.transforms.tokens.documents import Documents, counts_of_documents
from gristmill.transforms.tokens.row_packer import RowPacker, described_rows
from gristmill.transforms.tokens.tokenizer import end_to_end
from tests.support.conversation_rows import Token, conversation, spans_of, tokens_of
from tests.support.memory import peak_memory
from tests.support.packed_shards import sources_at

METHODS = ("best-fit", "concat", "none")
DOCUMENTS = [[1, 2, 3], list(range(10, 31)), [], [4] * 8, [5, 6], [7, 8]]


def options(vocabulary_size: int = 60_000, **fields: Any) -> PackOptions:
    spec = TokenizerSpec(
        kind="ids",
        digest="",
        library="",
        vocabulary_size=vocabulary_size,
    )
    return PackOptions(found=spec, **{"length": 8} | fields)


CHAT = {"chat": ChatOptions(template="t"), "tokenizer": "t"}


def as_documents(
    documents: Sequence[Sequence[int]], *, last: int = 0, **counts: int
) -> Documents:
    encoded = end_to_end(documents)
    return Documents(*encoded, counts_of_documents(encoded, **counts), last)


def said_documents(said: list[list[Token]]) -> Documents:
    """Returns documents of which token t of document d is 20 d + t."""
    ids = [range(20 * d, 20 * d + len(tokens)) for d, tokens in enumerate(said)]
    return as_documents([*map(list, ids)])._replace(spans=spans_of(said))


def packed(
    parts: Sequence[Documents], directory: pathlib.Path, given: PackOptions
) -> tuple[list[bytes], PackedCounts, SegmentIndex]:
    """Returns the rows of documents that are added in parts, their counts and index."""
    packer = RowPacker(given, directory=str(directory))
    with contextlib.closing(packer):
        for part in parts:
            packer.add(part, sources_at(range(0, 100 * len(part.lengths), 100)))
        records = [row for rows in packer.rows() for row in rows]
        index = packer.segments()
        return records, packer.counts(), SegmentIndex.decode(index.encode(), where="x")


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("best-fit", [[1, 2, 3, *range(26, 31)], range(10, 18), range(18, 26)]),
        ("concat", [[1, 2, 3, *range(10, 15)], range(15, 23), range(23, 31)]),
        ("none", [[1, 2, 3], range(10, 18)]),
    ],
)
@pytest.mark.parametrize("rows", ["packed", "example"])
def test_rows(
    tmp_path: pathlib.Path, method: str, expected: list[Sequence[int]], rows: str
) -> None:
    given = options(method=method, rows=rows)
    records, *_ = packed([as_documents(DOCUMENTS)], tmp_path, given)
    row_format = RowFormat(8, 2, rows)
    tokens = [decode_rows(row_format, [record]).tokens.tolist() for record in records]
    assert tokens[: len(expected)] == [*map(list, expected)]
    last = [[5, 6, 7, 8]] if method != "none" else [[5, 6], [7, 8]]
    assert tokens[len(expected) :] == [[4] * 8, *last]


def test_counts_and_segments(tmp_path: pathlib.Path) -> None:
    parts = as_documents(DOCUMENTS[:3]), as_documents(DOCUMENTS[3:], text_bytes=60)
    _, counts, index = packed(parts, tmp_path, options())
    assert counts == PackedCounts(
        documents=5,
        empty_documents=1,
        tokens=36,
        pieces=7,
        padding_tokens=4,
        most_pieces=2,
        text_bytes=60,
    )
    assert index.row_ends.tolist() == [2, 3, 4, 5, 7]
    assert index.piece_documents.tolist() == [0, 1, 1, 1, 2, 3, 4]
    assert index.piece_firsts.tolist() == [0, 16, 0, 8, 0, 0, 0]
    # Documents without a token have no number.
    assert index.sources.places.tolist() == [0, 100, 0, 100, 200]
    assert index.sources.files.tolist() == [0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("method", "truncate"), [("best-fit", True), ("concat", True), ("none", False)]
)
def test_truncated_documents(
    tmp_path: pathlib.Path, method: str, truncate: bool
) -> None:
    """A document loses what is beyond a row, and with it what was added at its end."""
    documents = [[1, *document, 9, 9] for document in ([2], [3] * 6, [4] * 20)]
    part = as_documents(documents, special_tokens=9, last=2)
    given = options(method=method, truncate=truncate)
    records, counts, _ = packed([part], tmp_path, given)
    assert counts.truncated_documents == 2
    assert counts.truncated_tokens == 1 + 15
    assert counts.special_tokens == 9 - 1 - 2
    assert counts.tokens == 4 + 8 + 8
    tokens = sorted(decode_rows(RowFormat(8), records).tokens.tolist())
    assert tokens == [1] * 3 + [2] + [3] * 6 + [4] * 7 + [9] * 3


@pytest.mark.parametrize(("size", "id_bytes"), [(2**16, 2), (2**24, 3), (2**32, 4)])
def test_the_largest_ids(tmp_path: pathlib.Path, size: int, id_bytes: int) -> None:
    part = as_documents([[size - 1, 0]])
    records, *_ = packed([part], tmp_path, options(vocabulary_size=size))
    row = decode_rows(RowFormat(8, id_bytes), records)
    assert row.tokens.tolist() == [size - 1, 0]


@given(st.integers(0, 1 << 32), st.sampled_from(METHODS), st.booleans())
def test_every_token_keeps_its_place_and_message(
    tmp_path_factory: pytest.TempPathFactory, seed: int, method: str, is_chat: bool
) -> None:
    chance = random.Random(seed)
    truncate = not is_chat and chance.random() < 0.3
    given = options(method=method, truncate=truncate, **CHAT if is_chat else {})
    sizes = [chance.choice((0, 1, 3, 7, 20)) for _ in range(chance.randrange(12))]
    said = [conversation(chance, size) for size in sizes]
    documents = [list(range(20 * d, 20 * d + n)) for d, n in enumerate(sizes)]
    everything = said_documents(said) if is_chat else as_documents(documents)
    directory = tmp_path_factory.getbasetemp()
    records, counts, index = packed([everything], directory, given)
    # Added in parts of any size, they are the same.
    cuts = sorted(chance.choices(range(len(sizes) + 1), k=3))
    parts = []
    for begin, end in zip([0, *cuts], [*cuts, len(sizes)], strict=True):
        own = as_documents(documents[begin:end])
        parts.append(own._replace(spans=spans_of(said[begin:end]) if is_chat else None))
    again, same, _ = packed(parts, directory, given)
    assert (again, same) == (records, counts)
    limit = 8 if truncate or method == "none" else 20
    batch = decode_rows(RowFormat(8), records)
    tokens = np.split(batch.tokens, np.cumsum(batch.lengths)[:-1])
    whose = None if batch.spans is None else tokens_of(batch.spans, batch.lengths)
    kept = [n for n, size in enumerate(sizes) if size]
    found: dict[int, dict[int, list[int]]] = {n: {} for n in kept}
    trained = targets = 0
    for piece, document in enumerate(index.piece_documents.tolist()):
        number, first = kept[document], int(batch.firsts[piece])
        assert first == index.piece_firsts[piece]
        found[number][first] = tokens[piece].tolist()
        if whose is not None:
            own_said = said[number][first : first + len(whose[piece])]
            assert whose[piece] == own_said
            marks = [each is not None and each.trained for each in own_said]
            trained, targets = trained + sum(marks), targets + sum(marks[1:])
    for number, pieces in found.items():
        ids: list[int] = []
        for first, tokens_there in sorted(pieces.items()):
            assert first == len(ids)
            ids += tokens_there
        assert ids == documents[number][:limit]
    assert counts.tokens == sum(min(size, limit) for size in sizes)
    assert counts.tokens + counts.truncated_tokens == sum(sizes)
    assert counts.tokens + counts.padding_tokens == 8 * len(records)
    assert (counts.trained_tokens, counts.trained_targets) == (trained, targets)
    counter = RowCounter(RowFormat(8), index)
    counter.add(records)
    recounted = counter.finish()
    for name in IN_ROWS:
        assert getattr(recounted, name) == getattr(counts, name), name
    described = PackedSplit.parse(described_rows(given, counts), where="here")
    assert described.counts == counts
    assert described.supervised == (trained > 0)


@pytest.mark.slow
def test_many_documents_in_little_memory(tmp_path: pathlib.Path) -> None:
    """Memory grows with documents, by little, and not with tokens."""
    part = as_documents([[7] * 120] * 1000)
    packer = RowPacker(options(length=2048), directory=str(tmp_path))
    with peak_memory() as peak, contextlib.closing(packer):
        for number in range(100):
            packer.add(part, sources_at(range(1000 * number, 1000 * (number + 1))))
        for _ in packer.rows():
            pass
    counts = packer.counts()
    assert counts.documents == 100_000
    # 17 of 120 tokens in each row.
    assert counts.padding_tokens == -(-100_000 // 17) * 2048 - 120 * 100_000
    assert peak.bytes < 100_000 * 28 + (12 << 20)
