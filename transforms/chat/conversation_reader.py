"""Documents from conversations: tokens with the spans of messages."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.packed.message_spans import ROLES, MessageSpans
from gristmill.transforms.chat.conversation import (
    Conversation,
    ConversationColumns,
    UnusableError,
    conversation_of,
)
from gristmill.transforms.chat.located import UnprovenError, located
from gristmill.transforms.chat.template import DEFAULT, WITH_TOOLS, templates_of
from gristmill.transforms.chat.token_spans import (
    PlacedTokens,
    byte_places,
    token_spans,
    with_special_text,
)
from gristmill.transforms.chat.turns import TextSpan, TurnFinder
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.sources.formats import (
    FORMATS,
    MAY_LACK,
    RecordOptions,
    SourceSpec,
)
from gristmill.transforms.tokens.documents import (
    DocumentReader,
    Documents,
    Tell,
    counts_of_documents,
)
from gristmill.transforms.tokens.load_tokenizer import load_tokenizer
from gristmill.transforms.tokens.tokenizer import Encoded, PlaceOf

_OTHER = ROLES.index("other")
_SHOWN = 24

DEFAULT_COLUMN = PackOptions(length=2).column
"""The column of documents if none is named."""

Int64 = npt.NDArray[np.int64]


class AsideError(Exception):
    """A conversation is set aside; its text says why.

    Attributes:
        reason: One of `gristmill.dataset.packed.counts.ASIDE`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Rendered(NamedTuple):
    """A conversation as text in UTF-8, with its spans; places are bytes of the text.

    Attributes:
        text: The text.
        spans: Its spans; plain text has one.
        borders: int64 [2 spans], begin and end of each.
        weights: Weight of each message.
        specials: int64 [n, 2], begin and end of all special tokens in the text, if some
            are in the contents of messages.
        alike: Which of them are in contents.
        ends: int64, the ends of trained turns; None for plain text.
        open_turns: Trained messages without an end of turn.
        open_turn: The first of them, and the text after it; "" for none.
    """

    text: bytes
    spans: list[TextSpan]
    borders: Int64
    weights: list[float]
    specials: Int64
    alike: list[bool]
    ends: Int64 | None = None
    open_turns: int = 0
    open_turn: str = ""


def columns_of(options: PackOptions) -> ConversationColumns:
    """Returns the columns of conversations, for options with `chat`."""
    chat = options.chat
    assert chat is not None  # Callers have conversations.
    messages = "" if options.column == DEFAULT_COLUMN else options.column
    return ConversationColumns(messages, chat.tools_column, chat.weight_column)


