"""The packer of conversations: spans of messages in rows, counted and proved."""

from __future__ import annotations

import pathlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.dataset.base.errors import DataLossError
from gristmill.dataset.packed.counts import PackedSplit
from gristmill.dataset.packed.join_documents import join_documents
from gristmill.dataset.packed.message_spans import ROLES, MessageSpans
from gristmill.dataset.packed.row_format import (
    RowFormat,
    decode_rows,
    encode_rows,
)
from gristmill.transforms.jobs.pack_options import PackOptions, TokenizerSpec
from gristmill.transforms.tokens.describe_rows import described_rows
from gristmill.transforms.tokens.documents import Documents
from gristmill.transforms.tokens.row_packer import RowPacker
from tests.support.conversation_rows import (
    Said,
    Token,
    conversation,
    equal,
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
    """Returns the counts of documents, token by token.

    Args:
        documents: Those in rows.
        firsts: Document and token of the first of each piece.
    """
    found = dict.fromkeys(
        (f"{role}_{what}" for role in ROLES for what in ("tokens", "trained")), 0
    )
    found |= {f"{role}_documents": 0 for role in ROLES}
    found["trained_targets"] = 0
    for number, tokens in enumerate(documents):
        roles = set()
        for at, said in enumerate(tokens):
            if said is None:
                continue
            role = ROLES[said.role]
            roles.add(role)
            found[f"{role}_tokens"] += 1
            found[f"{role}_trained"] += said.trained
            found["trained_targets"] += said.trained and (number, at) not in firsts
        for role in roles:
            found[f"{role}_documents"] += 1
    return found


@given(
    st.integers(0, 1 << 32), st.sampled_from(METHODS), st.sampled_from([True, False])
)
def test_every_token_keeps_its_message(seed: int, method: str, packs: bool) -> None:
    chance = random.Random(seed)
    rows = "packed" if packs else "example"
    given = options(method=method, rows=rows, truncate=chance.random() < 0.3)
    sizes = [chance.choice((0, 1, 3, 7, 20)) for _ in range(chance.randrange(7))]
    documents = [conversation(chance, size) for size in sizes]
    packer, records = packed("/tmp", documents, given)
    with packer:
        packer.prove([records])
        counts, index = packer.counts(), packer.segments()
    row_format = RowFormat(8, 2, rows)
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
    for name, expected in brute_counts(documents, firsts).items():
        assert getattr(counts, name) == expected, name
    assert counts.trained_tokens <= sum(counts.role_tokens.values()) <= counts.tokens
    joined = join_documents([records], row_format=row_format, index=index)
    assert joined.counts.digest_spans == counts.digest_spans
    described = PackedSplit.parse(described_rows(given, counts), where="here")
    assert described.counts == counts
    assert described.encode()["format"] == (2 if described.supervised else 1)
    assert described.supervised == counts.is_supervised


DOCUMENTS: list[list[Token]] = [
    [None, Said(2, 0, False, 1.0), None, *[Said(3, 1, True, 1.0)] * 3],
    [None, Said(2, 0, False, 1.0), None, *[Said(3, 1, True, 0.5)] * 9],
    [None, Said(0, 0, False, 1.0), Said(2, 1, False, 1.0), Said(3, 2, True, 1.0)],
    [None, Said(0, 0, False, 1.0), Said(2, 1, False, 1.0), None],
]


def changed(name: str, at: int, value: Any) -> Callable[[MessageSpans], MessageSpans]:
    def change(spans: MessageSpans) -> MessageSpans:
        column = getattr(spans, name).copy()
        column[at] = value
        return spans._replace(**{name: column})

    return change


def shifted(spans: MessageSpans) -> MessageSpans:
    """Trains one token earlier: off by one."""
    return changed("begins", 1, spans.begins[1] - 1)(spans)


FAULTS: dict[str, Callable[[MessageSpans], MessageSpans]] = {
    "not trained": changed("trained", 1, False),
    "trained": changed("trained", 0, True),
    "another role": changed("roles", 1, 5),
    "another message": changed("messages", 1, 2),
    "another weight": changed("weights", 1, 0.25),
    "a shorter span": changed("lengths", 1, 2),
    "one token earlier": shifted,
    "no spans": lambda spans: MessageSpans.none(len(spans.ends)),
    "another begin": changed("begins", 0, 2),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_proof_finds_every_fault(tmp_path: pathlib.Path, fault: str) -> None:
    packer, records = packed(tmp_path, DOCUMENTS, options())
    with packer:
        row_format = RowFormat(8)
        batch = decode_rows(row_format, records)
        assert batch.spans is not None
        other = batch._replace(spans=FAULTS[fault](batch.spans))
        assert not equal(other.spans, batch.spans)
        with pytest.raises(DataLossError, match="not in the rows as it was packed"):
            packer.prove([encode_rows(row_format, other)])


def test_spans_of_two_documents_exchanged(tmp_path: pathlib.Path) -> None:
    documents = [DOCUMENTS[0], [None] * 2 + [Said(3, 1, True, 1.0)] * 4]
    packer, records = packed(tmp_path, documents, options())
    with packer:
        batch = decode_rows(RowFormat(8), records)
        exchanged = spans_of([documents[1], documents[0]])
        with pytest.raises(DataLossError, match="document 0"):
            packer.prove([encode_rows(RowFormat(8), batch._replace(spans=exchanged))])


def test_rows_that_lost_their_spans(tmp_path: pathlib.Path) -> None:
    packer, records = packed(tmp_path, DOCUMENTS, options())
    with packer:
        batch = decode_rows(RowFormat(8), records)
        bare = encode_rows(RowFormat(8), batch._replace(spans=None))
        with pytest.raises(DataLossError, match="spans of messages"):
            packer.prove([bare])
        with pytest.raises(DataLossError, match="spans of messages"):
            packer.prove([[*records[:1], *bare[1:]]])


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
        pytest.raises(ValueError, match="ends after its document"),
    ):
        packer.add(with_spans._replace(spans=beyond), sources_at([0]))
