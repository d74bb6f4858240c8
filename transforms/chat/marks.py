"""Marks in the contents of messages, by which they are found in rendered text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from gristmill.dataset.packed.message_spans import ROLES
from gristmill.transforms.chat.conversation import Conversation

ASSISTANT, THINKING, TOOL_CALL = (
    ROLES.index(name) for name in ("assistant", "thinking", "tool_call")
)
OF_ASSISTANT = frozenset((ASSISTANT, THINKING, TOOL_CALL))

_BASES = (0x100000, 0xF0000)  # Two planes for private use.
_SPAN = 0xFFF0
_GENERATION = _SPAN - 2  # The marks of generation tags.
MOST_PARTS = _GENERATION // 2

_REASONING = ("reasoning_content", "thinking", "reasoning")
_THOUGHT = re.compile(r"<(think|thinking|thought)>|\[THINK\]")
_THOUGHT_ENDS = {
    "think": "</think>",
    "thinking": "</thinking>",
    "thought": "</thought>",
}


class Part(NamedTuple):
    """A part of a message whose text is marked.

    Attributes:
        message: Number of the message.
        role: Index in `ROLES` of whose text it is.
        lead: White space before the marks.
        trail: White space after them.
        inner: Whether text of the same content stands before it.
    """

    message: int
    role: int
    lead: str
    trail: str
    inner: bool


class Place(NamedTuple):
    """Where a part is in rendered text, in characters: a half-open range."""

    begin: int
    end: int
    part: int


class Marked(NamedTuple):
    """Rendered text with its marks taken out.

    Attributes:
        text: The text without marks.
        places: Places of each part between its marks, in order, without overlaps.
        regions: Begin and end of what each generation tag holds.
    """

    text: str
    places: list[Place]
    regions: list[tuple[int, int]]


class UnprovenError(Exception):
    """It cannot be proved where a message is; the text says why."""


def free_base(text: str) -> int:
    """Returns the first of a range of characters for marks that a text does not have.

    Raises UnprovenError if there is none.
    """
    if text.isascii():
        return _BASES[0]
    for base in _BASES:
        if _pattern(base).search(text) is None:
            return base
    raise UnprovenError("its text has characters for private use of both planes")


def generation_marks(base: int) -> tuple[str, str]:
    """Returns the marks that stand around what a generation tag holds."""
    return chr(base + _GENERATION), chr(base + _GENERATION + 1)


class Marker:
    """Marks the contents of a conversation.

    Marks stand inside the outer white space of a text, so that a template that trims it
    gives the same result. What the assistant thinks, between tags in its content, is a
    part of its own.

    Args:
        conversation: The conversation.
        base: The first character for marks.
        names: Whether to mark the names of called tools.
        empties: Whether to mark empty contents of the assistant.
        stripped: Whether to leave out outer white space.
        replaced: Numbers of parts that get another text instead of marks.

    Attributes:
        messages: The messages with marks.
        parts: The parts, in the order of their marks.
        unmarked_calls: Message and number of each call of a tool without a mark.
    """

    def __init__(
        self,
        conversation: Conversation,
        base: int,
        *,
        names: bool = True,
        empties: bool = True,
        stripped: bool = False,
        replaced: frozenset[int] | None = None,
    ) -> None:
        self._conversation, self._base = conversation, base
        self._names, self._empties = names, empties
        self._stripped, self._replaced = stripped, replaced
        self.parts: list[Part] = []
        self.unmarked_calls: list[tuple[int, int]] = []
        self.messages = [
            self._message(number, message, role)
            for number, (message, role) in enumerate(
                zip(conversation.messages, conversation.roles, strict=True)
            )
        ]
        if len(self.parts) > MOST_PARTS:
            raise UnprovenError(f"it has {len(self.parts):,} parts")

    def again(
        self, *, stripped: bool = False, replaced: frozenset[int] | None = None
    ) -> Marker:
        """Returns a marker of the same parts, with other changes of their texts."""
        return Marker(
            self._conversation,
            self._base,
            names=self._names,
            empties=self._empties,
            stripped=stripped,
            replaced=replaced,
        )

    def _message(
        self, number: int, message: dict[str, Any], role: int
    ) -> dict[str, Any]:
        marked = dict(message)
        if role == ASSISTANT:
            seen: dict[str, str] = {}
            for name in _REASONING:
                text = message.get(name)
                if isinstance(text, str):
                    if text not in seen:
                        seen[text] = self._text(text, number, THINKING)
                    marked[name] = seen[text]
        content = message.get("content")
        if isinstance(content, str):
            marked["content"] = (
                self._answer(content, number)
                if role == ASSISTANT
                else self._text(content, number, role)
            )
        elif isinstance(content, list) and all(map(_is_text, content)):
            marked["content"] = [
                {**part, "text": self._text(part["text"], number, role)}
                if isinstance(part, Mapping)
                else self._text(part, number, role)
                for part in content
            ]
        elif content is not None:
            marked["content"] = self._leaves(content, number, role)
        if message.get("tool_calls"):
            marked["tool_calls"] = [
                self._call(call, number, at)
                for at, call in enumerate(message["tool_calls"])
            ]
        return marked

    def _answer(self, content: str, number: int) -> str:
        """Marks what the assistant thinks and what it says in its content."""
        opened = _THOUGHT.search(content)
        end = "[/THINK]"
        if opened is None:
            end = "</think>"  # The template can have written what opens it.
        elif opened[1]:
            end = _THOUGHT_ENDS[opened[1]]
        begin = 0 if opened is None else opened.end()
        stop = content.find(end, begin)
        if stop < 0 or (opened is not None and content[: opened.start()].strip()):
            return self._text(content, number, ASSISTANT)
        inner = opened is not None
        thought = self._text(content[begin:stop], number, THINKING, inner=inner)
        rest = content[stop + len(end) :]
        said = self._text(rest, number, ASSISTANT, inner=True)
        return content[:begin] + thought + end + said

    def _call(self, call: Mapping[str, Any], number: int, at: int) -> dict[str, Any]:
        function = call.get("function")
        inside = function if isinstance(function, Mapping) else call
        before = len(self.parts)
        marked = dict(inside)
        if self._names and isinstance(inside.get("name"), str):
            marked["name"] = self._text(inside["name"], number, TOOL_CALL)
        for name in ("arguments", "parameters"):
            if name in inside:
                marked[name] = self._leaves(inside[name], number, TOOL_CALL)
        if len(self.parts) == before:
            self.unmarked_calls.append((number, at))
        return marked if inside is call else {**call, "function": marked}

    def _leaves(self, value: Any, number: int, role: int) -> Any:
        """Marks the texts in a value of JSON."""
        if isinstance(value, str):
            return self._text(value, number, role)
        if isinstance(value, Mapping):
            return {k: self._leaves(each, number, role) for k, each in value.items()}
        if isinstance(value, list):
            return [self._leaves(each, number, role) for each in value]
        return value

    def _text(self, text: str, number: int, role: int, *, inner: bool = False) -> str:
        core = text.strip()
        if not core and (role != ASSISTANT or not self._empties or inner):
            return text
        begin = text.index(core) if core else len(text)
        lead, trail = text[:begin], text[begin + len(core) :]
        part = len(self.parts)
        self.parts.append(Part(number, role, lead, trail, inner))
        if self._replaced is not None:
            if part not in self._replaced:
                return text
            other = "q" * len(core)
            return lead + (other if other != core else "z" * len(core)) + trail
        mark = self._base + 2 * part
        core = f"{chr(mark)}{core}{chr(mark + 1)}"
        return core if self._stripped else lead + core + trail


def unmarked(text: str, base: int) -> Marked:
    """Takes the marks out of rendered text.

    Raises:
        UnprovenError: They are not in pairs.
    """
    places: list[Place] = []
    regions: list[tuple[int, int]] = []
    opened = region = None
    pattern = _pattern(base)
    for number, match in enumerate(pattern.finditer(text)):
        mark, at = ord(match[0]) - base, match.start() - number
        part, is_end = divmod(mark, 2)
        if mark >= _GENERATION:
            if (region is None) == bool(is_end) or opened is not None:
                raise UnprovenError("its generation tags are not in pairs")
            if region is not None:
                regions.append((region, at))
            region = None if is_end else at
        elif is_end:
            if opened is None or opened.part != part:
                raise UnprovenError("the template cuts a content")
            places.append(opened._replace(end=at))
            opened = None
        elif opened is not None:
            raise UnprovenError("the template writes a content into another")
        else:
            opened = Place(at, at, part)
    if opened is not None or region is not None:
        raise UnprovenError("the template cuts a content")
    return Marked(pattern.sub("", text), places, regions)


def _pattern(base: int) -> re.Pattern[str]:
    return _PATTERNS[base]


_PATTERNS = {
    base: re.compile(f"[{chr(base)}-{chr(base + _SPAN - 1)}]") for base in _BASES
}


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or (
        isinstance(part, Mapping) and isinstance(part.get("text"), str)
    )
