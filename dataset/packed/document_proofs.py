"""Proofs of documents: the crc32c of their tokens, and the sum of their spans.

Both follow from those of a document's pieces. The sum of spans is the same where spans
are cut at any tokens and added in any order.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

import google_crc32c
import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.digest import lanes_of, words_of
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.packed.message_spans import ROLES, MessageSpans

ID_BYTES = 4

_POLYNOMIAL = np.uint32(0x82F63B78)  # Polynomial of crc32c, lowest bit first.


def crc32cs_of(
    ids: npt.NDArray[np.uint32], lengths: npt.NDArray[Any]
) -> npt.NDArray[np.uint32]:
    """Returns the crc32c of each of some runs of tokens.

    Args:
        ids: uint32 [tokens], the runs end to end.
        lengths: [runs], in tokens.
    """
    data = ids.astype("<u4", copy=False).tobytes()
    ends = np.cumsum(lengths, dtype=np.int64) * ID_BYTES
    value = google_crc32c.value
    pairs = itertools.pairwise([0, *ends.tolist()])
    found = (value(data[begin:end]) for begin, end in pairs)
    return np.fromiter(found, np.uint32, len(lengths))


def followed_by(
    crc32cs: npt.NDArray[np.uint32], following_bytes: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """Returns the terms of parts in the crc32c of a whole, given what follows each.

    The crc32c of the whole is the exclusive or of these terms, as in `crc32_combine` of
    zlib. Each part is given by its own crc32c.

    Args:
        crc32cs: uint32 [parts].
        following_bytes: int64 [parts], the number of bytes after the part.
    """
    found = crc32cs.copy()
    for bit in range(int(following_bytes.max(initial=0)).bit_length()):
        moved = np.flatnonzero(following_bytes >> bit & 1)
        found[moved] = _mapped(found[moved], _zero_bytes(bit))
    return found


def _mapped(
    crc32cs: npt.NDArray[np.uint32], tables: npt.NDArray[np.uint32]
) -> npt.NDArray[np.uint32]:
    """Applies a linear map, given by the images of all values of each byte."""
    found = np.zeros_like(crc32cs)
    for place in range(4):
        byte = crc32cs >> np.uint32(8 * place) & np.uint32(0xFF)
        found ^= tables[place, byte]
    return found


@functools.cache
def _zero_bytes(bit: int) -> npt.NDArray[np.uint32]:
    """Returns the map of 2**bit zero bytes that follow, as uint32 [4, 256]."""
    if bit:
        half = _zero_bytes(bit - 1)
        return _mapped(half.ravel(), half).reshape(half.shape)
    places = np.arange(0, 32, 8, dtype=np.uint32)
    values = np.arange(256, dtype=np.uint32) << places[:, np.newaxis]
    for _ in range(8):
        values = values >> np.uint32(1) ^ (values & np.uint32(1)) * _POLYNOMIAL
    return values


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
