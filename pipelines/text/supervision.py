"""The supervision of conversations: tokens by role, and marks in the text of rows."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.packed.message_spans import ROLES, MessageSpans
from gristmill.pipelines.text.printer import plural

if TYPE_CHECKING:
    from gristmill.transforms.tokens.tokenizer import Tokenizer

BEGIN, END = "[[", "]]"
"""Marks around trained tokens."""

_PIECES_SHOWN = 10
_PIECE_WIDTH = 60
_REASONS = {
    "rejected": "that cannot be used",
    "untrained": "without a trained token",
    "long": "too long for a row",
}


def supervision_facts(counts: PackedCounts, *, named: bool = False) -> dict[str, Any]:
    """Returns the trained tokens, and remarks on documents, for people.

    Args:
        counts: The counts.
        named: Whether the output lists the conversations that were set aside.
    """
    facts: dict[str, Any] = {}
    if counts.trained_tokens:
        share = 100 * counts.trained_tokens / counts.tokens
        facts["trained"] = (
            f"{counts.trained_tokens:,} of {plural(counts.tokens, 'token')} "
            f"({share:.2f} %), of which {counts.trained_targets:,} are targets"
        )
    if aside := counts.set_aside:
        reasons = [f"{count:,} {_REASONS[name]}" for name, count in aside.items()]
        every = plural(sum(aside.values()), "conversation")
        facts["SET ASIDE"] = [f"{every}: {', '.join(reasons)}"]
        if not named:
            facts["SET ASIDE"] += ["`gristmill audit` names them, and says why"]
    facts["beside"] = [
        f"{plural(count, noun)} {text}"
        for count, noun, text in (
            (counts.special_texts, "text", "like a special token, see --special-text"),
            (counts.unknown_tokens, "token", "for text beyond the vocabulary"),
            (
                counts.open_turns,
                "trained message",
                "without an end of turn to train on",
            ),
        )
        if count
    ]
    return facts


def role_lines(documents: Iterable[Document]) -> list[str]:
    """Returns the tokens of each role in some documents, and of the template."""
    total, trained = np.zeros((2, len(ROLES) + 1), np.int64)
    for _, facts in documents:
        total += np.bincount(facts["roles"], minlength=len(total))
        trained += np.bincount(facts["roles"][facts["trained"]], minlength=len(total))
    return [
        f"{role}: {plural(int(total[at]), 'token')}, {trained[at]:,} trained"
        for at, role in enumerate([*ROLES, "template"])
        if total[at]
    ]


def marked(parts: Sequence[str], trained: npt.NDArray[np.bool_], between: str) -> str:
    """Returns tokens as one text, with marks around those that are trained on.

    Args:
        parts: The text of each token.
        trained: bool [tokens].
        between: The text between two tokens.
    """
    borders = np.flatnonzero(np.diff(trained, prepend=False, append=False))
    cuts = [0, *borders.tolist(), len(parts)]
    found = []
    for number, (begin, end) in enumerate(itertools.pairwise(cuts)):
        text = between.join(parts[begin:end])
        found.append(f"{BEGIN}{text}{END}" if number % 2 else text)
    return between.join(filter(None, found))


def by_token(spans: MessageSpans | None, piece: int, length: int) -> dict[str, Any]:
    """Returns facts about each token of a piece.

    Returns:
        `trained`, bool [tokens]; `said`, bool [tokens], whether it is in a message,
        True for all without spans; and `roles`, the index in `ROLES` of its message, or
        `len(ROLES)`.
    """
    trained, roles = np.zeros(length, bool), np.full(length, len(ROLES))
    for span in () if spans is None else spans.of_document(piece):
        roles[span["begin"] : span["end"]] = ROLES.index(span["role"])
        trained[span["begin"] : span["end"]] = span["trained"]
    said = (roles < len(ROLES)) | (spans is None)
    return {"trained": trained, "said": said, "roles": roles}


def token_texts(texts: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Returns tokens as text; those that are no text by their ids."""
    pairs = zip(ids, texts.texts(ids), strict=True)
    return [f"<{token}>" if text is None else text for token, text in pairs]


class TemplatePiece(NamedTuple):
    """A piece of the template in rows.

    Attributes:
        ids: Its tokens.
        trained: Whether it is trained on.
        times: Number of occurrences.
    """

    ids: tuple[int, ...]
    trained: bool
    times: int


Document = tuple[npt.NDArray[Any], dict[str, Any]]
"""The tokens of a piece or a document, and the facts of `by_token`."""


def supervised_documents(
    ids: npt.NDArray[Any], lengths: npt.NDArray[Any], spans: MessageSpans
) -> Iterator[Document]:
    """Yields the tokens of each piece or document, with the facts of `by_token`.

    Args:
        ids: All of their tokens.
        lengths: Tokens of each.
        spans: The spans of their messages.
    """
    for number, own in enumerate(np.split(ids, np.cumsum(lengths)[:-1])):
        yield own, by_token(spans, number, len(own))


def template_pieces(
    documents: Iterable[Document], special: Iterable[int]
) -> list[TemplatePiece]:
    """Returns the pieces of the template in documents, the most frequent first.

    These are runs of tokens outside messages, and special tokens that end trained ones.

    Args:
        documents: Tokens and facts of each.
        special: Ids of special tokens.
    """
    counts: collections.Counter[tuple[tuple[int, ...], bool]] = collections.Counter()
    known = np.array([*special], np.int64)
    for ids, facts in documents:
        last = facts["trained"] & np.isin(ids, known)
        for own, trained in ((~facts["said"], False), (last, True)):
            borders = np.flatnonzero(np.diff(own, prepend=False, append=False))
            for begin, end in borders.reshape(-1, 2).tolist():
                counts[tuple(ids[begin:end].tolist()), trained] += 1
    return [TemplatePiece(*key, count) for key, count in counts.most_common()]


def piece_lines(found: Sequence[TemplatePiece], texts: Tokenizer) -> list[str]:
    """Returns the most frequent pieces of a template, for people.

    Args:
        found: The pieces, the most frequent first.
        texts: Shows tokens as text.
    """
    lines = []
    for piece in found[:_PIECES_SHOWN]:
        shown = repr(texts.decode(piece.ids))
        if len(shown) > _PIECE_WIDTH:
            shown = f"{shown[:_PIECE_WIDTH]}... ({plural(len(piece.ids), 'token')})"
        state = "trained" if piece.trained else "not trained"
        lines.append(f"{state} {plural(piece.times, 'time')}: {shown}")
    if len(found) > _PIECES_SHOWN:
        lines.append(f"and {len(found) - _PIECES_SHOWN:,} others")
    return lines
