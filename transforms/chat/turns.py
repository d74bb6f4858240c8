"""The spans of a conversation's text: whose each is, and whether it is trained on."""

from __future__ import annotations

import bisect
import itertools
from typing import NamedTuple

from gristmill.dataset.packed.message_spans import ROLES
from gristmill.transforms.chat.borders import Borders
from gristmill.transforms.chat.conversation import Conversation
from gristmill.transforms.chat.located import Located
from gristmill.transforms.chat.marks import (
    ASSISTANT,
    OF_ASSISTANT,
    THINKING,
    TOOL_CALL,
    Place,
    UnprovenError,
)
from gristmill.transforms.jobs.pack_options import ChatOptions


class TextSpan(NamedTuple):
    """A span of rendered text, in characters: a half-open range.

    Attributes:
        begin: First character.
        end: The character after the last.
        role: Index in `ROLES` of whose text it is.
        message: Number of the message.
        trained: Whether it is trained on.
    """

    begin: int
    end: int
    role: int
    message: int
    trained: bool


class Turns(NamedTuple):
    """The spans of a text, and what was seen on the way.

    Attributes:
        spans: The spans, in order; none overlap.
        ends: Where trained messages end, with their end of turn, in characters.
        open_turns: Trained messages after which no end of turn is written, or that have
            no place in the text.
    """

    spans: list[TextSpan]
    ends: list[int]
    open_turns: int


class _Message(NamedTuple):
    """The places of a message that stand together, by number: a half-open range."""

    message: int
    first: int
    stop: int


def turns_of(
    found: Located,
    conversation: Conversation,
    specials: list[tuple[int, int]],
    options: ChatOptions,
    borders: Borders,
) -> Turns:
    """Returns the spans of a conversation.

    Args:
        found: Where its messages are.
        conversation: The conversation.
        specials: Special tokens in the text.
        options: What to train on.
        borders: Finds headers and ends of turns.

    Raises:
        UnprovenError: Messages are mixed up in the text.
    """
    trained = trained_messages(conversation, options)
    roles = options.trained_roles
    ends_trained = options.train_end_of_turn == "yes"
    runs = _runs(found)
    regions = _regions(found, conversation, runs)
    spans: list[TextSpan] = []
    ends: list[int] = []
    open_turns = 0
    for run in runs:
        first, last = found.places[run.first], found.places[run.stop - 1]
        begin, end = first.begin, last.end
        is_trained = run.message in trained
        of_assistant = conversation.roles[run.message] == ASSISTANT
        after = found.places[run.first - 1].end if run.first else 0
        closed = True
        if regions is not None and of_assistant:
            if run.message in regions:
                begin, end = regions[run.message]
            else:
                is_trained = False
        elif is_trained:
            part = found.parts[first.part]
            if part.inner or part.role in (THINKING, TOOL_CALL):
                header = borders.header_end(found, conversation, run.first, after)
                if header is not None and not _has(specials, header, begin):
                    begin = header
            if ends_trained and found.parts[last.part].role in roles:
                turn = _turn_end(found, conversation, run, specials, borders)
                closed, end = turn is not None, end if turn is None else turn
        inside = found.places[run.first : run.stop]
        made = _filled(found, inside, (begin, end), run.message, roles, specials)
        if not is_trained:
            made = [span._replace(trained=False) for span in made]
        if any(span.trained for span in made):
            ends.append(end)
            open_turns += not closed
        spans += made
    written = {run.message for run in runs} | {*(regions or ())}
    open_turns += len(trained - written)
    if regions is not None:
        spans += _without_places(found, regions, runs, trained, roles, ends)
    spans.sort()
    for one, next_ in itertools.pairwise(spans):
        if one.end > next_.begin:
            raise UnprovenError(
                f"messages {one.message} and {next_.message} overlap in the text"
            )
    return Turns(spans, sorted(ends), open_turns)


def trained_messages(conversation: Conversation, options: ChatOptions) -> set[int]:
    """Returns the numbers of the messages to train on."""
    speaks = options.trained_roles
    if options.train != "all" and {THINKING, TOOL_CALL} & speaks:
        speaks |= {ASSISTANT}  # Its messages have these parts.
    first = 0 if options.train == "all" else conversation.prompted
    found = [
        number
        for number, role in enumerate(conversation.roles)
        if role in speaks and number >= first
    ]
    if options.train == "last":
        found = found[-1:]
    return {number for number in found if conversation.weights[number] > 0}


def _runs(found: Located) -> list[_Message]:
    """Returns the places that stand together, by message."""
    runs: list[_Message] = []
    for number, place in enumerate(found.places):
        message = found.parts[place.part].message
        if runs and runs[-1].message == message:
            runs[-1] = runs[-1]._replace(stop=number + 1)
        else:
            runs.append(_Message(message, number, number + 1))
    seen: set[int] = set()
    for run in runs:
        role = found.parts[found.places[run.first].part].role
        if run.message in seen and role in OF_ASSISTANT:
            raise UnprovenError(
                f"the template writes message {run.message} in more than one place"
            )
        seen.add(run.message)
    return runs


