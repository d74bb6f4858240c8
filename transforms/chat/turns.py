"""The spans of a conversation's text: their roles, and whether they are trained on."""

from __future__ import annotations

import bisect
import functools
import itertools
import os
import re
from collections.abc import Callable, Iterable
from typing import NamedTuple

from gristmill.dataset.packed.message_spans import ROLES
from gristmill.transforms.chat.conversation import Conversation
from gristmill.transforms.chat.located import (
    ASSISTANT,
    OF_ASSISTANT,
    THINKING,
    TOOL_CALL,
    Located,
    UnprovenError,
)
from gristmill.transforms.chat.template import Template, TemplateFailedError
from gristmill.transforms.jobs.pack_options import ChatOptions

_MOST_KEPT = 4096
_MOST_KEPT_CHARS = 512
_SHOWN = 40

Special = tuple[int, int]
"""Begin and end of a special token in a text, in characters."""


class TextSpan(NamedTuple):
    """A span of rendered text, in characters: a half-open range.

    Attributes:
        begin: First character.
        end: The character after the last.
        role: Index of its role in `ROLES`.
        message: Number of the message.
        trained: Whether it is trained on.
    """

    begin: int
    end: int
    role: int
    message: int
    trained: bool


class Turns(NamedTuple):
    """The spans of a text, with the ends of its turns.

    Attributes:
        spans: The spans, in order and disjoint.
        ends: Ends of trained messages with their end of turn, in characters.
        open_turns: Number and end of each trained message without an end of turn.
    """

    spans: list[TextSpan]
    ends: list[int]
    open_turns: list[tuple[int, int]]


class _Turn(NamedTuple):
    """A message in the text.

    Attributes:
        message: Its number.
        places: Its places, by number.
        begin, end: Its extent in characters, without the special token that ends it.
        special: Begin and end of that token; None if nothing marks the end of the turn.
    """

    message: int
    places: range
    begin: int
    end: int
    special: Special | None = None


