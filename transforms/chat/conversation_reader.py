"""Documents made from conversations: tokens, with the spans of messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.packed.message_spans import ROLES
from gristmill.transforms.chat.borders import Borders
from gristmill.transforms.chat.conversation import (
    Conversation,
    ConversationColumns,
    MalformedError,
    conversation_of,
)
from gristmill.transforms.chat.located import Located, located
from gristmill.transforms.chat.marks import UnprovenError
from gristmill.transforms.chat.special_text import with_special_text
from gristmill.transforms.chat.template import Template, TemplateFailedError
from gristmill.transforms.chat.template_file import template_for, templates_of
from gristmill.transforms.chat.token_spans import (
    PlacedText,
    SpanColumns,
    SpanRow,
    token_at,
    token_spans,
)
from gristmill.transforms.chat.turns import TextSpan, turns_of
from gristmill.transforms.jobs.pack_options import PackOptions
from gristmill.transforms.tokens.documents import Documents
from gristmill.transforms.tokens.tokenizers import load_tokenizer
from gristmill.transforms.tokens.tokenizers.token_places import PlacingTokenizer
from gristmill.transforms.tokens.tokenizers.tokenizer import PlaceOf

_OTHER = ROLES.index("other")
_SHOWN = 24
_REJECTED: dict[type[Exception], str] = {
    MalformedError: "it is not a conversation",
    TemplateFailedError: "the template fails",
    UnprovenError: "it cannot be proved what is trained on",
}


class AsideError(Exception):
    """A conversation is set aside; its text says why.

    Attributes:
        reason: One of `gristmill.dataset.packed.counts.ASIDE`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class Rendered(NamedTuple):
    """A conversation as text, with its spans.

    Attributes:
        text: The text.
        spans: Its spans in characters; of plain text one.
        ends: Ends of trained turns, in characters.
        weights: Weight of each message.
        counts: What was seen: counts of `PackedCounts` by name.
        plain: Whether it is plain text.
        specials: Special tokens in the text, in characters.
        alike: Those of them that are in contents.
        open_turn: A trained message without an end, and what follows it; "" for none.
    """

    text: str
    spans: list[TextSpan]
    ends: list[int]
    weights: list[float]
    counts: Counter[str]
    plain: bool = False
    specials: Sequence[tuple[int, int]] = ()
    alike: frozenset[tuple[int, int]] = frozenset()
    open_turn: str = ""


class Document(NamedTuple):
    """A document: its tokens, the rows of its spans, and counts of it by name."""

    ids: np.ndarray[Any, np.dtype[np.uint32]]
    rows: list[SpanRow]
    counts: Counter[str]


def columns_of(options: PackOptions) -> ConversationColumns:
    """Returns the columns of conversations, of options that have them."""
    chat = options.chat
    assert chat is not None  # It is asked for conversations only.
    default = PackOptions(length=2).column
    messages = "" if options.column == default else options.column
    return ConversationColumns(messages, chat.tools_column, chat.weight_column)


