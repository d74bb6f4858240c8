"""Conversations in all forms that datasets have, in records of all kinds."""

from __future__ import annotations

import json

import pytest

from gristmill.dataset import encode_example
from gristmill.transforms.chat.conversation import (
    ConversationColumns,
    MalformedError,
    conversation_of,
)

USUAL = ConversationColumns("", "tools", "weight")
SAID = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
SHARED = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]


def found(record: object, columns: ConversationColumns = USUAL):
    data = record if isinstance(record, bytes) else json.dumps(record).encode()
    return conversation_of(data, columns)


@pytest.mark.parametrize(
    "record",
    [
        {"messages": SAID},
        {"messages": json.dumps(SAID)},
        {"messages": SHARED},
        {"conversations": SHARED},
        {"prompt": "q", "completion": "a"},
        {"prompt": SAID[:1], "completion": SAID[1:]},
        {"prompt": json.dumps(SAID[:1]), "response": "a"},
        {"messages": [m | {"name": None} for m in SAID], "tools": None},
        SAID,
        encode_example({"messages": json.dumps(SAID)}),
        encode_example({"prompt": "q", "completion": "a"}),
    ],
)
def test_all_forms_are_one(record: object) -> None:
    conversation = found(record)
    assert conversation.messages == SAID
    assert conversation.roles == [2, 3]
    assert conversation.weights == [1.0, 1.0]
    assert conversation.tools is None


@pytest.mark.parametrize(
    "record",
    [
        {"conversations": SHARED, "system": "s"},
        {"system": "s", "messages": SAID, "tools": None},
        {"prompt": "q", "completion": "a", "system": "s"},
        {"system": "s", "messages": [{"role": "system", "content": "s"}, *SAID]},
        encode_example({"messages": json.dumps(SAID), "system": "s"}),
    ],
)
def test_a_system_beside_the_messages_is_the_first_of_them(record: object) -> None:
    conversation = found(record)
    assert conversation.messages == [{"role": "system", "content": "s"}, *SAID]
    assert conversation.prompted == 2 * ("prompt" in str(record))


@pytest.mark.parametrize("system", ["t", 1, ["s"]])
def test_a_system_that_is_another_or_no_text(system: object) -> None:
    said = [{"role": "system", "content": "s"}, *SAID]
    with pytest.raises(MalformedError, match=r"its system|it has system"):
        found({"messages": said, "system": system})
    assert found({"messages": said, "system": ""}).messages == said


def test_other_columns_can_be_named() -> None:
    columns = ConversationColumns("chat", "functions", "score")
    record = {"chat": SAID, "functions": ['{"name": "f"}'], "score": [0.5, 2]}
    conversation = found(record, columns)
    assert conversation.messages == SAID
    assert conversation.tools == [{"name": "f"}]
    assert conversation.weights == [0.5, 2.0]
    assert columns.names == ("chat", "system", "functions", "score")
    member = encode_example({"chat": json.dumps({"messages": SAID})})
    with pytest.raises(MalformedError):
        found(member, columns)  # The object is that of the record.


def test_text_is_a_document() -> None:
    conversation = found({"text": "plain"})
    assert (conversation.text, conversation.messages) == ("plain", [])


MALFORMED = {
    "not JSON": (b"{", "not valid"),
    "a field twice": (b'{"messages": [], "messages": []}', "more than once"),
    "not a number of JSON": (b'{"weight": NaN}', "JSON"),
    "a number": (b"7", "object is needed"),
    "nothing of use": ({"title": "x"}, "none of messages"),
    "messages taken apart": (
        encode_example({"messages.role": ["user"], "messages.content": ["x"]}),
        "messages:json",
    ),
    "no messages": ({"messages": []}, "no messages"),
    "not a list": ({"messages": {"role": "user"}}, "not a list"),
    "a message that is text": ({"messages": ["hello"]}, "not an object"),
    "no role": ({"messages": [{"content": "x"}]}, "no role"),
    "an empty role": ({"messages": [{"role": "", "content": "x"}]}, "no role"),
    "an unknown speaker": (
        {"conversations": [{"from": "function_call", "value": "x"}]},
        "function_call",
    ),
    "a picture": (
        {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
        "'image'",
    ),
    "a number as content": ({"messages": [{"role": "user", "content": 3}]}, "not text"),
    "calls that are text": (
        {"messages": [{"role": "assistant", "tool_calls": "f()"}]},
        "tool_calls",
    ),
    "tools that are text": ({"messages": SAID, "tools": "none"}, "not a list"),
    "too few weights": ({"messages": SAID, "weight": [1]}, "1 values for 2"),
    "a weight below 0": ({"messages": SAID, "weight": -1}, "weight -1"),
    "a weight that is text": (
        {"messages": [SAID[0] | {"weight": "high"}]},
        "weight 'high'",
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_conversation_says_why(name: str) -> None:
    record, reason = MALFORMED[name]
    with pytest.raises(MalformedError, match=reason):
        found(record)