class TurnFinder:
    """Finds the turns of the conversations that a template renders.

    The assistant generates the text from the end of its prompt to the end of its turn:
    all of it is in spans. The template's rendering of the earlier messages shows where
    prompts and turns end; these places are cached by the text around them.

    Args:
        template: The template.
        special_tokens: Texts of the tokenizer's special tokens.
        options: What to train on.
    """

    def __init__(
        self, template: Template, special_tokens: Iterable[str], options: ChatOptions
    ) -> None:
        self.template, self._options = template, options
        longest_first = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._kept: dict[tuple[object, ...], int] = {}
        self._roles = self._speakers = options.trained_roles
        if options.train != "all" and {THINKING, TOOL_CALL} & self._roles:
            self._speakers |= {ASSISTANT}  # Its messages have these parts.

    def specials(self, text: str) -> list[Special]:
        """Returns the special tokens in a text."""
        return [match.span() for match in self._special.finditer(text)]

    def turns(self, found: Located, specials: list[Special]) -> Turns:
        """Returns the spans of a conversation.

        Args:
            found: Where its messages are.
            specials: Special tokens in the text.

        Raises:
            UnprovenError: Messages overlap in the text, or do not continue their
                prompts.
        """
        conversation = found.conversation
        trained = self._trained_messages(conversation)
        runs = _runs(found)
        regions = _regions(found, runs)
        runs_of: dict[int, list[_Turn]] = {}
        for each in runs:
            runs_of.setdefault(each.message, []).append(each)
        turns = []
        for message, role in enumerate(conversation.roles):
            of_message = runs_of.get(message, [])
            if regions is not None and role == ASSISTANT:
                places = of_message[0].places if of_message else range(0)
                if message in regions:
                    begin, end = regions[message]
                    said = found.places[places[-1]].end if places else begin
                    at = bisect.bisect_left(specials, (said, 0))
                    has_end = at < len(specials) and specials[at][0] < end
                    special = (end, end) if has_end else None
                    turns.append(_Turn(message, places, begin, end, special))
            elif message in trained and role == ASSISTANT:
                turns.append(self._answer(found, message, of_message[:1], specials))
            else:
                if message in trained and of_message:
                    of_message[-1] = self._ended(found, of_message[-1], specials)
                turns += of_message
        spans: list[TextSpan] = []
        ends: list[int] = []
        open_turns: list[tuple[int, int]] = []
        for turn in turns:
            is_trained = turn.message in trained
            if self._options.train_end_of_turn == "yes":
                role = found.part(turn.places[-1]).role if turn.places else ASSISTANT
                if turn.special is not None:
                    turn = turn._replace(end=turn.special[1])
                elif is_trained and role in self._roles:
                    open_turns.append((turn.message, turn.end))
            made = _filled(found, turn, self._roles if is_trained else frozenset())
            if is_trained:
                ends.append(turn.end)
            spans += made
        spans.sort()
        for one, next_ in itertools.pairwise(spans):
            if one.end > next_.begin:
                raise UnprovenError(
                    f"messages {one.message} and {next_.message} overlap in the text"
                )
        return Turns(spans, sorted(ends), open_turns)

    def _trained_messages(self, conversation: Conversation) -> set[int]:
        """Returns the numbers of the messages to train on."""
        first = 0 if self._options.train == "all" else conversation.prompted
        found = [
            number
            for number, role in enumerate(conversation.roles)
            if role in self._speakers and number >= first
        ]
        if self._options.train == "last":
            found = found[-1:]
        return {number for number in found if conversation.weights[number] > 0}

    def _answer(
        self, found: Located, message: int, runs: list[_Turn], specials: list[Special]
    ) -> _Turn:
        """Returns the turn of an assistant's message: all text that it generates."""
        for run in runs:
            begin = self._prompt_end(found, message, run.places[0])
            turn = run._replace(begin=begin, end=max(begin, run.end))
            return self._ended(found, turn, specials)
        begin = self._find_prompt_end(found, message, None)
        before = sum(place.end <= begin for place in found.cores)
        turn = _Turn(message, range(before, before), begin, begin)
        return self._ended(found, turn, specials)

    def _prompt_end(self, found: Located, message: int, first: int) -> int:
        """Returns the end of the prompt for a message of the assistant.

        The prompt is the conversation so far, with `add_generation_prompt`.
        """
        after = found.cores[first - 1].end if first else 0
        gap = found.text[after : found.cores[first].begin]
        key = "prompt", *_around(found, message), found.part(first).role, gap

        def find() -> int:
            return self._find_prompt_end(found, message, first) - after

        return after + self._once(key, gap, find)

    def _find_prompt_end(self, found: Located, message: int, first: int | None) -> int:
        before, tools = found.marker.messages[:message], found.conversation.tools
        try:
            rendered = self.template.render(before, tools, prompt=True)
        except TemplateFailedError as error:
            raise UnprovenError(
                f"the template writes no prompt for message {message}: {error}"
            ) from error
        prompt = found.marker.marks_of(rendered)
        begin = at = 0
        if prompt.places:
            last = prompt.places[-1]
            known = [place for place in found.cores[:first] if place.part == last.part]
            if not known:
                raise UnprovenError(f"message {message} stands before its prompt")
            begin, at = known[-1].end, last.end
        tail = prompt.text[at:]
        if not found.text.startswith(tail, begin):
            got = found.text[begin : begin + len(tail)]
            shared = _same(tail, got)
            raise UnprovenError(
                f"message {message} does not go on from its generation prompt: that "
                f"has {tail[shared:][:_SHOWN]!r}, the conversation "
                f"{got[shared:][:_SHOWN]!r}; --train last, or another template"
            )
        end = begin + len(tail)
        if first is not None:
            part, header = found.part(first), found.text[end : found.cores[first].begin]
            header = header.strip()[:_SHOWN]
            if (
                header
                and part.role == ASSISTANT
                and not part.inner
                and self.template.render(before, tools) == rendered
            ):
                raise UnprovenError(
                    "the template writes no generation prompt: the model would have to "
                    f"begin message {message} with {header!r}"
                )
        return end

    def _ended(self, found: Located, turn: _Turn, specials: list[Special]) -> _Turn:
        """Returns a turn with the special token that ends it, if there is one.

        It is text that the template writes even if no message follows, so not the
        header of the next message.
        """
        messages, last = found.conversation.messages, turn.places.stop - 1
        calls = not turn.places or bool(messages[turn.message].get("tool_calls"))
        begin = found.cores[last].end if last >= 0 else 0
        stop = len(found.text)
        if last + 1 < len(found.cores):
            stop = found.cores[last + 1].begin
        if turn.message < len(messages) - 1:
            gap = found.text[begin:stop]
            role = found.part(last).role if last >= 0 else None
            key = "end", *_around(found, turn.message + 1), role, gap
            find = functools.partial(self._shared, found, turn.message, last, gap)
            stop = begin + self._once(key, gap, find)
        at = bisect.bisect_left(specials, (turn.end, 0))
        ends = [*itertools.takewhile(lambda each: each[1] <= stop, specials[at:])]
        if not ends:
            return turn
        special = ends[-1 if calls else 0]
        return turn._replace(end=special[0] if calls else turn.end, special=special)

    def _shared(self, found: Located, message: int, place: int, gap: str) -> int:
        """Returns the length of a gap's start that needs no next message."""
        try:
            rendered = self.template.render(
                found.marker.messages[: message + 1], found.conversation.tools
            )
            alone = found.marker.marks_of(rendered)
        except (TemplateFailedError, UnprovenError):
            return 0
        begin = 0
        if place >= 0:
            part = found.places[place].part
            ends = [each.end for each in alone.places if each.part == part]
            if not ends:
                return 0
            begin = ends[-1]
        return _same(gap, alone.text[begin:])

    def _once(self, key: tuple[object, ...], gap: str, find: Callable[[], int]) -> int:
        """Returns a place in a gap from the cache, or finds it."""
        if (kept := self._kept.get(key)) is None:
            kept = find()
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            if kept >= 0 and len(gap) <= _MOST_KEPT_CHARS:
                self._kept[key] = kept
        return kept


