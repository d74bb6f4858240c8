"""The tokens of texts by the fast path, compared with the tokenizer on a sample."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from gristmill.dataset.base.errors import (
    FastTokenizerDiffersError,
    GristmillError,
    InputError,
    UserFunctionError,
)
from gristmill.transforms.tokens.tokenizers import Encoded, Encoder, Tokenizer
from gristmill.transforms.tokens.tokenizers.tokenizer import (
    Ends,
    IdArray,
    PlaceOf,
    end_to_end,
)

# Share of a shard's documents that are tokenised by both.
COMPARED_FIRST = 16
COMPARED_EVERY = 500


class ComparedEncoder:
    """Makes tokens of the documents of a shard, in their order.

    Args:
        tokenizer: The tokenizer.
        fast: Its fast path, or None.
    """

    def __init__(self, tokenizer: Tokenizer, fast: Encoder | None = None) -> None:
        self._tokenizer, self._fast = tokenizer, fast
        self._documents = 0  # Encoded so far.

    @property
    def own_ends(self) -> Ends:
        """Tokens that are added to every text."""
        return self._tokenizer.own_ends

    def encode(self, texts: Sequence[bytes], place_of: PlaceOf) -> Encoded:
        """Returns the tokens of texts.

        Args:
            texts: The next texts, in UTF-8.
            place_of: Returns the place of a text, by its number among these.

        Raises:
            InputError: The tokenizer fails on a text.
            UserFunctionError: It is a function of the user's, and fails.
            FastTokenizerDiffersError: The fast path gives other tokens.
        """
        if not texts:  # `--map` dropped all. Functions may need one.
            return end_to_end([])
        first = self._documents
        self._documents += len(texts)
        if self._fast is None:
            return _encoded(self._tokenizer, texts, place_of)
        chosen = [
            number
            for number in range(len(texts))
            if (first + number) < COMPARED_FIRST
            or (first + number) % COMPARED_EVERY == 0
        ]
        expected = _encoded(
            self._tokenizer,
            [texts[number] for number in chosen],
            lambda number: place_of(chosen[number]),
        )
        try:
            encoded = self._fast.encode(texts)
        except KeyboardInterrupt:
            raise
        except BaseException as e:  # Panics of Rust, too.
            place = f"{place_of(0)}, or a document after it"
            got = f"{type(e).__name__}: {e}"
            raise self._differs(place, "tokens", got) from e
        if len(encoded.lengths) != len(texts):
            got = f"{len(encoded.lengths):,}"
            raise self._differs(place_of(0), f"{len(texts):,} documents", got)
        if not chosen:
            return encoded
        stops = np.cumsum(encoded.lengths)
        right = np.split(expected.ids, np.cumsum(expected.lengths)[:-1])
        for number, ids in zip(chosen, right, strict=True):
            stop = int(stops[number])
            found = encoded.ids[stop - int(encoded.lengths[number]) : stop]
            if not np.array_equal(ids, found):
                at = _same(ids, found)
                raise self._differs(
                    f"document {first + number:,} of the shard, {place_of(number)}",
                    f"{ids[at : at + 5].tolist()} from token {at:,} on",
                    f"{found[at : at + 5].tolist()}",
                )
        return encoded

    def _differs(
        self, where: str, expected: str, got: str
    ) -> FastTokenizerDiffersError:
        fast = "" if self._fast is None else self._fast.library
        return FastTokenizerDiffersError(
            f"{fast} gives other tokens than {self._tokenizer.library}",
            where=where,
            expected=expected,
            got=got,
            cure="leave out --fast",
        )


def _same(one: IdArray, other: IdArray) -> int:
    """Returns the number of equal tokens at the start."""
    least = min(len(one), len(other))
    differ = np.flatnonzero(one[:least] != other[:least])
    return int(differ[0]) if len(differ) else least


def _encoded(
    tokenizer: Tokenizer, texts: Sequence[bytes], place_of: PlaceOf
) -> Encoded:
    """Returns the tokens of texts; an error names the text that it is about."""
    try:
        return tokenizer.encode(texts)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # Errors of users' functions, and panics of Rust.
        for number, text in enumerate(texts):
            try:
                tokenizer.encode([text])
            except KeyboardInterrupt:
                raise
            except BaseException as e:
                raise _failure(e, tokenizer, text, place_of(number)) from e
        # Each text alone is done.
        place = f"{place_of(0)}, or a document after it"
        raise _failure(error, tokenizer, b"".join(texts), place) from error


def _failure(
    error: BaseException, tokenizer: Tokenizer, text: bytes, place: str
) -> GristmillError:
    if isinstance(error, GristmillError):
        facts: dict[str, Any] = error.facts()
        what, function = facts.pop("what"), facts.pop("where", None)
        return type(error)(what, where=f"{function}, for {place}", **facts)
    function = ":" in tokenizer.library
    return (UserFunctionError if function else InputError)(
        f"the tokenizer failed: {type(error).__name__}: {error}",
        where=place,
        got=f"a document of {len(text):,} bytes",
        cure="fix the function"
        if function
        else "leave out or cut such documents with --map",
    )
