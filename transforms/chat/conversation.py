"""The conversation in a record, in any of the forms common in datasets."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gristmill.dataset.base.example import decode_example
from gristmill.dataset.packed.message_spans import ROLES
from gristmill.transforms.jobs.pack_options import weight_of
from gristmill.transforms.sources.lines.strict_json import parsed_line

MESSAGES, CONVERSATIONS, TEXT = "messages", "conversations", "text"
_SYSTEM = "system"
_PROMPT, _COMPLETIONS = "prompt", ("completion", "response")

_OTHER = ROLES.index("other")
_ROLE_OF = {
    **{role: ROLES.index(role) for role in ROLES[:5]},
    "model": ROLES.index("assistant"),
    "function": ROLES.index("tool"),
    "ipython": ROLES.index("tool"),
}
# Speaker in ShareGPT's form -> role in templates.
_SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}


class UnusableError(Exception):
    """A conversation cannot be used; its text says why.

    Attributes:
        what: What is wrong with it.
    """

    what = ""


class MalformedError(UnusableError):
    """A record is not a conversation."""

    what = "it is not a conversation"


class Conversation(NamedTuple):
    """A conversation, or a document of plain text.

    Attributes:
        messages: The messages, as templates get them.
        roles: Index in `ROLES` of each message's role.
        weights: Weight of each message in the loss.
        prompted: Number of messages at the start that are the prompt.
        tools: Descriptions of tools; None for none.
        text: The text of a plain document; None for a conversation.
    """

    messages: list[dict[str, Any]]
    roles: list[int]
    weights: list[float]
    prompted: int = 0
    tools: list[Any] | None = None
    text: str | None = None


class ConversationColumns(NamedTuple):
    """Names of the columns of a conversation.

    Attributes:
        messages: The column of the messages; "" for any of the usual ones.
        tools: The column of the tools.
        weight: The column of the weight.
    """

    messages: str
    tools: str
    weight: str

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that may hold a part of a conversation."""
        usual = (MESSAGES, CONVERSATIONS, _SYSTEM, _PROMPT, *_COMPLETIONS, TEXT)
        first = (self.messages, _SYSTEM) if self.messages else usual
        return tuple(dict.fromkeys((*first, self.tools, self.weight)))


def conversation_of(record: bytes, columns: ConversationColumns) -> Conversation:
    """Returns the conversation in a record: a JSON object, or a `tf.train.Example`.

    Raises:
        MalformedError: There is none.
    """
    fields = _fields_of(record)
    if columns.messages:
        found = _value(fields, columns.messages)
        if isinstance(
            found, Mapping
        ):  # A column that holds an object with the columns.
            fields, found = found, None
            columns = columns._replace(messages="")
        elif found is None:
            raise MalformedError(
                f"no column {columns.messages!r} among {_names(fields)}"
            )
    else:
        found = _value(fields, MESSAGES)
        if found is None:
            found = _value(fields, CONVERSATIONS)
    prompted = 0
    if found is not None:
        messages = _messages(found, "user")
    else:
        prompt = _said(fields.get(_PROMPT))
        said = (_said(fields.get(name)) for name in _COMPLETIONS)
        completion = next((each for each in said if each is not None), None)
        if prompt is None or completion is None:
            text = fields.get(TEXT)
            if isinstance(text, str):
                return Conversation([], [], [], text=text)
            apart = [name for name in fields if name.startswith(f"{MESSAGES}.")]
            raise MalformedError(
                f"its messages are apart, as {', '.join(apart)}; convert them again "
                f"with --columns '*,{MESSAGES}:json'"
                if apart
                else f"it has none of {MESSAGES}, {CONVERSATIONS}, prompt and "
                f"completion, or {TEXT}, but {_names(fields)}"
            )
        messages = _messages(prompt, "user")
        prompted = len(messages)
        messages += _messages(completion, "assistant")
    if not messages:
        raise MalformedError("it has no messages")
    system = fields.get(_SYSTEM)
    if system:  # Beside the messages, as in ShareGPT's form.
        if not isinstance(system, str):
            raise MalformedError(f"its {_SYSTEM} is not text")
        given = [m.get("content") for m in messages if m["role"] == "system"]
        if given not in ([], [system]):
            raise MalformedError(f"it has {_SYSTEM}, and another message of that role")
        if not given:
            messages.insert(0, {"role": "system", "content": system})
            prompted += prompted > 0
    tools = _value(fields, columns.tools)
    if isinstance(tools, list):
        tools = [parsed(tool) if isinstance(tool, str) else tool for tool in tools]
    elif tools is not None:
        raise MalformedError(f"its {columns.tools} are not a list")
    weights = _weights(messages, fields.get(columns.weight), columns.weight)
    roles = [_ROLE_OF.get(message["role"], _OTHER) for message in messages]
    return Conversation(messages, roles, weights, prompted, tools)