def _regions(
    found: Located, conversation: Conversation, runs: list[_Message]
) -> dict[int, tuple[int, int]] | None:
    """Returns the texts in generation tags, by message; None without tags."""
    if found.regions is None:
        return None
    regions: dict[int, tuple[int, int]] = {}
    empty = []
    last_message = None
    for begin, end in found.regions:
        inside = {
            run.message
            for run in runs
            if found.places[run.first].begin < end
            and begin < found.places[run.stop - 1].end
        }
        inside |= {
            run.message
            for run in runs
            if begin <= found.places[run.first].begin
            and found.places[run.stop - 1].end <= end
        }
        if not inside:
            if last_message is not None and regions[last_message][1] == begin:
                # Several tags can follow one another.
                regions[last_message] = regions[last_message][0], end
            else:
                empty.append((begin, end))
            continue
        if len(inside) > 1:
            raise UnprovenError("a generation tag holds several messages")
        (message,) = inside
        (run,) = (run for run in runs if run.message == message)
        first, last = found.places[run.first], found.places[run.stop - 1]
        if conversation.roles[message] != ASSISTANT or message in regions:
            role = ROLES[conversation.roles[message]]
            raise UnprovenError(f"a generation tag holds message {message} ({role})")
        if first.begin < begin or last.end > end:
            raise UnprovenError(f"a generation tag cuts message {message}")
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


def _without_places(
    found: Located,
    regions: dict[int, tuple[int, int]],
    runs: list[_Message],
    trained: set[int],
    roles: frozenset[int],
    ends: list[int],
) -> list[TextSpan]:
    """Returns the spans of messages that generation tags hold and that have no text."""
    del found
    spans = []
    for message in regions.keys() - {run.message for run in runs}:
        begin, end = regions[message]
        is_trained = message in trained and ASSISTANT in roles
        spans.append(TextSpan(begin, end, ASSISTANT, message, is_trained))
        if is_trained:
            ends.append(end)
    return spans


def _turn_end(
    found: Located,
    conversation: Conversation,
    run: _Message,
    specials: list[tuple[int, int]],
    borders: Borders,
) -> int | None:
    """Returns where the turn of a message ends, None if nothing shows its end."""
    end = found.places[run.stop - 1].end
    at = bisect.bisect_left(specials, (end, 0))
    if at == len(specials):
        return None
    special = specials[at]
    if run.stop < len(found.places) and special[1] > found.places[run.stop].begin:
        return None
    return borders.turn_end(found, conversation, run.stop - 1, special)


def _filled(
    found: Located,
    places: list[Place],
    extent: tuple[int, int],
    message: int,
    roles: frozenset[int],
    specials: list[tuple[int, int]],
) -> list[TextSpan]:
    """Returns spans that fill the extent of a message.

    What the template writes between two parts is trained on where both are, and it
    holds no special token; within generation tags also with one.
    """
    spans: list[TextSpan] = []
    tagged = found.regions is not None
    cursor, before = extent[0], None
    for place in places:
        role = found.parts[place.part].role
        between = _role_between(before, role)
        trained = role in roles and (before is None or before in roles)
        if not tagged and before is not None:
            trained = trained and not _has(specials, cursor, place.begin)
        if trained or tagged:
            spans.append(TextSpan(cursor, place.begin, between, message, trained))
        spans.append(TextSpan(place.begin, place.end, role, message, role in roles))
        cursor, before = place.end, role
    if cursor < extent[1] and before is not None:
        spans.append(TextSpan(cursor, extent[1], before, message, before in roles))
    return _joined(spans)


def _role_between(before: int | None, after: int) -> int:
    """Returns whose text stands between two parts of a message."""
    if THINKING in (before, after if before is None else None):
        return THINKING
    return TOOL_CALL if TOOL_CALL in (before, after) else after


def _joined(spans: list[TextSpan]) -> list[TextSpan]:
    """Joins spans that touch and are alike; leaves out empty ones."""
    joined: list[TextSpan] = []
    for span in spans:
        if span.begin == span.end:
            continue
        if joined and joined[-1].end == span.begin and joined[-1][2:] == span[2:]:
            joined[-1] = joined[-1]._replace(end=span.end)
        else:
            joined.append(span)
    return joined


def _has(specials: list[tuple[int, int]], begin: int, end: int) -> bool:
    """Returns whether a special token begins in a range."""
    at = bisect.bisect_left(specials, (begin, 0))
    return at < len(specials) and specials[at][0] < end
