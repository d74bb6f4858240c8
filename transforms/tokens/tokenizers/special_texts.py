"""Texts of special tokens, found in documents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_HEAD_BYTES = 3


class SpecialTexts:
    """Counts the texts of special tokens in documents.

    Args:
        texts: The texts of the special tokens.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        encoded = sorted((text.encode() for text in texts if text), key=len)
        self._pattern = re.compile(b"|".join(map(re.escape, reversed(encoded))))
        # Most documents have none of their first bytes: that is quick to see.
        self._heads = {text[:_HEAD_BYTES] for text in encoded}

    def count(self, text: bytes) -> int:
        """Returns how many a text has."""
        if not any(head in text for head in self._heads):
            return 0
        return sum(1 for _ in self._pattern.finditer(text))

    def counts(self, texts: Sequence[bytes]) -> int:
        """Returns how many some texts have."""
        # One look at all of them together is enough for most.
        joined = b"\n".join(texts)
        if not any(head in joined for head in self._heads):
            return 0
        return sum(map(self.count, texts))