def _names(fields: Mapping[str, Any]) -> str:
    return ", ".join([*fields][:8]) or "no field at all"


def parsed(text: str | bytes) -> Any:
    """Returns the value of a field's JSON; raises MalformedError if it is invalid."""
    try:
        return parsed_line(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"JSON that is not valid: {error}") from error


def _fields_of(record: bytes) -> Mapping[str, Any]:
    if record[:1] == b"\n":
        try:
            return {
                name: _only(list(values))
                for name, values in decode_example(record).items()
            }
        except ValueError:
            pass  # JSON can begin with an empty line.
    fields = parsed(record)
    if isinstance(fields, list):
        return {MESSAGES: fields}
    if not isinstance(fields, dict):
        raise MalformedError(f"a JSON object is needed, not {type(fields).__name__}")
    return fields


def _only(values: list[Any]) -> Any:
    values = [
        v.decode("utf-8", "strict") if isinstance(v, bytes) else v for v in values
    ]
    return values[0] if len(values) == 1 else values or None


def _value(fields: Mapping[str, Any], name: str) -> Any:
    """Returns the value of a column, parsed if it is JSON in a string."""
    found = fields.get(name)
    if isinstance(found, str) and found.lstrip()[:1] in ("[", "{"):
        return parsed(found)
    return found


def _said(found: Any) -> Any:
    """Returns a text, or messages, which may be a list in JSON."""
    if isinstance(found, str) and found.lstrip()[:1] == "[":
        # A prompt can be any text.
        with contextlib.suppress(ValueError, RecursionError):
            listed = parsed_line(found)
            if listed and all(isinstance(each, dict) for each in listed):
                return listed
    return found


def _messages(found: Any, role: str) -> list[dict[str, Any]]:
    """Returns messages as templates get them; a text is one message of the role."""
    if isinstance(found, str):
        found = [{"role": role, "content": found}]
    if not isinstance(found, list):
        raise MalformedError("its messages are not a list")
    return [_message(each, number) for number, each in enumerate(found)]


def _message(given: Any, number: int) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise MalformedError(f"message {number} is not an object")
    # The reference implementation omits null fields.
    message = {name: value for name, value in given.items() if value is not None}
    if "role" not in message and "from" in message:
        speaker = message.pop("from")
        if speaker not in _SPEAKERS:
            raise MalformedError(f"message {number} is from {speaker!r}")
        content = message.pop("value", None)
        message = {"role": _SPEAKERS[speaker], "content": content, **message}
    role = message.get("role")
    if not isinstance(role, str) or not role:
        raise MalformedError(f"message {number} has no role")
    content = message.get("content")
    if isinstance(content, list):
        for part in content:
            is_text = isinstance(part, Mapping) and isinstance(part.get("text"), str)
            if not is_text and not isinstance(part, str) and role != "tool":
                kind = part.get("type") if isinstance(part, Mapping) else part
                raise MalformedError(f"message {number} has a part of type {kind!r}")
    elif content is not None and not isinstance(content, str) and role != "tool":
        raise MalformedError(f"the content of message {number} is not text")
    calls = message.get("tool_calls")
    if calls is not None and not (
        isinstance(calls, list) and all(isinstance(call, Mapping) for call in calls)
    ):
        raise MalformedError(f"the tool_calls of message {number} are not a list")
    return message


def _weights(
    messages: Sequence[Mapping[str, Any]], column: object, name: str
) -> list[float]:
    """Returns the weight of each message: its own times the column's."""
    factors: list[object] = [1.0 if column is None else column] * len(messages)
    if isinstance(column, list):
        factors = column
        if len(column) != len(messages):
            raise MalformedError(
                f"{name} has {len(column)} values for {len(messages)} messages"
            )
    weights = []
    for number, (message, factor) in enumerate(zip(messages, factors, strict=True)):
        own = weight_of(message.get("weight", 1.0))
        shared = weight_of(1.0 if factor is None else factor)
        if own is None or shared is None:
            got = message.get("weight", 1.0) if own is None else factor
            raise MalformedError(f"message {number} has the weight {got!r}")
        weights.append(own * shared)
    return weights
