"""Rows of tokens and their messages as lists, made at random and taken apart again."""

import itertools
from typing import NamedTuple

import numpy as np

from gristmill.dataset.packed.message_spans import ROLES, MessageSpans
from gristmill.dataset.packed.row_format import MAX_POSITIONS, RowBatch


class Said(NamedTuple):
    """What is known of a token in a message; text of the template has None instead."""

    role: int
    message: int
    trained: bool
    weight: float


def batch_of(rows, said=None):
    """Takes the pieces of each row: the position of its first token, and its tokens."""
    pieces = [piece for row in rows for piece in row]
    return RowBatch(
        np.cumsum([len(row) for row in rows], dtype=np.int64),
        np.array([len(ids) for _, ids in pieces], np.uint32),
        np.array([first for first, _ in pieces], np.uint32),
        np.array([token for _, ids in pieces for token in ids], np.uint32),
        None if said is None else spans_of(said),
    )


def rows_of(batch):
    tokens = np.split(batch.tokens, np.cumsum(batch.lengths)[:-1])
    firsts = batch.firsts.tolist()
    pieces = [(first, ids.tolist()) for first, ids in zip(firsts, tokens, strict=False)]
    ends = [0, *batch.row_ends.tolist()]
    return [pieces[begin:end] for begin, end in itertools.pairwise(ends)]


def some_rows(chance, length, id_bytes=2):
    most, rows = (1 << 8 * id_bytes) - 1, []
    for _ in range(chance.randrange(5)):
        left, row = length, []
        while left and (not row or chance.random() < 0.6):
            size = chance.randint(1, left)
            first = chance.choice((0, 0, 5, MAX_POSITIONS - size))
            ids = [
                chance.choice((0, most, chance.randint(0, most))) for _ in " " * size
            ]
            row.append((first, ids))
            left -= size
        rows.append(row)
    return rows


def spans_of(documents):
    """Returns the spans of documents, of which each token says what it is."""
    found = []
    for document in documents:
        before, spans = None, []
        for at, said in enumerate(document):
            if said is not None and said == before:
                spans[-1][1] += 1
            elif said is not None:
                spans.append([at, 1, *said])
            before = said
        found.append([*map(tuple, spans)])
    return MessageSpans.of_documents(found)


def tokens_of(spans, lengths):
    """Returns what each token of documents is; spans are in order, and in these."""
    assert len(spans.ends) == len(lengths)
    found, before = [[None] * length for length in lengths], {}
    columns = (spans.documents, *spans.columns)
    for document, begin, length, role, *more in zip(
        *(column.tolist() for column in columns), strict=True
    ):
        end = begin + length
        assert before.get(document, 0) <= begin < end <= lengths[document]
        assert role < len(ROLES)
        found[document][begin:end] = [Said(role, *more)] * length
        before[document] = end
    return found


def equal(one, other):
    """Returns whether spans have the same values of the same types."""
    if one is None or other is None:
        return one is other
    pairs = zip(one, other, strict=True)
    return all(a.dtype == b.dtype and np.array_equal(a, b) for a, b in pairs)


def conversation(chance, length, *, weights=True):
    """Returns what the tokens of a document are, in runs."""
    tokens, message = [], 0
    while len(tokens) < length:
        said = None
        if chance.random() < 0.7:
            message = chance.choice((message, message + 1, chance.randrange(1 << 32)))
            message = min(message, (1 << 32) - 1)
            trained = chance.random() < 0.5
            weight = chance.choice((1.0, 1.0, 0.5, 0.0)) if weights and trained else 1.0
            said = Said(chance.randrange(len(ROLES)), message, trained, weight)
            message = message if message < 99 else 0
        tokens += [said] * chance.choice((1, 2, chance.randint(1, length)))
    return tokens[:length]
