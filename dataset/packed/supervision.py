"""The supervision of documents: counts by role, and sums that prove their spans.

The sum of a document is that of its spans, cut at any tokens and added in any order. So
it follows from those of its pieces, as the crc32c of its tokens does.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.digest import lanes_of, words_of
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.packed.message_spans import ROLES, MessageSpans

Uint64 = npt.NDArray[np.uint64]


def span_sums(spans: MessageSpans, firsts: npt.NDArray[Any] | None = None) -> Uint64:
    """Returns the sum of the spans of each document, or of each piece.

    It is 0 without spans. Two different sets of spans have the same sum by chance, once
    in 2**64.

    Args:
        spans: The spans.
        firsts: [pieces], where each piece begins in its document; None for documents.
    """
    begins = spans.begins.astype(np.uint64)
    if firsts is not None:
        begins += firsts.astype(np.uint64)[spans.documents]
    words = spans.roles.astype(np.uint64) | spans.trained.astype(
        np.uint64
    ) << np.uint64(3)
    words |= spans.messages.astype(np.uint64) << np.uint64(4)
    weights = spans.weights.astype("<f4").view("<u4").astype(np.uint64)
    # Odd, so that no place is lost.
    what = lanes_of(words)[1] ^ lanes_of(weights)[0] | np.uint64(1)
    # What a span that ends where the next begins adds there cancels out.
    stops = begins + spans.lengths.astype(np.uint64)
    places = lanes_of(stops)[0] - lanes_of(begins)[0]
    sums = np.append(np.uint64(0), np.cumsum(places * what, dtype=np.uint64))
    found: Uint64 = np.diff(sums[np.append(0, spans.ends)])
    return found


def spans_digest(
    sums: Uint64, crc32cs: npt.NDArray[np.uint32], lengths: npt.NDArray[Any]
) -> int:
    """Returns the digest of the spans of documents, each with its own tokens.

    Args:
        sums: uint64 [documents], `span_sums`.
        crc32cs: uint32 [documents], of their tokens.
        lengths: [documents], in tokens.
    """
    words = words_of(crc32cs, np.asarray(lengths, np.int64))
    shares = lanes_of(sums + lanes_of(words)[0])[1]
    return int(shares[sums > 0].sum(dtype=np.uint64))


def role_counts(spans: MessageSpans) -> PackedCounts:
    """Returns the tokens and trained tokens of each role."""
    lengths = spans.lengths.astype(np.int64)
    counts: dict[str, int] = {}
    for name, sizes in (("tokens", lengths), ("trained", lengths * spans.trained)):
        found = np.bincount(spans.roles, weights=sizes, minlength=len(ROLES))
        counts |= {
            f"{role}_{name}": int(count)
            for role, count in zip(ROLES, found, strict=True)
        }
    return PackedCounts(**counts)


def roles_of(spans: MessageSpans) -> npt.NDArray[np.uint8]:
    """Returns the roles in each document, or piece: uint8, a bit for each role."""
    found = np.zeros(len(spans.ends), np.uint8)
    np.bitwise_or.at(found, spans.documents, np.uint8(1) << spans.roles)
    return found


def document_counts(roles: npt.NDArray[np.uint8]) -> PackedCounts:
    """Returns the documents that have a token of each role.

    Args:
        roles: uint8 [documents], as `roles_of`.
    """
    return PackedCounts(
        **{
            f"{role}_documents": int(np.count_nonzero(roles >> bit & 1))
            for bit, role in enumerate(ROLES)
        }
    )


def trained_targets(spans: MessageSpans) -> int:
    """Returns the trained tokens of pieces that have a predecessor there."""
    trained = spans.trained
    first = int(np.count_nonzero(trained & (spans.begins == 0)))
    return int(spans.lengths[trained].sum(dtype=np.int64)) - first
