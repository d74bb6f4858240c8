"""Conversations as lists, to compare the spans of messages with: token by token."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gristmill.dataset.packed.message_spans import ROLES, MessageSpans


class Said(NamedTuple):
    """What is known of a token in a message."""

    role: int
    message: int
    trained: bool
    weight: float


Token = Said | None
"""None in text of the template."""


def spans_of(documents: list[list[Token]]) -> MessageSpans:
    """Returns the spans of documents, of which each token says what it is."""
    found = []
    for document in documents:
        before: Token = None
        spans: list[list] = []
        for at, said in enumerate(document):
            if said is not None and said == before:
                spans[-1][1] += 1
            elif said is not None:
                spans.append([at, 1, *said])
            before = said
        found.append([*map(tuple, spans)])
    return MessageSpans.of_documents(found)


def check_spans(spans: MessageSpans | None, lengths: Sequence[int]) -> None:
    """Checks that spans are in order, in their documents of so many tokens."""
    assert spans is not None
    assert len(spans.ends) == len(lengths)
    places = zip(*(a.tolist() for a in (spans.documents, *spans[1:4])), strict=True)
    before = dict.fromkeys(range(len(lengths)), 0)
    for document, begin, length, role in places:
        assert before[document] <= begin < begin + length <= lengths[document]
        assert role < len(ROLES)
        before[document] = begin + length


def tokens_of(spans: MessageSpans, lengths: list[int]) -> list[list[Token]]:
    """Returns what each token of the documents is, span by span."""
    check_spans(spans, lengths)
    found: list[list[Token]] = [[None] * length for length in lengths]
    documents = spans.documents.tolist()
    for number, document in enumerate(documents):
        _, begin, length, role, message, trained, weight = (
            int(spans.ends[document]),
            *(column[number].item() for column in spans.columns),
        )
        for at in range(begin, begin + length):
            found[document][at] = Said(role, message, trained, weight)
    return found


def equal(one: MessageSpans | None, other: MessageSpans | None) -> bool:
    """Returns whether two have the same values of the same types."""
    if one is None or other is None:
        return one is other
    return all(
        a.dtype == b.dtype and np.array_equal(a, b)
        for a, b in zip(one, other, strict=True)
    )


def conversation(
    chance: random.Random, length: int, *, weights: bool = True
) -> list[Token]:
    """Returns a document of so many tokens, in runs."""
    tokens: list[Token] = []
    message = 0
    while len(tokens) < length:
        said: Token = None
        if chance.random() < 0.7:
            message = chance.choice((message, message + 1, chance.randrange(1 << 32)))
            message = min(message, (1 << 32) - 1)
            trained = chance.random() < 0.5
            weight = chance.choice((1.0, 1.0, 0.5, 0.0)) if weights and trained else 1.0
            said = Said(chance.randrange(len(ROLES)), message, trained, weight)
            message = message if message < 99 else 0
        tokens += [said] * chance.choice((1, 2, chance.randint(1, length)))
    return tokens[:length]
