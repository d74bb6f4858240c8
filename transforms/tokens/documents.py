"""Documents from records: tokens, with added ones, which must fit the tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
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
from gristmill.transforms.jobs.pack_options import ChatOptions, PackOptions
from gristmill.transforms.sources.formats import SourceSpec
from gristmill.transforms.tokens.document_column import DocumentColumn
from gristmill.transforms.tokens.load_tokenizer import (
    load_fast,
    load_tokenizer,
    own_ends,
)
from gristmill.transforms.tokens.tokenizer import (
    Encoded,
    Ends,
    IdArray,
    LengthArray,
    PlaceOf,
    SpecialTexts,
    Tokenizer,
    add_ends,
    end_to_end,
)
from gristmill.transforms.tokens.tokenizer_libraries import GigatokenEncoder

# The documents of a shard that both encoders tokenise.
COMPARED_FIRST = 16
COMPARED_EVERY = 500


Tell = Callable[[int, InputError], None]
"""Called with the number of a text on which the tokenizer fails, and the error."""


class ComparedEncoder:
    """Tokenises the documents of a shard, in order.

    Args:
        tokenizer: The tokenizer.
        fast: Its fast path.
        as_text: Whether the text of a special token stays text.
        tell: Called with texts on which the tokenizer fails, which get no tokens; None
            for an error.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        fast: GigatokenEncoder | None = None,
        *,
        as_text: bool = True,
        tell: Tell | None = None,
    ) -> None:
        self._tokenizer, self._fast = tokenizer, fast
        self._as_text, self._tell = as_text, tell
        self._documents = 0  # Encoded so far.

    def encode(self, texts: Sequence[bytes], place_of: PlaceOf) -> Encoded:
        """Returns the tokens of texts.

        Args:
            texts: The next texts, in UTF-8.
            place_of: Returns the place of a text, by its number among these.

        Raises:
            InputError: The tokenizer fails on a text.
            UserFunctionError: A user's function fails.
            FastTokenizerDiffersError: The fast path returns other tokens.
        """
        if not texts:  # `--map` dropped all. Functions may need one.
            return end_to_end([])
        first = self._documents
        self._documents += len(texts)
        if self._fast is None:
            return self._encoded(texts, place_of, self._tell)
        chosen = [
            number
            for number in range(len(texts))
            if (first + number) < COMPARED_FIRST
            or (first + number) % COMPARED_EVERY == 0
        ]
        expected = self._encoded(
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

    def _encoded(
        self, texts: Sequence[bytes], place_of: PlaceOf, tell: Tell | None = None
    ) -> Encoded:
        """Returns the tokens of texts; an error names the text that it is about."""
        try:
            return self._tokenizer.encode(texts, as_text=self._as_text)
        except KeyboardInterrupt:
            raise
        # Errors of users' functions, and panics of Rust.
        except BaseException as error:
            good = [*texts]
            for number, text in enumerate(texts):
                try:
                    self._tokenizer.encode([text], as_text=self._as_text)
                except KeyboardInterrupt:
                    raise
                except BaseException as e:
                    failure = self._failure(e, text, place_of(number))
                    if tell is None or not isinstance(failure, InputError):
                        raise failure from e
                    tell(number, failure)
                    good[number] = b""
            if good != [*texts]:
                return self._encoded(good, place_of)
            # Each text alone is tokenised.
            place = f"{place_of(0)}, or a document after it"
            raise self._failure(error, b"".join(texts), place) from error

    def _failure(self, error: BaseException, text: bytes, place: str) -> GristmillError:
        if isinstance(error, GristmillError):
            facts: dict[str, Any] = error.facts()
            what, function = facts.pop("what"), facts.pop("where", None)
            return type(error)(what, where=f"{function}, for {place}", **facts)
        is_function = self._tokenizer.kind == "function"
        return (UserFunctionError if is_function else InputError)(
            f"the tokenizer failed: {type(error).__name__}: {error}",
            where=place,
            got=f"a document of {len(text):,} bytes",
            cure="fix the function"
            if is_function
            else "leave out or cut such documents with --map, or leave them out with "
            "--on-corrupt skip",
        )


def _same(one: IdArray, other: IdArray) -> int:
    """Returns the number of equal tokens at the start."""
    least = min(len(one), len(other))
    differ = np.flatnonzero(one[:least] != other[:least])
    return int(differ[0]) if len(differ) else least


_NOTATIONS = (b"b'", b'b"')  # Python's notation of bytes.


class Documents(NamedTuple):
    """Documents as tokens.

    Attributes:
        ids: uint32 [tokens], of all documents end to end, with added tokens.
        lengths: int64 [documents], tokens of each; 0 for an empty one, as for a
            conversation that is set aside.
        counts: The counts that are known before rows are made.
        last_special_tokens: Number of added tokens at the end of each document.
        spans: The spans of messages of conversations, None for other documents.
    """

    ids: IdArray
    lengths: LengthArray
    counts: PackedCounts
    last_special_tokens: int = 0
    spans: MessageSpans | None = None


def counts_of_documents(encoded: Encoded, **more: int) -> PackedCounts:
    """Returns the counts of documents, with `more` counts from their making."""
    filled = int(np.count_nonzero(encoded.lengths))
    empty = len(encoded.lengths) - filled
    tokens = len(encoded.ids)
    return PackedCounts(documents=filled, empty_documents=empty, tokens=tokens, **more)


class DocumentReader:
    """Makes documents from the records of one shard, in order.

    Args:
        options: Options with the tokenizer found by planning.
        source: Rules for making the records.
        tell: As for `ComparedEncoder`.

    Raises:
        InputError: The tokenizer is not the one that was found.
        MissingPackageError: Its library is not installed.
        StorageError: Its file cannot be read.

    Attributes:
        examples: Place of the first misfit of each name.
        bytes_texts: Number of texts in Python's notation of bytes.
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
        given = options.found.bos_id, options.found.eos_id
        self._ends = Ends(*(() if token is None else (token,) for token in given))
        if options.tokenizer is not None:
            self._tokenizer = load_tokenizer(options)
            as_text = options.special_text == "text"
            fast = load_fast(options) if options.fast else None
            self._encoder = ComparedEncoder(
                self._tokenizer, fast, as_text=as_text, tell=tell
            )
            self._special = SpecialTexts(self._tokenizer.special_ids)
            before, after = own_ends(options, self._tokenizer)
            self._ends = Ends(self._ends.before + before, after + self._ends.after)

    def read(self, records: Sequence[bytes], place_of: PlaceOf) -> Documents:
        """Returns the documents of records, one for each.

        Nothing is added to a document without its own tokens.

        Args:
            records: The next records.
            place_of: Returns the place of a record, by its number among these.

        Raises:
            InputError: A record has no document, or one on which the tokenizer fails,
                or tokens outside the vocabulary.
            UserFunctionError: The tokenizer is a user's function, and fails.
            FastTokenizerDiffersError: The fast path returns other tokens.
        """
        text_bytes = special_texts = unknown = 0
        if self._tokenizer is None:
            encoded = self._column.tokens(records, place_of)
        else:
            texts = self._column.texts(records, place_of)
            text_bytes = sum(map(len, texts))
            special_texts = sum(map(self._special.count, texts))
            for number, text in enumerate(texts):
                if text[:2] in _NOTATIONS and text[-1:] == text[1:2]:
                    self.bytes_texts += 1
                    self.examples.setdefault("bytes", place_of(number))
            encoded = self._encoder.encode(texts, place_of)
            unknown = int(np.count_nonzero(encoded.ids == self._tokenizer.unknown_id))
        if int(encoded.ids.max(initial=0)) >= self._size:
            raise self._beyond(encoded, place_of)
        if unknown and "unknown" not in self.examples:
            self.examples["unknown"] = place_of(0)
        if not encoded.lengths.all():
            empty = place_of(int(np.argmin(encoded.lengths)))
            self.examples.setdefault("empty", empty)
        found = add_ends(encoded, self._ends)
        counts = counts_of_documents(
            found,
            special_tokens=len(found.ids) - len(encoded.ids),
            text_bytes=text_bytes,
            special_texts=special_texts,
            unknown_tokens=unknown,
        )
        return Documents(*found, counts, len(self._ends.after))

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


_MOST_PERCENT = 50


class Misfit(NamedTuple):
    """A fault of options, shown by documents; the fields are those of an error.

    Attributes:
        name: Its name among the examples of a reader.
        what: The fault.
        expected: The expected documents.
        got: The number of others.
        cure: What to do.
    """

    name: str
    what: str
    expected: str
    got: str
    cure: str


class Tried(NamedTuple):
    """What is known of the first documents, besides their counts.

    Attributes:
        bytes_texts: Number of texts in Python's notation of bytes.
        unknown_texts: Number of documents that are mostly unknown to the tokenizer.
    """

    bytes_texts: int = 0
    unknown_texts: int = 0


def check_fit(
    pack: PackOptions,
    counts: PackedCounts,
    example_of: Callable[[str], str | None],
    *,
    tried: Tried | None = None,
) -> None:
    """Checks that options fit the documents of a split, or the first of them.

    Args:
        pack: The options.
        counts: The counts of the documents.
        example_of: Returns the place of a misfit, by its name.
        tried: Given for a check of the first documents only. Then only a fault of all
            of them, or one that is never right, is an error.

    Raises:
        InputError: They do not fit.
    """
    for found in misfits(pack, counts, tried):
        raise InputError(
            found.what,
            where=example_of(found.name),
            expected=found.expected,
            got=found.got + ("" if tried is None else " of those tried"),
            cure=f"{found.cure}; `gristmill audit` explains them"
            if found.name == "rejected"
            else found.cure,
        )


def misfits(
    pack: PackOptions, counts: PackedCounts, tried: Tried | None = None
) -> Iterator[Misfit]:
    """Yields the misfits; arguments are as for `check_fit`."""
    accepted = pack.accept.split(",")
    if pack.chat is not None:
        yield from _chat_misfits(pack, pack.chat, counts, tried=tried is not None)
    elif not counts.documents and tried is None:
        yield Misfit(
            "empty",
            "no row can be made: no document has a token",
            f"text or tokens in the column {pack.column!r}",
            _share(counts.empty_documents, counts.empty_documents, "documents")
            + " without",
            "choose another --column, or see what --map returns",
        )
    is_unknown = mostly_unknown(counts)
    if tried is not None:
        is_unknown = 0 < tried.unknown_texts == counts.documents
    if is_unknown and "unknown" not in accepted:
        yield Misfit(
            "unknown",
            "most of the text is not in the vocabulary of the tokenizer",
            "tokens other than the unknown one",
            _share(counts.unknown_tokens, _own_tokens(counts), "tokens"),
            "give the tokenizer of this language or kind of text; or --accept unknown",
        )
    if tried and 0 < tried.bytes_texts == counts.documents and "bytes" not in accepted:
        yield Misfit(
            "bytes",
            "texts are Python's notation of bytes, as str(b'...') gives",
            "the text itself",
            _share(tried.bytes_texts, counts.documents, "documents"),
            "decode it where it is made, or with --map; or --accept bytes",
        )


def _chat_misfits(
    pack: PackOptions, chat: ChatOptions, counts: PackedCounts, *, tried: bool
) -> Iterator[Misfit]:
    """Yields the misfits of conversations; `tried` as in `_too_many`."""
    accepted, noun = pack.accept.split(","), "conversations"
    total = counts.documents + counts.empty_documents
    if counts.open_turns and "open-turns" not in accepted:
        yield Misfit(
            "open_turns",
            "a trained message has no end of turn that is one token of the "
            "tokenizer: a model would not learn to stop",
            "after each a special token that the template also writes at the end",
            f"{counts.open_turns:,} trained messages",
            "give the tokenizer of the model with this template; or --train last; "
            "or --accept open-turns",
        )
    rejected = _too_many(counts.aside_rejected, chat.max_rejected, total, tried=tried)
    if rejected:
        yield Misfit(
            "rejected",
            "conversations cannot be used with this template",
            f"at most {chat.max_rejected:g} % that are set aside for it",
            _share(counts.aside_rejected, total, noun),
            "correct them or the template; or raise --max-rejected",
        )
    if "long" not in accepted and _too_many(
        counts.aside_long, _MOST_PERCENT, total, tried=tried
    ):
        yield Misfit(
            "long",
            "most conversations are longer than a row",
            f"rows of more than {pack.length:,} tokens",
            _share(counts.aside_long, total, noun),
            "raise --length; or --accept long",
        )
    if not (counts.documents or tried or rejected):
        yield Misfit(
            "untrained",
            "no row can be made: no conversation has a token that is trained on",
            "messages as --train says",
            _share(counts.aside_untrained, total, noun) + " without",
            "correct --train, --column or --weight-column",
        )


def mostly_unknown(counts: PackedCounts) -> bool:
    """Returns whether most tokens of documents are the unknown one."""
    return 100 * counts.unknown_tokens > _MOST_PERCENT * _own_tokens(counts)


def _own_tokens(counts: PackedCounts) -> int:
    return counts.tokens + counts.truncated_tokens - counts.special_tokens


def _too_many(count: int, percent: float, of: int, *, tried: bool) -> bool:
    """Returns whether a count is above a share; of a few that were tried, all."""
    return count > 0 and (count == of if tried else 100 * count > percent * of)


def _share(count: int, of: int, noun: str) -> str:
    return f"{count:,} of {of:,} {noun}"
