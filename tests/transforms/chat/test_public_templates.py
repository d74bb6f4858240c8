"""Published templates: the ids of transformers, and spans of messages."""

from __future__ import annotations

import datetime
import json
import pathlib
import random
from typing import Any

import numpy as np
import pytest
import tokenizers

from gristmill.dataset.packed.message_spans import ROLES
from gristmill.transforms.chat.conversation_reader import (
    AsideError,
    ConversationReader,
    placing_tokenizer,
)
from gristmill.transforms.chat.template_file import templates_of
from tests.support.conversations import (
    TEMPLATES,
    chat_options,
    some_conversation,
    special_tokens,
    write_bpe,
)

NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
TEXT = "".join((TEMPLATES / f"{name}.jinja").read_text("utf-8") for name in NAMES)
SPECIAL = special_tokens(TEXT)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    return write_bpe(tmp_path_factory.mktemp("chat"), tuple(SPECIAL))


@pytest.fixture(scope="module")
def reference(tokenizer: pathlib.Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer), bos_token="<s>", eos_token="</s>"
    )


def conversation(name: str, rng: random.Random, **more: Any) -> dict[str, Any]:
    """Returns a conversation in the form that a template takes."""
    given = some_conversation(rng, **more)
    if name.startswith(("idefics", "smolvlm")):
        for message in given["messages"]:
            message["content"] = [{"type": "text", "text": message["content"]}]
    return given


def compare(name: str, tokenizer: pathlib.Path, reference: Any, rounds: int) -> int:
    """Compares ids and spans of conversations; returns how many gave documents."""
    path = TEMPLATES / f"{name}.jinja"
    options = chat_options(
        path, tokenizer, date=datetime.datetime.now().date().isoformat()
    )
    reader = ConversationReader(options)
    rng = random.Random(name)
    used = 0
    for _ in range(rounds):
        given = conversation(name, rng, special=SPECIAL)
        failed = None
        try:
            expected = reference.apply_chat_template(
                given["messages"],
                tools=given.get("tools"),
                chat_template=path.read_text("utf-8"),
                return_dict=False,
            )
        except Exception as error:
            failed = error
        record = json.dumps(given).encode()
        if failed is not None:
            with pytest.raises(AsideError) as found:
                reader.rendered(record)
            assert found.value.reason == "template"
            assert str(failed).partition("\n")[0][:40] in str(found.value), given
            continue
        documents = reader.read([record], "record {}".format)
        if not documents.lengths[0]:
            assert documents.counts.aside_unproven or documents.counts.aside_untrained
            # What is set aside is rendered and tokenised alike.
            assert options.chat is not None
            template = next(iter(templates_of(options.chat).values()))
            text = template.render(reader_messages(given), given.get("tools"))
            placed = placing_tokenizer(options).encode_with_offsets([text.encode()])
            assert placed.ids.tolist() == expected
            continue
        used += 1
        assert documents.ids.tolist() == expected, given
        check_spans(documents, given, tokenizer)
    return used


def reader_messages(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in m.items() if v is not None} for m in given["messages"]]


def check_spans(documents: Any, given: dict[str, Any], path: pathlib.Path) -> None:
    """Checks that the text of each span belongs to its message."""
    spans = documents.spans
    spans.check(documents.lengths)
    known = tokenizers.Tokenizer.from_file(str(path))
    trained_of: dict[int, str] = {}
    all_of: dict[int, str] = {}
    for begin, length, role, message, trained in zip(
        *(column.tolist() for column in spans[1:6]), strict=True
    ):
        ids = documents.ids[begin : begin + length].tolist()
        text = known.decode(ids, skip_special_tokens=False)
        all_of[message] = all_of.get(message, "") + text
        says = given["messages"][message]["role"]
        assert trained == (says == "assistant") or not trained
        if trained:
            assert ROLES[role] in ("assistant", "thinking", "tool_call")
            trained_of[message] = trained_of.get(message, "") + text
    for message, said in enumerate(given["messages"]):
        content = said["content"]
        content = content if isinstance(content, str) else content[0]["text"]
        core = content.rpartition("</think>")[2].strip()
        if not documents.counts.merged_tokens:
            escaped = json.dumps(core, ensure_ascii=False)[1:-1]
            found = all_of.get(message, "")
            assert core in found or escaped in found, (message, given)
        if said["role"] != "assistant":
            assert message not in trained_of


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_transformers(
    name: str, tokenizer: pathlib.Path, reference: Any
) -> None:
    assert compare(name, tokenizer, reference, 30)


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_ids_of_a_thousand_conversations_are_those_of_transformers(
    name: str, tokenizer: pathlib.Path, reference: Any
) -> None:
    assert compare(name, tokenizer, reference, 1000)


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    "name", [n.removesuffix("_training") for n in NAMES if n.endswith("_training")]
)
def test_tags_and_marks_find_the_same_contents(
    name: str, tokenizer: pathlib.Path
) -> None:
    """What marks prove is within what the tags of the same template hold."""
    readers = [
        ConversationReader(chat_options(TEMPLATES / f"{each}.jinja", tokenizer))
        for each in (name, f"{name}_training")
    ]
    rng = random.Random(3)
    compared = 0
    for _ in range(12):
        record = json.dumps(conversation(name, rng)).encode()
        marked, tagged = (r.read([record], str) for r in readers)
        if not (marked.lengths[0] and marked.ids.tolist() == tagged.ids.tolist()):
            continue
        compared += 1
        masks = []
        for documents in (marked, tagged):
            mask = np.zeros(documents.lengths[0], bool)
            spans = documents.spans
            for begin, stop in zip(
                spans.begins[spans.trained], spans.stops[spans.trained], strict=True
            ):
                mask[begin:stop] = True
            masks.append(mask)
        assert not (masks[0] & ~masks[1]).any(), record.decode()
    assert compared or name == "glm4moe"  # Tagged, it writes other text.