def _around(found: Located, message: int) -> tuple[object, ...]:
    """Returns the facts on which the text before a message may depend."""
    conversation = found.conversation
    kinds = tuple(
        (each["role"], bool(each.get("tool_calls")))
        for each in conversation.messages[max(message - 1, 0) : message + 1]
    )
    return *kinds, conversation.tools is None


def _runs(found: Located) -> list[_Turn]:
    """Returns runs of adjacent places of the same message."""
    runs: list[_Turn] = []
    for number, place in enumerate(found.places):
        message = found.part(number).message
        if runs and runs[-1].message == message:
            places = range(runs[-1].places.start, number + 1)
            runs[-1] = runs[-1]._replace(places=places, end=place.end)
        else:
            places = range(number, number + 1)
            runs.append(_Turn(message, places, place.begin, place.end))
    seen: set[int] = set()
    for run in runs:
        role = found.part(run.places[0]).role
        if run.message in seen and role in OF_ASSISTANT:
            raise UnprovenError(
                f"the template writes message {run.message} in more than one place"
            )
        seen.add(run.message)
    return runs


def _regions(found: Located, runs: list[_Turn]) -> dict[int, tuple[int, int]] | None:
    """Returns the contents of generation tags, by message; None without tags."""
    if found.regions is None:
        return None
    conversation = found.conversation
    regions: dict[int, tuple[int, int]] = {}
    empty = []
    last_message = None
    for begin, end in found.regions:
        inside = {
            run.message
            for run in runs
            if (run.begin < end and begin < run.end)
            or (begin <= run.begin and run.end <= end)
        }
        if not inside:
            if last_message is not None and regions[last_message][1] == begin:
                # Several tags may follow one another.
                regions[last_message] = regions[last_message][0], end
            else:
                empty.append((begin, end))
            continue
        message = min(inside)
        run = next(run for run in runs if run.message == message)
        role = conversation.roles[message]
        cuts = run.begin < begin or run.end > end or message in regions
        if len(inside) > 1 or role != ASSISTANT or cuts:
            raise UnprovenError(
                "a generation tag does not hold one message of the assistant: it holds "
                f"{'a part of ' * cuts}message {message} ({ROLES[role]})"
                + " and others"
                * (len(inside) > 1)
            )
        regions[message] = begin, end
        last_message = message
    without = [
        number
        for number, role in enumerate(conversation.roles)
        if role == ASSISTANT and number not in {run.message for run in runs}
    ]
    if len(without) == len(empty):
        regions |= dict(zip(without, empty, strict=True))
    elif any(begin < end for begin, end in empty):
        raise UnprovenError("a generation tag holds no message")
    return regions


def _filled(found: Located, turn: _Turn, roles: frozenset[int]) -> list[TextSpan]:
    """Returns spans that fill the extent of a message.

    Text of the template beside a thought or a tool call belongs to it.
    """
    spans: list[TextSpan] = []
    cursor, before = turn.begin, None
    for number in turn.places:
        place = found.places[number]
        role = found.part(number).role
        begin = max(place.begin, cursor)
        between = _role_between(before, role)
        spans += [
            TextSpan(cursor, begin, between, turn.message, between in roles),
            TextSpan(begin, place.end, role, turn.message, role in roles),
        ]
        cursor, before = place.end, role
    role = ASSISTANT if before is None else before
    spans.append(TextSpan(cursor, turn.end, role, turn.message, role in roles))
    return [span for span in spans if span.begin < span.end]


def _role_between(before: int | None, after: int) -> int:
    """Returns the role of the text between two parts of a message."""
    if THINKING in (before, after if before is None else None):
        return THINKING
    return TOOL_CALL if TOOL_CALL in (before, after) else after


def _same(one: str, other: str) -> int:
    """Returns the number of characters of two texts' common start."""
    return len(os.path.commonprefix([one, other]))  # noqa: RUF071 as of any texts
