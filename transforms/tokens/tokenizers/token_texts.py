"""Tokens as text, each by itself."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.dataset.base.errors import InputError
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.tokens.tokenizers.load import (
    content_digest,
    is_function,
    load_tokenizer,
)
from gristmill.transforms.tokens.tokenizers.tokenizer import Tokenizer


class TokenTexts:
    """Shows tokens as text.

    Args:
        tokenizer: Tokenizer that knows their bytes.
        name: The file of the tokenizer.
        digest: The digest of that file.

    Attributes:
        name: As given.
        digest: As given.
    """

    def __init__(self, tokenizer: Tokenizer, *, name: str, digest: str = ""):
        self._tokenizer, self.name, self.digest = tokenizer, name, digest

    def check(self, packed: Mapping[str, Any] | None, where: str) -> None:
        """Checks that this is the tokenizer of the rows of a split.

        Args:
            packed: What `dataset.json` says of the rows, None of other records.
            where: The dataset, for messages.

        Raises:
            InputError: It is another: its texts would be nonsense.
        """
        packed_with = (packed or {}).get("tokenizer")
        if packed_with and packed_with != self.digest:
            raise InputError(
                "the rows were packed with another tokenizer",
                where=where,
                expected=f"a tokenizer with the digest {packed_with}",
                got=f"{self.name}, {self.digest}",
                cure="give that tokenizer, or leave out --tokenizer to see ids",
            )

    def decode(self, ids: Sequence[int]) -> str:
        """Returns consecutive tokens as one text; unknown ones as their id in <>."""
        texts = zip(ids, self.texts(ids), strict=True)
        return "".join(f"<{n}>" if text is None else text for n, text in texts)

    def texts(self, ids: Sequence[int]) -> list[str | None]:
        """Returns the text of each of some consecutive tokens.

        A character of several tokens is given to the last of them; the others get "".
        Unknown tokens get None.
        """
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        found: list[str | None] = []
        for number in ids:
            data = self._tokenizer.bytes_of(number)
            if data is None:
                rest = decoder.decode(b"", final=True)
                decoder.reset()
                if rest and found:
                    found[-1] = (found[-1] or "") + rest
                found.append(None)
            else:
                found.append(decoder.decode(data))
        if (rest := decoder.decode(b"", final=True)) and found:
            found[-1] = (found[-1] or "") + rest
        return found


def load_token_texts(name: str) -> TokenTexts:
    """Returns the texts of the tokens of a tokenizer.

    Raises:
        InputError: It cannot be used, or is a function, which only makes tokens.
        MissingPackageError: Its library is not installed.
        StorageError: The file cannot be read.
    """
    if is_function(name):
        raise InputError(
            "a tokenizer function cannot turn tokens back into text",
            expected="the file of a tokenizer",
            got=f"--tokenizer {name}",
            cure="leave it out: tokens are shown as ids then",
        )
    tokenizer = load_tokenizer(PackOptions(length=2, tokenizer=name))
    return TokenTexts(tokenizer, name=name, digest=content_digest(name))
