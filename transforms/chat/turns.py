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
        open_turns: Trained messages after which no end of turn is written: number, and
            where it ends.
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
        special: Begin and end of that; None if nothing shows where the turn ends.
    """

    message: int
    places: range
    begin: int
    end: int
    special: tuple[int, int] | None = None


def turns_of(
    found: Located,
    conversation: Conversation,
    specials: list[tuple[int, int]],
    options: ChatOptions,
    borders: Borders,
) -> Turns:
    """Returns the spans of a conversation.

    What the assistant has to generate is the text from the end of the prompt for it to
    the end of its turn: all of it is in spans.

    Args:
        found: Where its messages are.
        conversation: The conversation.
        specials: Special tokens in the text.
        options: What to train on.
        borders: Finds ends of prompts and of turns.

    Raises:
        UnprovenError: Messages are mixed up in the text, or do not go on from their
            prompts.
    """
    trained = trained_messages(conversation, options)
    roles = options.trained_roles
    runs = _runs(found)
    regions = _regions(found, conversation, runs)
    turns = []
    runs_of: dict[int, list[_Turn]] = {}
    for each in runs:
        runs_of.setdefault(each.message, []).append(each)
    for message in range(len(conversation.messages)):
        of_message = runs_of.get(message, [])
        if regions is not None and conversation.roles[message] == ASSISTANT:
            places = of_message[0].places if of_message else range(0)
            if message in regions:
                begin, end = regions[message]
                said = found.places[places[-1]].end if places else begin
                special = (end, end) if _has(specials, said, end) else None
                turns.append(_Turn(message, places, begin, end, special))
        elif message in trained and conversation.roles[message] == ASSISTANT:
            run = of_message[0] if of_message else None
            turns.append(_answer(found, conversation, message, run, specials, borders))
        else:
            for run in of_message:
                if message in trained and run is of_message[-1]:
                    run = _ended(found, conversation, run, specials, borders)
                turns.append(run)
    spans: list[TextSpan] = []
    ends: list[int] = []
    open_turns: list[tuple[int, int]] = []
    for turn in turns:
        role = ASSISTANT
        if turn.places:
            role = found.parts[found.places[turn.places[-1]].part].role
        if options.train_end_of_turn == "yes":
            if turn.special is not None:
                turn = turn._replace(end=turn.special[1])
            elif turn.message in trained and role in roles:
                open_turns.append((turn.message, turn.end))
        made = _filled(found, turn, roles)
        if turn.message not in trained:
            made = [span._replace(trained=False) for span in made]
        if any(span.trained for span in made) or turn.message in trained:
            ends.append(turn.end)
        spans += made
    spans.sort()
    for one, next_ in itertools.pairwise(spans):
        if one.end > next_.begin:
            raise UnprovenError(
                f"messages {one.message} and {next_.message} overlap in the text"
            )
    return Turns(spans, sorted(ends), open_turns)


def _answer(
    found: Located,
    conversation: Conversation,
    message: int,
    run: _Turn | None,
    specials: list[tuple[int, int]],
    borders: Borders,
) -> _Turn:
    """Returns the turn of a message of the assistant: all that it has to generate."""
    first = run.places[0] if run else None
    begin = borders.prompt_end(found, conversation, message, first)
    if run is None:
        before = sum(place.end <= begin for place in found.cores)
        places = range(before, before)
    else:
        places = run.places
    turn = _Turn(message, places, begin, max(begin, run.end if run else begin))
    return _ended(found, conversation, turn, specials, borders)


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


def _runs(found: Located) -> list[_Turn]:
    """Returns the places that stand together, by message."""
    runs: list[_Turn] = []
    for number, place in enumerate(found.places):
        message = found.parts[place.part].message
        if runs and runs[-1].message == message:
            places = range(runs[-1].places.start, number + 1)
            runs[-1] = runs[-1]._replace(places=places, end=place.end)
        else:
            places = range(number, number + 1)
            runs.append(_Turn(message, places, place.begin, place.end))
    seen: set[int] = set()
    for run in runs:
        role = found.parts[found.places[run.places[0]].part].role
        if run.message in seen and role in OF_ASSISTANT:
            raise UnprovenError(
                f"the template writes message {run.message} in more than one place"
            )
        seen.add(run.message)
    return runs


def _regions(
    found: Located, conversation: Conversation, runs: list[_Turn]
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
            if (run.begin < end and begin < run.end)
            or (begin <= run.begin and run.end <= end)
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
        if conversation.roles[message] != ASSISTANT or message in regions:
            role = ROLES[conversation.roles[message]]
            raise UnprovenError(f"a generation tag holds message {message} ({role})")
        if run.begin < begin or run.end > end:
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


def _ended(
    found: Located,
    conversation: Conversation,
    turn: _Turn,
    specials: list[tuple[int, int]],
    borders: Borders,
) -> _Turn:
    """Returns a turn with the special token that ends it."""
    last = turn.places.stop - 1
    calls = not turn.places or conversation.messages[turn.message].get("tool_calls")
    at = bisect.bisect_left(specials, (turn.end, 0))
    special = borders.turn_end(
        found, conversation, turn.message, last, specials[at:], last=bool(calls)
    )
    if special is None:
        return turn
    return turn._replace(end=special[0] if calls else turn.end, special=special)


def _filled(found: Located, turn: _Turn, roles: frozenset[int]) -> list[TextSpan]:
    """Returns spans that fill the extent of a message.

    What the template writes beside a thought or a call of a tool belongs to that.
    """
    spans: list[TextSpan] = []
    cursor, before = turn.begin, None
    for number in turn.places:
        place = found.places[number]
        role = found.parts[place.part].role
        begin = max(place.begin, cursor)
        between = _role_between(before, role)
        spans += [
            TextSpan(cursor, begin, between, turn.message, between in roles),
            TextSpan(begin, place.end, role, turn.message, role in roles),
        ]
        cursor, before = place.end, role
    role = ASSISTANT if before is None else before
    spans.append(TextSpan(cursor, turn.end, role, turn.message, role in roles))
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
        if span.begin >= span.end:
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
