"""The borders of a message's turn: where its header ends, and its end of turn."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

from gristmill.transforms.chat.conversation import Conversation
from gristmill.transforms.chat.located import Located
from gristmill.transforms.chat.marks import UnprovenError, unmarked
from gristmill.transforms.chat.template import Template, TemplateFailedError

_MOST_KEPT = 4096
_MOST_KEPT_CHARS = 512
_BLANK = re.compile(r"\s*")

T = TypeVar("T")


class Borders:
    """Finds the borders of turns, each proved by what the template writes alone.

    What was proved once is kept, by the text around it.

    Args:
        template: The template.
        special_tokens: Texts of the tokenizer's special tokens.
    """

    def __init__(self, template: Template, special_tokens: Iterable[str]) -> None:
        self._template = template
        longest_first = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._headers: dict[tuple[object, ...], int | None] = {}
        self._ends: dict[tuple[object, ...], bool] = {}

    def specials(self, text: str) -> list[tuple[int, int]]:
        """Returns begin and end of each special token in a text, in characters."""
        return [match.span() for match in self._special.finditer(text)]

    def header_end(
        self, found: Located, conversation: Conversation, number: int, after: int
    ) -> int | None:
        """Returns where the header of a message of the assistant ends.

        That is where the prompt for generation ends, or where a plain content would
        begin; None if neither is in the text.

        Args:
            found: Where the messages are.
            conversation: The conversation.
            number: Number of the place with which the message begins.
            after: End of what stands before its header.
        """
        place = found.places[number]
        part = found.parts[place.part]
        gap = found.text[after : place.begin]
        key = self._roles(conversation, part.message), part.role, part.inner, gap
        if key not in self._headers:
            end = self._header_end(found, conversation, part.message, place.begin)
            known = None if end is None or end < after else end - after
            if len(gap) > _MOST_KEPT_CHARS:
                return None if known is None else after + known
            _keep(self._headers, key, known)
        kept = self._headers[key]
        return None if kept is None else after + kept

    def _header_end(
        self, found: Located, conversation: Conversation, message: int, limit: int
    ) -> int | None:
        text, tools = found.text, conversation.tools
        before = conversation.messages[:message]
        render = self._template.render
        try:
            prompted = render(before, tools, prompt=True)
            bare = render(before, tools)
        except TemplateFailedError:  # Such as without a message before.
            prompted = bare = ""
        is_prompt = prompted.startswith(bare) and len(bare) < len(prompted) <= limit
        if is_prompt and text.startswith(prompted):
            return _past_blanks(text, len(prompted), limit)
        plain = {"role": conversation.messages[message]["role"]}
        mark = chr(found.base)
        try:
            shown = render([*before, plain | {"content": f"{mark}a{mark}"}], tools)
        except TemplateFailedError:
            return None
        header = shown.partition(mark)[0].rstrip()
        if not header or len(header) > limit or not text.startswith(header):
            return None
        return _past_blanks(text, len(header), limit)

    def turn_end(
        self,
        found: Located,
        conversation: Conversation,
        number: int,
        special: tuple[int, int],
    ) -> int | None:
        """Returns the end of the special token that ends the turn of a message.

        It does if the template writes it also where no message follows: then it does
        not begin the header of the next.

        Args:
            found: Where the messages are.
            conversation: The conversation.
            number: Number of the place with which the message ends.
            special: Begin and end of the next special token.
        """
        place = found.places[number]
        message = found.parts[place.part].message
        if message == len(conversation.messages) - 1:
            return special[1]
        ending = found.text[place.end : special[1]]
        roles = self._roles(conversation, message + 1)
        key = roles, found.parts[place.part].role, ending
        if key not in self._ends:
            proved = self._ends_so(found, conversation, place.part, ending)
            if len(ending) > _MOST_KEPT_CHARS:
                return special[1] if proved else None
            _keep(self._ends, key, proved)
        return special[1] if self._ends[key] else None

    def _ends_so(
        self, found: Located, conversation: Conversation, part: int, ending: str
    ) -> bool:
        """Returns whether a conversation that ends with a message has an ending."""
        last = found.parts[part].message
        messages = found.marker.messages[: last + 1]
        try:
            rendered = self._template.render(messages, conversation.tools)
            alone = unmarked(rendered, found.base)
        except (TemplateFailedError, UnprovenError):
            return False
        ends = [place.end for place in alone.places if place.part == part]
        part_trail = found.parts[part].trail
        return bool(ends) and any(
            alone.text.startswith(before + ending, ends[-1])
            for before in {"", part_trail}
        )

    def _roles(self, conversation: Conversation, number: int) -> tuple[object, ...]:
        """Returns the roles of a message and of the one before it."""
        roles = [message["role"] for message in conversation.messages]
        return tuple(roles[max(0, number - 1) : number + 1])


def _past_blanks(text: str, begin: int, limit: int) -> int:
    match = _BLANK.match(text, begin, limit)
    return begin if match is None else match.end()


def _keep(kept: dict[tuple[object, ...], T], key: tuple[object, ...], value: T) -> None:
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[key] = value