class ConversationReader:
    """Makes documents from the records of one shard, in order.

    Args:
        options: Options with the tokenizer and the template that planning found.
        tell: Called with each conversation that is set aside, and its place.

    Raises:
        InputError: The tokenizer or the template cannot be used.
        MissingPackageError: A library is not installed.
        StorageError: A file cannot be read.

    Attributes:
        examples: Place of the first misfit of each name.
        bytes_texts: 0, as for a `DocumentReader`.
    """

    bytes_texts = 0

    def __init__(
        self,
        options: PackOptions,
        *,
        tell: Callable[[AsideError, str], None] | None = None,
    ) -> None:
        if options.chat is None or options.found is None:
            raise ValueError("the template of the job is not known yet")
        self._options, self._chat, self._tell = options, options.chat, tell
        self.examples: dict[str, str] = {}
        self._tokenizer = load_tokenizer(options)
        if not self._tokenizer.knows_places:
            raise InputError(
                "the tokenizer does not say where its tokens are in a text",
                where=options.tokenizer,
                expected="for --chat a tokenizer.json, or a tiktoken file",
                got=self._tokenizer.library,
                cure="give the tokenizer.json of the same model",
            )
        special = self._tokenizer.special_ids
        self._finders = {
            name: TurnFinder(template, special, options.chat)
            for name, template in templates_of(options.chat).items()
        }
        self._columns = columns_of(options)
        ends = options.found.bos_id, options.found.eos_id
        self._before, self._after = ([e] * (e is not None) for e in ends)

    def read(self, records: Sequence[bytes], place_of: PlaceOf) -> Documents:
        """Returns the documents of records, one for each; without tokens if set aside.

        Args:
            records: The next records.
            place_of: Returns the place of a record, by its number among these.

        Raises:
            InputError: A conversation cannot be used, and must not be set aside.
        """
        counts: Counter[str] = Counter()
        rendered: dict[int, Rendered] = {}
        for number, record in enumerate(records):
            try:
                rendered[number] = self.rendered(record)
            except AsideError as error:
                self._set_aside(error, place_of(number), counts)
        spans: list[list[tuple[Any, ...]]] = [[] for _ in records]
        parts: list[npt.NDArray[Any]] = [np.zeros(0, np.uint32)]
        lengths = np.zeros(len(records), np.int64)
        placed = self._placed([each.text for each in rendered.values()])
        for (number, each), tokens in zip(rendered.items(), placed, strict=True):
            try:
                ids, spans[number] = self._document(each, tokens, counts)
            except AsideError as error:
                self._set_aside(error, place_of(number), counts)
                continue
            counts["special_texts"] += sum(each.alike)
            counts["open_turns"] += each.open_turns
            if each.open_turn:
                place = f"{place_of(number)}, {each.open_turn}"
                self.examples.setdefault("open_turns", place)
            parts.append(ids)
            lengths[number] = len(ids)
            counts["text_bytes"] += len(each.text)
            if each.ends is None and len(ids):
                counts["special_tokens"] += len(self._before) + len(self._after)
        encoded = Encoded(np.concatenate(parts), lengths)
        return Documents(
            *encoded,
            counts_of_documents(encoded, **counts),
            len(self._after) if counts["special_tokens"] else 0,
            MessageSpans.of_documents(spans).joined(),
        )

    def rendered(self, record: bytes) -> Rendered:
        """Returns a record's conversation as text, or raises AsideError."""
        try:
            return self._rendered(conversation_of(record, self._columns))
        except UnusableError as error:
            raise AsideError("rejected", f"{error.what}: {error}") from error
        except UnicodeEncodeError as error:
            raise AsideError("rejected", "a text has half of a character") from error

    def _rendered(self, conversation: Conversation) -> Rendered:
        finder = self._finders[DEFAULT]
        if conversation.text is not None:
            text = conversation.text
            data, own = text.encode(), _pairs(text, finder.specials(text))
            span = TextSpan(0, len(text), _OTHER, 0, trained=True)
            borders, alike = np.array([0, len(data)]), [True] * len(own)
            return Rendered(data, [span], borders, [1.0], own, alike)
        if conversation.tools is not None:
            finder = self._finders.get(WITH_TOOLS, finder)
        text = finder.template.render(conversation.messages, conversation.tools)
        data = text.encode()
        found = located(finder.template, conversation, text)
        specials = finder.specials(text)
        alike = _overlap(specials, found.places)
        both = zip(specials, alike, strict=True)
        turns = finder.turns(found, [each for each, inside in both if not inside])
        open_turn = ""
        for message, end in turns.open_turns[:1]:
            after = text[end : end + _SHOWN]
            open_turn = f"message {message:,}, after which stands {after!r}"
        return Rendered(
            *(
                data,
                turns.spans,
                _pairs(text, [span[:2] for span in turns.spans]).ravel(),
            ),
            *(conversation.weights, _pairs(text, specials * any(alike)), alike),
            *(byte_places(text, turns.ends), len(turns.open_turns), open_turn),
        )

    def _placed(self, texts: Sequence[bytes]) -> Iterator[PlacedTokens]:
        """Yields the tokens of each text."""
        encoded = self._tokenizer.encode(texts, as_text=False)
        begins = self._tokenizer.begins(encoded, texts)
        stop = 0
        for length in encoded.lengths.tolist():
            start, stop = stop, stop + length
            yield PlacedTokens(encoded.ids[start:stop], begins[start:stop])

    def _document(
        self, each: Rendered, placed: PlacedTokens, counts: Counter[str]
    ) -> tuple[npt.NDArray[Any], list[tuple[Any, ...]]]:
        """Returns the tokens of a document, and its spans as rows of `STORED`."""
        if any(each.alike) and self._options.special_text == "text":
            try:
                placed = with_special_text(
                    *(each.text, placed, each.specials, each.alike, self._tokenizer)
                )
            except UnprovenError as error:
                raise AsideError("rejected", str(error)) from error
        ids = placed.ids
        if each.ends is None:
            if len(ids):
                ids = np.array([*self._before, *ids, *self._after], np.uint32)
            return ids, [(0, len(ids), _OTHER, 0, True, 1.0)] * (len(ids) > 0)
        begins, ends = token_spans(placed, len(each.text), each.spans, each.borders)
        length = len(ids)
        if length > self._options.length:
            length = self._cut(each.ends, placed)
        rows = []
        for span, begin, end in zip(
            each.spans, begins.tolist(), ends.tolist(), strict=True
        ):
            if begin < (end := min(end, length)):
                weight = each.weights[span.message]
                rows.append((begin, end - begin, *span[2:], weight))
        if not any(trained for _, _, _, _, trained, _ in rows):
            reason = "no token of it is trained on"
            if any(span.role == _OTHER for span in each.spans):
                reason += "; it has roles that --train does not know"
            raise AsideError("untrained", reason)
        if length < len(ids):
            counts["truncated_documents"] += 1
            counts["truncated_tokens"] += len(ids) - length
        return ids[:length], rows

    def _cut(self, ends: Int64, placed: PlacedTokens) -> int:
        """Returns the number of tokens up to the last turn that ends within a row."""
        tokens = np.searchsorted(placed.begins, ends)
        fitting = tokens[(tokens > 0) & (tokens <= self._options.length)]
        if not len(fitting) or self._chat.truncate_turns == "no":
            raise AsideError("long", f"{len(placed.ids):,} tokens")
        return int(fitting[-1])

    def _set_aside(self, error: AsideError, place: str, counts: Counter[str]) -> None:
        """Counts a conversation that is set aside, or raises InputError for it."""
        counts[f"aside_{error.reason}"] += 1
        if self._tell is not None:
            self._tell(error, place)
        self.examples.setdefault(error.reason, f"{place}: {error}")
        if error.reason == "rejected" and not self._chat.max_rejected:
            raise InputError(
                "a conversation cannot be used",
                where=place,
                got=str(error),
                cure="correct it or the template, or set some aside with "
                "--max-rejected 1",
            ) from error


