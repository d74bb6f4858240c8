"""Documents made from records: tokens, with those added, by two ways compared."""

from __future__ import annotations

import dataclasses
import re
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
from gristmill.transforms.sources.formats import (
    FORMATS,
    RecordOptions,
    SourceSpec,
)
from gristmill.transforms.sources.input_files import InputFiles
from gristmill.transforms.tokens.document_column import DocumentColumn
from gristmill.transforms.tokens.tokenizers import (
    Encoded,
    Encoder,
    Tokenizer,
    load_fast,
    load_tokenizer,
)
from gristmill.transforms.tokens.tokenizers.special_texts import SpecialTexts
from gristmill.transforms.tokens.tokenizers.tokenizer import (
    Ends,
    IdArray,
    LengthArray,
    PlaceOf,
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
_DEFAULT = PackOptions(length=2).column
_TABLE = re.compile(
    r"\.(csv|tsv|json|jsonl|ndjson)(\.(gz|gzip|zst|zstd|z|zz|zlib))?$", re.IGNORECASE
)
_WITH_COLUMNS = ("parquet", "jsonl", "json", "csv", "tsv", "tsv-unquoted", "webdataset")


def document_records(
    records: RecordOptions, pack: PackOptions, *, mapped: bool
) -> RecordOptions:
    """Returns the record options for the inputs of a job that packs documents.

    From a table or samples, only the column of the documents is needed: text is taken
    without a `tf.train.Example` around it. A user's function gets the requested
    records.

    Args:
        records: The user's options, with the format of the files.
        pack: Place of the documents.
        mapped: Whether there is a user's function.

    Raises:
        InputError: The user requests other columns, or the inputs have no columns.
    """
    known = FORMATS.get(records.input_format)
    if known is not None and known.tokens and pack.tokenizer is not None:
        raise InputError(
            "the inputs hold tokens already",
            expected="no --tokenizer",
            got=f"--input-format {records.input_format}",
            cure="leave out --tokenizer; --vocabulary-size says how many ids there are",
        )
    is_text = records.input_format == "text"
    if is_text and not mapped and pack.column not in ("", _DEFAULT):
        raise InputError(
            "--column has no effect on lines of text",
            expected="no column: the line is the document",
            got=pack.column,
            cure="leave it out; of a table name the format, such as --input-format csv",
        )
    if mapped or records.input_format not in _WITH_COLUMNS:
        return records
    asked = records.columns or records.record
    if not pack.column:
        if asked:
            return records
        raise InputError(
            "--column - is for records that are the text itself",
            expected="the name of a column",
            got=f"a file of format {records.input_format}, which has columns",
            cure="give --column NAME, or say with --record what a record is",
        )
    if asked:
        raise InputError(
            "--columns and --record have no effect on the documents",
            expected=f"the column {pack.column!r} alone, by --column",
            got=",".join(records.columns) or records.record,
            cure="leave them out, or use them with --map, which gets such records",
        )
    if pack.tokenizer is None:
        return dataclasses.replace(records, columns=(pack.column,))
    return with_column(records, pack.column)


def with_column(records: RecordOptions, column: str) -> RecordOptions:
    """Returns options by which a table gives one column, if others are not asked for.

    Args:
        records: The user's options, with the format of the files.
        column: The column.
    """
    asked = records.columns or records.record
    if asked or records.input_format not in _WITH_COLUMNS:
        return records
    return dataclasses.replace(records, record=f"column:{column}")


def check_no_tables(files: InputFiles, pack: PackOptions | None) -> None:
    """Checks that files whose bytes look like lines of text are not tables.

    Their first bytes look alike. Lines of a table would become records with all their
    separators, the header would become one too, and a row with a newline two.

    Args:
        files: The inputs, of format `text`, which the user has not named.
        pack: Place of the documents, if they are packed.

    Raises:
        InputError: A file is named like a table.
    """
    if pack is not None and not pack.column:
        return
    lines = "--input-format text" if pack is None else "--column -"
    for path in files.paths:
        if found := _TABLE.search(path):
            kind = found[1].lower()
            known = kind if kind in ("csv", "tsv") else "jsonl"
            raise InputError(
                "a file that is named as a table looks like lines of text",
                where=path,
                expected="a table, or lines that are records"
                if pack is None
                else f"a table with the column {pack.column!r}, or lines that are "
                "documents",
                cure=f"give --input-format {known}, or {lines} to take its lines",
            )


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
        self._encoder: ComparedEncoder | None = None
        self._unknown_id: int | None = None
        if options.tokenizer is not None:
            tokenizer = load_tokenizer(options)
            self._encoder = ComparedEncoder(
                tokenizer, load_fast(options) if options.fast else None, tell=tell
            )
            self._unknown_id = tokenizer.unknown_id
            self._special = SpecialTexts(tokenizer.special_ids)
        given = options.found.bos_id, options.found.eos_id
        bos, eos = (() if token is None else (token,) for token in given)
        self._ends = Ends(bos, eos)

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
        if self._encoder is None:
            encoded = self._column.tokens(records, place_of)
        else:
            texts = self._column.texts(records, place_of)
            text_bytes = sum(map(len, texts))
            special_texts = self._special.counts(texts)
            for number, text in enumerate(texts):
                if text[:2] in _NOTATIONS and text[-1:] == text[1:2]:
                    self.bytes_texts += 1
                    self._note("bytes", place_of(number))
            encoded = self._encoder.encode(texts, place_of)
            own = self._encoder.own_ends
        if int(encoded.ids.max(initial=0)) >= self._size:
            raise self._beyond(encoded, place_of)
        if self._unknown_id is not None:
            unknown = int(np.count_nonzero(encoded.ids == self._unknown_id))
        if unknown and "unknown" not in self.examples:
            self._note("unknown", place_of(0))
        if not encoded.lengths.all():
            self._note("empty", place_of(int(np.argmin(encoded.lengths))))
        added = (own.tokens + self._ends.tokens) * int(
            np.count_nonzero(encoded.lengths)
        )
        last = len(own.after) + len(self._ends.after)
        ids, lengths = add_ends(encoded, self._ends)
        counts = PackedCounts(special_texts=special_texts, unknown_tokens=unknown)
        return Documents(ids, lengths, text_bytes, added, last, counts=counts)

    def _note(self, name: str, place: str) -> None:
        self.examples.setdefault(name, place)

    def _beyond(self, encoded: Encoded, place_of: PlaceOf) -> InputError:
        at = int(np.argmax(encoded.ids >= self._size))
        stops = np.cumsum(encoded.lengths)
        return InputError(
            "a token is not in the vocabulary",
            where=place_of(int(np.searchsorted(stops, at, side="right"))),
            expected=f"ids below {self._size:,}",
            got=f"{encoded.ids[at]:,}",
            cure="correct the tokens, or --vocabulary-size"
            if self._encoder is None
            else "correct the tokenizer, or the vocabulary_size that it tells",
        )
