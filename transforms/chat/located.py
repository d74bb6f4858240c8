"""The places of messages in rendered text, proved by a second rendering with marks.

Marks are characters for private use, around the contents of messages.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gristmill.dataset.packed.message_spans import ROLES
from gristmill.transforms.chat.conversation import Conversation, UnusableError
from gristmill.transforms.chat.template import REASONING, Template, TemplateFailedError

ASSISTANT, THINKING, TOOL_CALL = (
    ROLES.index(name) for name in ("assistant", "thinking", "tool_call")
)
OF_ASSISTANT = frozenset((ASSISTANT, THINKING, TOOL_CALL))

_SPAN = 0xFFF0
_PATTERNS = {
    base: re.compile(f"[{chr(base)}-{chr(base + _SPAN - 1)}]")
    for base in (0x100000, 0xF0000)  # Two planes for private use.
}
_GENERATION = _SPAN - 2  # The marks of generation tags.
_MOST_PARTS = _GENERATION // 2

_THOUGHT = re.compile(r"<(think|thinking|thought)>|\[THINK\]")

# Whether to mark names of tools, and empty contents. The first attempt that succeeds
# counts: templates can compare names, and omit empty contents.
_ATTEMPTS = ((True, True), (True, False), (False, True), (False, False))


class Part(NamedTuple):
    """A part of a message whose text is marked.

    Attributes:
        message: Number of the message.
        role: Index of its role in `ROLES`.
        lead: White space before the marks.
        trail: White space after them.
        inner: Whether other text of the same content precedes it.
    """

    message: int
    role: int
    lead: str
    trail: str
    inner: bool


class Place(NamedTuple):
    """The half-open range of characters of a part in rendered text."""

    begin: int
    end: int
    part: int


class Marked(NamedTuple):
    """Rendered text without its marks.

    Attributes:
        text: The text without marks.
        places: Places of each part between its marks, in order, without overlaps.
        regions: Begin and end of the content of each generation tag.
    """

    text: str
    places: list[Place]
    regions: list[tuple[int, int]]


class UnprovenError(UnusableError):
    """The place of a message cannot be proved."""

    what = "it cannot be proved what is trained on"


def _free_base(text: str) -> int:
    """Returns the first of a range of characters for marks that are not in a text."""
    for base, pattern in _PATTERNS.items():
        if text.isascii() or pattern.search(text) is None:
            return base
    raise UnprovenError("its text has characters for private use of both planes")


@dataclasses.dataclass(frozen=True)
class Marker:
    """Marks the contents of a conversation.

    Marks stand inside the outer white space of a text, so that a template that trims it
    renders the same. The assistant's thoughts, between tags in its content, are a part
    of their own.

    Args:
        conversation: The conversation.
        base: The first character for marks.
        names: Whether to mark the names of called tools.
        empties: Whether to mark empty contents of the assistant.
        stripped: Whether to strip outer white space.
        replaced: Numbers of parts that get another text instead of marks.

    Attributes:
        messages: The messages with marks.
        parts: The parts, in the order of their marks.
        unmarked_calls: Message and number of each tool call without a mark.
    """

    conversation: Conversation
    base: int
    names: bool
    empties: bool
    stripped: bool = False
    replaced: frozenset[int] | None = None
    messages: list[dict[str, Any]] = dataclasses.field(init=False, default_factory=list)
    parts: list[Part] = dataclasses.field(init=False, default_factory=list)
    unmarked_calls: list[tuple[int, int]] = dataclasses.field(
        init=False, default_factory=list
    )

    def __post_init__(self) -> None:
        given = zip(self.conversation.messages, self.conversation.roles, strict=True)
        for number, (message, role) in enumerate(given):
            self.messages.append(self._message(number, message, role))
        if len(self.parts) > _MOST_PARTS:
            raise UnprovenError(f"it has {len(self.parts):,} parts")

    def _message(
        self, number: int, message: dict[str, Any], role: int
    ) -> dict[str, Any]:
        marked = dict(message)
        if role == ASSISTANT:
            seen: dict[str, str] = {}
            for name in REASONING:
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
        """Marks the thoughts and the answer in a content of the assistant."""
        opened = _THOUGHT.search(content)
        end = "[/THINK]"
        if opened is None:
            end = "</think>"  # The template may have written the opening tag.
        elif opened[1]:
            end = f"</{opened[1]}>"
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
        if self.names and isinstance(inside.get("name"), str):
            marked["name"] = self._text(inside["name"], number, TOOL_CALL)
        for name in ("arguments", "parameters"):
            if name in inside:
                marked[name] = self._leaves(inside[name], number, TOOL_CALL)
        if len(self.parts) == before:
            self.unmarked_calls.append((number, at))
        return marked if inside is call else {**call, "function": marked}

    def _leaves(self, value: Any, number: int, role: int) -> Any:
        """Marks the strings in a value of JSON."""
        if isinstance(value, str):
            return self._text(value, number, role)
        if isinstance(value, Mapping):
            return {k: self._leaves(each, number, role) for k, each in value.items()}
        if isinstance(value, list):
            return [self._leaves(each, number, role) for each in value]
        return value

    def _text(self, text: str, number: int, role: int, *, inner: bool = False) -> str:
        core = text.strip()
        if not core and (role != ASSISTANT or not self.empties or inner):
            return text
        begin = text.index(core) if core else len(text)
        lead, trail = text[:begin], text[begin + len(core) :]
        part = len(self.parts)
        self.parts.append(Part(number, role, lead, trail, inner))
        if self.replaced is not None:
            if part not in self.replaced:
                return text
            other = "q" * len(core)
            return lead + (other if other != core else "z" * len(core)) + trail
        mark = self.base + 2 * part
        core = f"{chr(mark)}{core}{chr(mark + 1)}"
        return core if self.stripped else lead + core + trail

    def marks_of(self, text: str) -> Marked:
        """Removes the marks from rendered text; they must pair, or UnprovenError."""
        places: list[Place] = []
        regions: list[tuple[int, int]] = []
        opened = region = None
        pattern = _PATTERNS[self.base]
        for number, match in enumerate(pattern.finditer(text)):
            mark, at = ord(match[0]) - self.base, match.start() - number
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

    def rendered(self, template: Template) -> Marked:
        """Returns the messages rendered by a template, without the marks.

        Raises:
            UnprovenError: The template fails, or the marks do not pair.
        """
        around = chr(self.base + _GENERATION), chr(self.base + _GENERATION + 1)
        tools = self.conversation.tools
        try:
            text = template.render(self.messages, tools, around=around)
        except TemplateFailedError as e:
            raise UnprovenError(f"the template looks into a content: {e}") from e
        return self.marks_of(text)


def _is_text(part: Any) -> bool:
    return isinstance(part, str) or (
        isinstance(part, Mapping) and isinstance(part.get("text"), str)
    )


class Located(NamedTuple):
    """Rendered text with the places of the parts of its messages.

    Attributes:
        text: The text.
        places: Places of parts, in order, with their outer white space.
        cores: The same without white space.
        regions: Places of the contents of generation tags; None if the template has
            none.
        marker: The marks that proved it.
    """

    text: str
    places: list[Place]
    cores: list[Place]
    regions: list[tuple[int, int]] | None
    marker: Marker

    @property
    def conversation(self) -> Conversation:
        """The conversation."""
        return self.marker.conversation

    def part(self, place: int) -> Part:
        """Returns the part at the place with this number."""
        return self.marker.parts[self.places[place].part]


def located(template: Template, conversation: Conversation, text: str) -> Located:
    """Returns the places of a conversation's messages in its text.

    Args:
        template: The template.
        conversation: The conversation.
        text: The text that the template renders for it.

    Raises:
        UnprovenError: The template changes or drops a content.
    """
    base = _free_base(text)
    failed = ""
    tried: list[list[Part]] = []
    for names, empties in _ATTEMPTS:
        marker = Marker(conversation, base, names, empties)
        if marker.parts in tried:
            continue
        tried.append(marker.parts)
        try:
            found = marker.rendered(template)
            if found.text != text:
                raise UnprovenError("the template changes a content")  # noqa: TRY301
            _check_parts(template, marker, found)
            _check_calls(template, marker, text)
        except UnprovenError as error:
            failed = str(error)
            continue
        places = found.places
        if any(part.lead or part.trail for part in marker.parts):
            places = _with_space(template, marker, found)
        regions = found.regions if template.has_generation else None
        return Located(text, places, found.places, regions, marker)
    raise UnprovenError(failed)


def _check_parts(template: Template, marker: Marker, found: Marked) -> None:
    """Checks that each text of the assistant is rendered once.

    Only thoughts may have no place, if they have no effect on the rendered text.
    """
    seen: set[int] = set()
    for place in found.places:
        part = marker.parts[place.part]
        if place.part in seen and part.role in OF_ASSISTANT:
            raise UnprovenError(
                f"the template writes a text of message {part.message} twice"
            )
        seen.add(place.part)
    dropped = frozenset(range(len(marker.parts))) - seen
    for number in sorted(dropped):
        part = marker.parts[number]
        if part.role != THINKING:
            raise UnprovenError(
                f"the template leaves out a text of message {part.message} "
                f"({ROLES[part.role]})"
            )
    if dropped:
        other = dataclasses.replace(marker, replaced=dropped)
        with contextlib.suppress(TemplateFailedError):
            tools = marker.conversation.tools
            if template.render(other.messages, tools) == found.text:
                return
        raise UnprovenError("the template changes a thought")


def _check_calls(template: Template, marker: Marker, text: str) -> None:
    """Checks that a tool call without a mark has an effect on the text."""
    conversation = marker.conversation
    for number, at in marker.unmarked_calls:
        messages = list(conversation.messages)
        calls = messages[number]["tool_calls"]
        messages[number] = messages[number] | {
            "tool_calls": calls[:at] + calls[at + 1 :]
        }
        with contextlib.suppress(TemplateFailedError):
            if template.render(messages, conversation.tools) == text:
                raise UnprovenError(
                    f"the template leaves out a tool call of message {number}"
                )


def _with_space(template: Template, marker: Marker, found: Marked) -> list[Place]:
    """Returns places with the outer white space that the template keeps.

    A rendering without that white space tells it from what the template itself writes.
    """
    try:
        other = dataclasses.replace(marker, stripped=True).rendered(template)
    except UnprovenError:
        return found.places
    if [place.part for place in other.places] != [p.part for p in found.places]:
        return found.places
    gaps = _gaps(found), _gaps(other)
    places = list(found.places)
    for number, (gap, bare) in enumerate(zip(*gaps, strict=True)):
        before = marker.parts[places[number - 1].part].trail if number else ""
        after = ""
        if number < len(places):
            after = marker.parts[places[number].part].lead
        kept = {
            (len(head), len(tail))
            for head in {before, ""}
            for tail in {after, ""}
            if gap == head + bare + tail
        }
        if len(kept) != 1:
            continue  # The template may have written it.
        ((head_chars, tail_chars),) = kept
        if head_chars:
            last = places[number - 1]
            places[number - 1] = last._replace(end=last.end + head_chars)
        if tail_chars:
            next_ = places[number]
            places[number] = next_._replace(begin=next_.begin - tail_chars)
    return places


def _gaps(found: Marked) -> Sequence[str]:
    """Returns the text before each place, and after the last."""
    ends = [0, *(place.end for place in found.places)]
    begins = [*(place.begin for place in found.places), len(found.text)]
    return [found.text[a:b] for a, b in zip(ends, begins, strict=True)]
