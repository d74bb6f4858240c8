"""The places of messages in rendered text, proved by a second rendering with marks."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from gristmill.dataset.packed.message_spans import ROLES
from gristmill.transforms.chat.conversation import Conversation
from gristmill.transforms.chat.marks import (
    OF_ASSISTANT,
    THINKING,
    Marked,
    Marker,
    Part,
    Place,
    UnprovenError,
    free_base,
    generation_marks,
    unmarked,
)
from gristmill.transforms.chat.template import Template, TemplateFailedError

# What to mark: names of tools, and empty contents. The first that proves all counts:
# templates can compare names, and leave out what is empty.
_ATTEMPTS = ((True, True), (True, False), (False, True), (False, False))


class Located(NamedTuple):
    """Rendered text, and where the parts of its messages are.

    Attributes:
        text: The text.
        places: Places of parts, in order, with the white space that is theirs.
        cores: The same without it.
        parts: The parts that places name.
        regions: What generation tags hold; None if the template has none.
        marker: The marks that proved it.
        base: Their first character.
    """

    text: str
    places: list[Place]
    cores: list[Place]
    parts: list[Part]
    regions: list[tuple[int, int]] | None
    marker: Marker
    base: int


def located(template: Template, conversation: Conversation, text: str) -> Located:
    """Returns where the messages of a conversation are in its text.

    Args:
        template: The template.
        conversation: The conversation.
        text: What the template writes for it.

    Raises:
        UnprovenError: That cannot be proved: the template changes or drops a content.
    """
    base = free_base(text)
    failed = ""
    tried: list[list[Part]] = []
    for names, empties in _ATTEMPTS:
        marker = Marker(conversation, base, names=names, empties=empties)
        if marker.parts in tried:
            continue
        tried.append(marker.parts)
        try:
            found = _found(template, conversation, marker, base)
            if found.text != text:
                raise UnprovenError("the template changes a content")  # noqa: TRY301
            _check_once(marker, found)
            _check_dropped(template, conversation, marker, found)
            _check_calls(template, conversation, marker, text)
        except UnprovenError as error:
            failed = str(error)
            continue
        places = found.places
        if any(part.lead or part.trail for part in marker.parts):
            places = _with_space(template, conversation, marker, found, base)
        regions = found.regions if template.has_generation else None
        return Located(text, places, found.places, marker.parts, regions, marker, base)
    raise UnprovenError(failed)


def _found(
    template: Template, conversation: Conversation, marker: Marker, base: int
) -> Marked:
    try:
        rendered = template.render(
            marker.messages, conversation.tools, around=generation_marks(base)
        )
    except TemplateFailedError as error:
        raise UnprovenError(f"the template looks into a content: {error}") from error
    return unmarked(rendered, base)


def _check_once(marker: Marker, found: Marked) -> None:
    """Checks that what the assistant says is written once."""
    seen: set[int] = set()
    for place in found.places:
        part = marker.parts[place.part]
        if place.part in seen and part.role in OF_ASSISTANT:
            raise UnprovenError(
                f"the template writes a text of message {part.message} twice"
            )
        seen.add(place.part)


def _check_dropped(
    template: Template, conversation: Conversation, marker: Marker, found: Marked
) -> None:
    """Checks that parts without a place are thoughts that are left out on purpose.

    Such a part has no effect on what the template writes.
    """
    dropped = frozenset(range(len(marker.parts))) - {p.part for p in found.places}
    if not dropped:
        return
    for number in sorted(dropped):
        part = marker.parts[number]
        if part.role != THINKING:
            raise UnprovenError(
                f"the template leaves out a text of message {part.message} "
                f"({ROLES[part.role]})"
            )
    other = marker.again(replaced=dropped)
    try:
        text = template.render(other.messages, conversation.tools)
    except TemplateFailedError:
        text = ""
    if text != found.text:
        raise UnprovenError("the template changes a thought")


def _check_calls(
    template: Template, conversation: Conversation, marker: Marker, text: str
) -> None:
    """Checks that a call of a tool without a mark has an effect on the text."""
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


def _with_space(
    template: Template,
    conversation: Conversation,
    marker: Marker,
    found: Marked,
    base: int,
) -> list[Place]:
    """Returns places with the outer white space that the template keeps.

    Without the white space the template writes the same, less what it keeps: that tells
    it from what the template itself writes there.
    """
    try:
        other = _found(template, conversation, marker.again(stripped=True), base)
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
            continue  # The template can have written it as well.
        ((head_chars, tail_chars),) = kept
        if head_chars:
            last = places[number - 1]
            places[number - 1] = last._replace(end=last.end + head_chars)
        if tail_chars:
            next_ = places[number]
            places[number] = next_._replace(begin=next_.begin - tail_chars)
    return places


def _gaps(found: Marked) -> Sequence[str]:
    """Returns the text before each place, and that after the last."""
    ends = [0, *(place.end for place in found.places)]
    begins = [*(place.begin for place in found.places), len(found.text)]
    return [found.text[a:b] for a, b in zip(ends, begins, strict=True)]
