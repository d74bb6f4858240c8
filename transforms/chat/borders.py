"""The borders of a turn: where the prompt for it ends, and where its end is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TypeVar

from gristmill.transforms.chat.conversation import Conversation
from gristmill.transforms.chat.located import Located
from gristmill.transforms.chat.marks import ASSISTANT, UnprovenError, unmarked
from gristmill.transforms.chat.template import Template, TemplateFailedError

_MOST_KEPT = 4096
_MOST_KEPT_CHARS = 512
_SHOWN = 40

T = TypeVar("T")
_Key = tuple[object, ...]


class Borders:
    """Finds the borders of turns by what the template writes for the messages before.

    What was found once is kept, by the text around it.

    Args:
        template: The template.
        special_tokens: Texts of the tokenizer's special tokens.
    """

    def __init__(self, template: Template, special_tokens: Iterable[str]) -> None:
        self._template = template
        longest_first = sorted(filter(None, special_tokens), key=len, reverse=True)
        self._special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        self._prompts: dict[_Key, int] = {}
        self._shared: dict[_Key, int] = {}

    def specials(self, text: str) -> list[tuple[int, int]]:
        """Returns begin and end of each special token in a text, in characters."""
        return [match.span() for match in self._special.finditer(text)]

    def prompt_end(
        self,
        found: Located,
        conversation: Conversation,
        message: int,
        first: int | None,
    ) -> int:
        """Returns where the prompt for a message of the assistant ends.

        The prompt is the conversation so far, with `add_generation_prompt`.

        Args:
            found: Where the messages are.
            conversation: The conversation.
            message: Number of the message.
            first: Number of its first place, None if it has none.

        Raises:
            UnprovenError: The conversation does not go on from such a prompt.
        """
        if first is None:
            return self._prompt_end(found, conversation, message, first)
        after = found.cores[first - 1].end if first else 0
        gap = found.text[after : found.cores[first].begin]
        role = found.parts[found.places[first].part].role
        key = self._around(conversation, message - 1, message), role, gap
        if key in self._prompts:
            return after + self._prompts[key]
        end = self._prompt_end(found, conversation, message, first)
        if after <= end and len(gap) <= _MOST_KEPT_CHARS:
            _keep(self._prompts, key, end - after)
        return end

    def _prompt_end(
        self,
        found: Located,
        conversation: Conversation,
        message: int,
        first: int | None,
    ) -> int:
        before = found.marker.messages[:message]
        try:
            rendered = self._template.render(before, conversation.tools, prompt=True)
            prompt = unmarked(rendered, found.base)
        except TemplateFailedError as error:
            raise UnprovenError(
                f"the template writes no prompt for message {message}: {error}"
            ) from error
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
            place = found.cores[first]
            part = found.parts[place.part]
            header = found.text[end : place.begin].strip()
            if header and part.role == ASSISTANT and not part.inner:
                bare = self._template.render(before, conversation.tools)
                if bare == rendered:
                    raise UnprovenError(
                        "the template writes no generation prompt: the model would "
                        f"have to begin message {message} with {header[:_SHOWN]!r}"
                    )
        return end

    def turn_end(
        self,
        found: Located,
        conversation: Conversation,
        message: int,
        place: int,
        specials: Sequence[tuple[int, int]],
        *,
        last: bool,
    ) -> tuple[int, int] | None:
        """Returns the special token that ends the turn of a message, if there is one.

        The template writes it also where no message follows: it does not begin the
        header of the next.

        Args:
            found: Where the messages are.
            conversation: The conversation.
            message: Number of the message.
            place: Number of the last place before its end, -1 for none.
            specials: Special tokens from its last text on, in order.
            last: Whether the last of these ends it, as in calls of tools.
        """
        begin = found.cores[place].end if place >= 0 else 0
        stop = len(found.text)
        if place + 1 < len(found.cores):
            stop = found.cores[place + 1].begin
        if message < len(conversation.messages) - 1:
            gap = found.text[begin:stop]
            role = found.parts[found.places[place].part].role if place >= 0 else None
            key = self._around(conversation, message, message + 1), role, gap
            shared = self._shared.get(key)
            if shared is None:
                shared = self._shared_end(found, conversation, message, place, gap)
                if len(gap) <= _MOST_KEPT_CHARS:
                    _keep(self._shared, key, shared)
            stop = begin + shared
        ends = []
        for special in specials:
            if special[1] > stop:
                break
            ends.append(special)
            if not last:
                break
        return ends[-1] if ends else None

    def _shared_end(
        self,
        found: Located,
        conversation: Conversation,
        message: int,
        place: int,
        gap: str,
    ) -> int:
        """Returns how much of a gap is also written where no message follows."""
        messages = found.marker.messages[: message + 1]
        try:
            rendered = self._template.render(messages, conversation.tools)
            alone = unmarked(rendered, found.base)
        except (TemplateFailedError, UnprovenError):
            return 0
        begin = 0
        if place >= 0:
            part = found.places[place].part
            ends = [each.end for each in alone.places if each.part == part]
            if not ends:
                return 0
            begin = ends[-1]
        return _same(gap, alone.text[begin : begin + len(gap)])

    def _around(self, conversation: Conversation, one: int, other: int) -> _Key:
        """Returns the kinds of two messages, on which a template can depend."""
        messages = conversation.messages
        pair = [messages[each] for each in (one, other) if each >= 0]
        kinds = tuple((each["role"], bool(each.get("tool_calls"))) for each in pair)
        return *kinds, conversation.tools is None


def _keep(kept: dict[_Key, T], key: _Key, value: T) -> None:
    if len(kept) >= _MOST_KEPT:
        kept.clear()
    kept[key] = value


def _same(one: str, other: str) -> int:
    """Returns how many characters two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    differ = (at for at, (a, b) in pairs if a != b)
    return next(differ, min(len(one), len(other)))
