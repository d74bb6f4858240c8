"""The packer of conversations: spans of messages in rows, and their counts."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.packed.counts import IN_ROWS, PackedSplit
from gristmill.dataset.packed.recount import RowCounter
from gristmill.dataset.packed.row_format import RowFormat, decode_rows
from gristmill.transforms.jobs.pack_options import PackOptions, TokenizerSpec
from gristmill.transforms.tokens.documents import Documents
from gristmill.transforms.tokens.row_packer import RowPacker, described_rows
from tests.support.conversation_rows import (
    Said,
    Token,
    conversation,
    spans_of,
    tokens_of,
)
from tests.support.document_rows import sources_at

METHODS = ("best-fit", "concat", "none")
SPEC = TokenizerSpec(kind="ids", digest="", library="", vocabulary_size=60_000)


def options(**fields: Any) -> PackOptions:
    return PackOptions(found=SPEC, **{"length": 8} | fields)


def as_documents(pieces: list[list[Token]], **fields: Any) -> Documents:
    """Returns documents of which token t of document d is 20 d + t."""
    ids = [20 * d + t for d, tokens in enumerate(pieces) for t in range(len(tokens))]
    lengths = np.array([*map(len, pieces)], np.int64)
    return Documents(
        np.array(ids, np.uint32), lengths, 0, 0, spans=spans_of(pieces), **fields
    )


def packed(
    directory: pathlib.Path | str, documents: list[list[Token]], given: PackOptions
) -> tuple[RowPacker, list[bytes]]:
    packer = RowPacker(given, directory=str(directory))
    half = len(documents) // 2
    for part in (documents[:half], documents[half:]):
        packer.add(as_documents(part), sources_at(range(len(part))))
    return packer, [row for rows in packer.rows() for row in rows]


def brute_counts(documents: list[list[Token]], firsts: set[tuple[int, int]]) -> Any:
    """Returns the trained tokens of documents, and those that do not begin a piece."""
    trained = [
        (number, at)
        for number, tokens in enumerate(documents)
        for at, said in enumerate(tokens)
        if said is not None and said.trained
    ]
    return len(trained), sum(place not in firsts for place in trained)


@given(st.integers(0, 1 << 32), st.sampled_from(METHODS))
def test_every_token_keeps_its_message(seed: int, method: str) -> None:
    chance = random.Random(seed)
    given = options(method=method, truncate=chance.random() < 0.3)
    sizes = [chance.choice((0, 1, 3, 7, 20)) for _ in range(chance.randrange(7))]
    documents = [conversation(chance, size) for size in sizes]
    packer, records = packed("/tmp", documents, given)
    with packer:
        counts, index = packer.counts(), packer.segments()
    row_format = RowFormat(8)
    if given.truncate or method == "none":
        documents = [tokens[:8] for tokens in documents]
    documents = [tokens for tokens in documents if tokens]
    batch = decode_rows(row_format, records)
    firsts = set()
    if records:
        assert batch.spans is not None
        pieces = tokens_of(batch.spans, batch.lengths.tolist())
        for piece, tokens in enumerate(pieces):
            document = int(index.piece_documents[piece])
            first = int(batch.firsts[piece])
            firsts.add((document, first))
            assert tokens == documents[document][first : first + len(tokens)]
    expected = brute_counts(documents, firsts)
    assert (counts.trained_tokens, counts.trained_targets) == expected
    counter = RowCounter(row_format, index)
    counter.add(records)
    recounted = counter.finish()
    for name in IN_ROWS:
        assert getattr(recounted, name) == getattr(counts, name), name
    described = PackedSplit.parse(described_rows(given, counts), where="here")
    assert described.counts == counts
    assert described.encode()["format"] == (2 if described.supervised else 1)
    assert described.supervised == (counts.trained_tokens > 0)


DOCUMENTS: list[list[Token]] = [
    [None, Said(2, 0, False, 1.0), None, *[Said(3, 1, True, 1.0)] * 3],
]


def test_spans_for_some_documents_alone(tmp_path: pathlib.Path) -> None:
    with_spans = as_documents(DOCUMENTS[:1])
    for parts in ((None, with_spans.spans), (with_spans.spans, None)):
        with RowPacker(options(), directory=str(tmp_path)) as packer:
            packer.add(with_spans._replace(spans=parts[0]), sources_at([0]))
            with pytest.raises(ValueError, match="among others"):
                packer.add(with_spans._replace(spans=parts[1]), sources_at([0]))
    beyond = spans_of([[Said(3, 0, True, 1.0)] * 9])
    with (
        RowPacker(options(), directory=str(tmp_path)) as packer,
        pytest.raises(ValueError, match="span"),
    ):
        packer.add(with_spans._replace(spans=beyond), sources_at([0]))