class ConversationReader:
    """Makes documents of the records of one shard, in their order.

    Args:
        options: Options with tokenizer and template found by planning.
        tell: Called with each conversation that is set aside, and its place.

    Raises:
        InputError: The tokenizer or the template cannot be used.
        MissingPackageError: A library is not installed.
        StorageError: A file cannot be read.

    Attributes:
        examples: Where a misfit was seen first, by its name.
        bytes_texts: 0, as for a `DocumentReader`.
    """

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
        self.bytes_texts = 0
        self._tokenizer = placing_tokenizer(options)
        self._templates = templates_of(self._chat)
        special = self._tokenizer.special_ids
        self._borders = {
            name: Borders(template, special)
            for name, template in self._templates.items()
        }
        self._columns = columns_of(options)
        given = options.found.bos_id, options.found.eos_id
        self._before, self._after = (
            np.array([] if token is None else [token], np.uint32) for token in given
        )

    def read(self, records: Sequence[bytes], place_of: PlaceOf) -> Documents:
        """Returns the documents of records, one for each.

        A conversation that is set aside is a document without tokens.

        Args:
            records: The next records.
            place_of: Returns the place of a record, by its number among these.

        Raises:
            InputError: A conversation cannot be used, and is not to be set aside.
        """
        counts: Counter[str] = Counter()
        rendered: list[Rendered | None] = []
        for number, record in enumerate(records):
            try:
                rendered.append(self.rendered(record))
            except AsideError as error:
                self._set_aside(error, place_of(number), counts)
                rendered.append(None)
        placed = self.placed([each for each in rendered if each is not None])
        columns = SpanColumns()
        parts: list[np.ndarray[Any, Any]] = []
        lengths = np.zeros(len(records), np.int64)
        text_bytes = special = 0
        for number, each in enumerate(rendered):
            if each is None:
                columns.add()
                continue
            try:
                tokens = next(placed)
                made = self.document(each, tokens)
            except AsideError as error:
                self._set_aside(error, place_of(number), counts)
                columns.add()
                continue
            ids, rows, seen = made
            counts += seen
            if each.open_turn and "open_turns" not in self.examples:
                place = place_of(number)
                self.examples["open_turns"] = f"{place}, {each.open_turn}"
            columns.add(rows)
            parts.append(ids)
            lengths[number] = len(ids)
            text_bytes += tokens.size_bytes
            if each.plain and len(ids):
                special += len(self._before) + len(self._after)
        return Documents(
            np.concatenate(parts) if parts else np.zeros(0, np.uint32),
            lengths,
            text_bytes,
            special,
            len(self._after) if special else 0,
            columns.spans(),
            PackedCounts(**counts),
        )

    def rendered(self, record: bytes) -> Rendered:
        """Returns the conversation of a record as text.

        Raises:
            AsideError: It is set aside.
        """
        try:
            return self._rendered(conversation_of(record, self._columns))
        except tuple(_REJECTED) as error:
            why = f"{_REJECTED[type(error)]}: {error}"
            raise AsideError("rejected", why) from error
        except UnicodeEncodeError as error:
            raise AsideError("rejected", "a text has half of a character") from error

    def _rendered(self, conversation: Conversation) -> Rendered:
        if conversation.text is not None:
            text = conversation.text
            span = TextSpan(0, len(text), _OTHER, 0, trained=True)
            specials = next(iter(self._borders.values())).specials(text)
            return Rendered(
                text,
                [span],
                [],
                [1.0],
                Counter(special_texts=len(specials)),
                plain=True,
                specials=specials,
                alike=frozenset(specials),
            )
        template = template_for(self._templates, tools=conversation.tools is not None)
        borders = self._borders_of(template)
        text = template.render(conversation.messages, conversation.tools)
        text.encode()
        found = located(template, conversation, text)
        specials = borders.specials(text)
        alike = _in_contents(found, specials)
        turns = turns_of(
            found,
            conversation,
            [each for each in specials if each not in alike],
            self._chat,
            borders,
        )
        open_turn = ""
        for message, end in turns.open_turns[:1]:
            after = text[end : end + _SHOWN]
            open_turn = f"message {message:,}, after which stands {after!r}"
        counts = Counter(special_texts=len(alike), open_turns=len(turns.open_turns))
        return Rendered(
            text,
            turns.spans,
            turns.ends,
            conversation.weights,
            counts,
            specials=specials,
            alike=frozenset(alike),
            open_turn=open_turn,
        )

    def _borders_of(self, template: Template) -> Borders:
        return next(
            self._borders[name]
            for name, each in self._templates.items()
            if each is template
        )

    def placed(self, rendered: Sequence[Rendered]) -> Iterator[PlacedText]:
        """Yields the tokens of each of some texts."""
        texts = [each.text.encode() for each in rendered]
        found = self._tokenizer.encode_with_offsets(texts)
        stop = 0
        for each, data, length in zip(
            rendered, texts, found.lengths.tolist(), strict=True
        ):
            start, stop = stop, stop + length
            yield PlacedText(
                each.text, found.ids[start:stop], found.begins[start:stop], len(data)
            )

    def document(self, each: Rendered, placed: PlacedText) -> Document:
        """Returns the document of a text.

        Raises:
            AsideError: It is set aside.
        """
        counts = Counter(each.counts)
        if each.alike and self._options.special_text == "text":
            try:
                placed = with_special_text(
                    placed, list(each.specials), set(each.alike), self._tokenizer
                )
            except UnprovenError as error:
                raise AsideError("rejected", str(error)) from error
        if each.plain:
            ids = placed.ids
            if len(ids):
                ids = np.concatenate([self._before, ids, self._after])
            row = SpanRow(0, len(ids), _OTHER, 0, trained=True, weight=1.0)
            return Document(ids, [row] if len(ids) else [], counts)
        begins, ends = token_spans(placed, each.spans)
        length = len(placed.ids)
        if length > self._options.length:
            length = self._cut(each, placed)
            counts["truncated_documents"] = 1
            counts["truncated_tokens"] = len(placed.ids) - length
        rows = []
        is_trained = False
        for span, begin, end in zip(
            each.spans, begins.tolist(), ends.tolist(), strict=True
        ):
            end = min(end, length)
            if begin < end:
                weight = each.weights[span.message]
                rows.append(SpanRow(begin, end - begin, *span[2:], weight))
                is_trained = is_trained or span.trained
        if not is_trained:
            raise AsideError("untrained", "no token of it is trained on")
        return Document(placed.ids[:length], rows, counts)

    def _cut(self, each: Rendered, placed: PlacedText) -> int:
        """Returns how many tokens of a conversation fit a row, up to a turn's end."""
        most = self._options.length
        fitting = [
            end
            for end in token_at(placed, each.ends)
            if 0 < end <= most and self._chat.truncate_turns == "yes"
        ]
        if not fitting:
            raise AsideError("long", f"{len(placed.ids):,} tokens")
        return fitting[-1]

    def _set_aside(self, error: AsideError, place: str, counts: Counter[str]) -> None:
        """Counts a conversation that is set aside.

        Raises InputError if it is not to be.
        """
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


def placing_tokenizer(options: PackOptions) -> PlacingTokenizer:
    """Returns the tokenizer of a job with conversations.

    Raises:
        InputError: It does not know where its tokens are in a text.
    """
    tokenizer = load_tokenizer(options)
    if not hasattr(tokenizer, "encode_with_offsets"):
        raise InputError(
            "the tokenizer does not say where its tokens are in a text",
            where=options.tokenizer,
            expected="for --chat a tokenizer.json, or a tiktoken file",
            got=tokenizer.library,
            cure="give the tokenizer.json of the same model",
        )
    return cast(PlacingTokenizer, tokenizer)


def _in_contents(
    found: Located, specials: Sequence[tuple[int, int]]
) -> set[tuple[int, int]]:
    """Returns the special tokens that reach into a content."""
    alike = set()
    places = iter(found.places)
    place = next(places, None)
    for begin, end in specials:
        while place is not None and place.end <= begin:
            place = next(places, None)
        if place is not None and place.begin < end and begin < place.end:
            alike.add((begin, end))
    return alike
