"""Documents made from records: tokens, with those added, by two ways compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gristmill.dataset.base.errors import (
    FastTokenizerDiffersError,
    GristmillError,
    InputError,
    UserFunctionError,
)
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.packed.message_spans import MessageSpans
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.sources.formats import SourceSpec
from gristmill.transforms.tokens.document_column import DocumentColumn
from gristmill.transforms.tokens.tokenizers import (
    Encoded,
    Encoder,
    Tokenizer,
    load_fast,
    load_tokenizer,
)
from gristmill.transforms.tokens.tokenizers.tokenizer import (
    Ends,
    IdArray,
    LengthArray,
    PlaceOf,
    SpecialTexts,
    add_ends,
    end_to_end,
)

# Share of a shard's documents that are tokenised by both.
COMPARED_FIRST = 16
COMPARED_EVERY = 500


Tell = Callable[[int, InputError], None]
"""Takes the number of a text, among those given, on which the tokenizer fails."""


class ComparedEncoder:
    """Makes tokens of the documents of a shard, in their order.

    Args:
        tokenizer: The tokenizer.
        fast: Another one, which is faster.
        tell: Takes texts on which the tokenizer fails: they have no tokens. None for an
            error.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        fast: Encoder | None = None,
        *,
        tell: Tell | None = None,
    ) -> None:
        self._tokenizer, self._fast, self._tell = tokenizer, fast, tell
        self._documents = 0  # Encoded so far.

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
            return _encoded(self._tokenizer, texts, place_of, self._tell)
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
    tokenizer: Tokenizer,
    texts: Sequence[bytes],
    place_of: PlaceOf,
    tell: Tell | None = None,
) -> Encoded:
    """Returns the tokens of texts; an error names the text that it is about."""
    try:
        return tokenizer.encode(texts)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # Errors of users' functions, and panics of Rust.
        good = [*texts]
        for number, text in enumerate(texts):
            try:
                tokenizer.encode([text])
            except KeyboardInterrupt:
                raise
            except BaseException as e:
                failure = _failure(e, tokenizer, text, place_of(number))
                if tell is None or not isinstance(failure, InputError):
                    raise failure from e
                tell(number, failure)
                good[number] = b""
        if good != [*texts]:
            return _encoded(tokenizer, good, place_of)
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
        else "leave out or cut such documents with --map, or leave them out with "
        "--on-corrupt skip",
    )


_NOTATIONS = (b"b'", b'b"')  # Of bytes, in Python.


class Documents(NamedTuple):
    """Documents as tokens.

    Attributes:
        ids: uint32 [tokens], those of one document after the other, added ones
            included.
        lengths: int64 [documents], tokens of each; 0 for an empty one.
        text_bytes: Size of the text that was tokenised, as UTF-8.
        special_tokens: Number of added tokens.
        last_special_tokens: Number of added tokens at the end of each document.
        spans: The spans of messages of conversations, None of other documents.
        counts: What only their making can tell, such as `special_texts`. Of a
            conversation set aside there is an empty document.
    """

    ids: IdArray
    lengths: LengthArray
    text_bytes: int
    special_tokens: int
    last_special_tokens: int = 0
    spans: MessageSpans | None = None
    counts: PackedCounts = PackedCounts()

    def seen(self) -> PackedCounts:
        """Returns all that can be counted before rows are made."""
        filled = int(np.count_nonzero(self.lengths))
        return self.counts + PackedCounts(
            documents=filled,
            empty_documents=len(self.lengths) - filled,
            tokens=len(self.ids),
            special_tokens=self.special_tokens,
            text_bytes=self.text_bytes,
        )


class DocumentReader:
    """Makes documents of the records of one shard, in their order.

    Args:
        options: Options with the tokenizer found by planning.
        source: Rules for making the records.
        tell: As for `ComparedEncoder`.

    Raises:
        InputError: The tokenizer is not the one that was found.
        MissingPackageError: Its library is not installed.
        StorageError: Its file cannot be read.

    Attributes:
        examples: Where a misfit was seen first, by its name.
        bytes_texts: Texts that are Python's notation of bytes.
    """

    def __init__(
        self, options: PackOptions, source: SourceSpec, *, tell: Tell | None = None
    ) -> None:
        if options.found is None:
            raise ValueError("the tokenizer of the job is not known yet")
        self._size = options.found.vocabulary_size
        self._column = DocumentColumn(options, source)
        self.examples: dict[str, str] = {}
        self.bytes_texts = 0
        self._tokenizer: Tokenizer | None = None
        if options.tokenizer is not None:
            self._tokenizer = load_tokenizer(options)
            fast = load_fast(options) if options.fast else None
            self._encoder = ComparedEncoder(self._tokenizer, fast, tell=tell)
            self._special = SpecialTexts(self._tokenizer.special_ids)
        given = options.found.bos_id, options.found.eos_id
        self._ends = Ends(*(() if token is None else (token,) for token in given))

    def read(self, records: Sequence[bytes], place_of: PlaceOf) -> Documents:
        """Returns the documents of records, one for each.

        No token is added to a document without its own tokens.

        Args:
            records: The next records.
            place_of: Returns the place of a record, by its number among these.

        Raises:
            InputError: A record has no document, or one on which the tokenizer fails,
                or tokens outside the vocabulary.
            UserFunctionError: The tokenizer is a function of the user's, and fails.
            FastTokenizerDiffersError: The fast path gives other tokens.
        """
        text_bytes = special_texts = unknown = 0
        own = Ends()
        if self._tokenizer is None:
            encoded = self._column.tokens(records, place_of)
        else:
            texts = self._column.texts(records, place_of)
            text_bytes = sum(map(len, texts))
            # One look at all of them together is enough for most.
            if self._special.count(b"\n".join(texts)):
                special_texts = sum(map(self._special.count, texts))
            for number, text in enumerate(texts):
                if text[:2] in _NOTATIONS and text[-1:] == text[1:2]:
                    self.bytes_texts += 1
                    self.examples.setdefault("bytes", place_of(number))
            encoded = self._encoder.encode(texts, place_of)
            own = self._tokenizer.own_ends
            unknown = int(np.count_nonzero(encoded.ids == self._tokenizer.unknown_id))
        if int(encoded.ids.max(initial=0)) >= self._size:
            raise self._beyond(encoded, place_of)
        if unknown and "unknown" not in self.examples:
            self.examples["unknown"] = place_of(0)
        if not encoded.lengths.all():
            empty = place_of(int(np.argmin(encoded.lengths)))
            self.examples.setdefault("empty", empty)
        filled = int(np.count_nonzero(encoded.lengths))
        ids, lengths = add_ends(encoded, self._ends)
        return Documents(
            *(ids, lengths, text_bytes, (own.tokens + self._ends.tokens) * filled),
            len(own.after) + len(self._ends.after),
            counts=PackedCounts(special_texts=special_texts, unknown_tokens=unknown),
        )

    def _beyond(self, encoded: Encoded, place_of: PlaceOf) -> InputError:
        at = int(np.argmax(encoded.ids >= self._size))
        stops = np.cumsum(encoded.lengths)
        return InputError(
            "a token is not in the vocabulary",
            where=place_of(int(np.searchsorted(stops, at, side="right"))),
            expected=f"ids below {self._size:,}",
            got=f"{encoded.ids[at]:,}",
            cure="correct the tokens, or --vocabulary-size"
            if self._tokenizer is None
            else "correct the tokenizer, or the vocabulary_size that it tells",
        )