def _pairs(text: str, ranges: Sequence[Sequence[int]]) -> Int64:
    """Returns ordered ranges of characters as ranges of bytes: int64 [ranges, 2]."""
    return byte_places(text, [*itertools.chain(*ranges)]).reshape(-1, 2)


def _overlap(
    ranges: Sequence[Sequence[int]], places: Sequence[Sequence[int]]
) -> list[bool]:
    """Returns whether each range overlaps a place; both are disjoint and in order."""
    stops = [place[1] for place in places]
    found = []
    for begin, end in ranges:
        at = bisect.bisect_right(stops, begin)
        found.append(at < len(places) and places[at][0] < end)
    return found


_WITH_COLUMNS = ("parquet", "jsonl", "json", "csv", "tsv", "tsv-unquoted", "webdataset")


def reader_of(
    options: PackOptions, source: SourceSpec, *, tell: Tell | None = None
) -> ConversationReader | DocumentReader:
    """Returns the reader of documents from the records of a shard.

    Args:
        options: Options with the tokenizer found, and the template if there is one.
        source: Rules for making the records.
        tell: Called with documents on which the tokenizer fails; None for an error.
    """
    if options.chat is not None:
        return ConversationReader(options)
    return DocumentReader(options, source, tell=tell)


def document_records(
    records: RecordOptions, pack: PackOptions, *, mapped: bool
) -> RecordOptions:
    """Returns the record options for the inputs of a job that packs documents.

    From a table or samples only the column of the documents is read, as text without a
    `tf.train.Example` around it. A user's function gets the requested records.

    Args:
        records: The user's options, with the format of the files.
        pack: The options with the column of the documents.
        mapped: Whether there is a user's function.

    Raises:
        InputError: The user requests other columns, or the inputs have no columns.
    """
    asked = ",".join(records.columns) or records.record
    is_text = records.input_format == "text"
    if pack.chat is not None:
        if asked:
            raise InputError(
                "--columns and --record have no effect on conversations",
                expected="the columns that --column, --tools-column and "
                "--weight-column name",
                got=asked,
                cure="leave them out",
            )
        if records.input_format in ("jsonl", "json", "text"):
            return dataclasses.replace(records, record="" if is_text else "line")
        if records.input_format == "parquet":
            names = columns_of(pack).names
            return dataclasses.replace(records, record="json", columns=names)
        return records
    known = FORMATS.get(records.input_format)
    if known is not None and known.tokens and pack.tokenizer is not None:
        raise InputError(
            "the inputs hold tokens already",
            expected="no --tokenizer",
            got=f"--input-format {records.input_format}",
            cure="leave out --tokenizer; --vocabulary-size says how many ids there are",
        )
    if is_text and not mapped and pack.column not in ("", DEFAULT_COLUMN):
        raise InputError(
            "--column has no effect on lines of text",
            expected="no column: the line is the document",
            got=pack.column,
            cure="leave it out; of a table name the format, such as --input-format csv",
        )
    if known is not None and known.tokens and "no-end" in pack.accept.split(","):
        return dataclasses.replace(records, record=records.record + MAY_LACK)
    if mapped or records.input_format not in _WITH_COLUMNS:
        return records
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
            got=asked,
            cure="leave them out, or use them with --map, which gets such records",
        )
    if pack.tokenizer is None:
        return dataclasses.replace(records, columns=(pack.column,))
    return dataclasses.replace(records, record=f"column:{pack.column}")
