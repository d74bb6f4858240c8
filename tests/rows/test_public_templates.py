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

from gristmill.transforms.chat.conversation_reader import (
    AsideError,
    ConversationReader,
)
from gristmill.transforms.chat.template import templates_of
from gristmill.transforms.tokens.load_tokenizer import load_tokenizer
from tests.support.conversation_rows import check_spans
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
# Their prompts open a thought that their conversations do not have.
THOUGHTFUL = ("deepseek_r1_distill", "deepseekv3")


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
        path,
        tokenizer,
        date=datetime.datetime.now().date().isoformat(),
        special_text="token",
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
                return_dict=True,
                return_assistant_tokens_mask=True,
            )
        except Exception as error:
            failed = error
        record = json.dumps(given).encode()
        if failed is not None:
            with pytest.raises(AsideError) as found:
                reader.rendered(record)
            assert found.value.reason == "rejected"
            assert str(failed).partition("\n")[0][:40] in str(found.value), given
            continue
        documents = reader.read([record], "record {}".format)
        if not documents.lengths[0]:
            assert documents.counts.aside_rejected or documents.counts.aside_untrained
            # What is set aside is rendered and tokenised alike.
            assert options.chat is not None
            template = next(iter(templates_of(options.chat).values()))
            text = template.render(reader_messages(given), given.get("tools"))
            encoded = load_tokenizer(options).encode([text.encode()], as_text=False)
            assert encoded.ids.tolist() == expected["input_ids"]
            continue
        used += 1
        assert documents.ids.tolist() == expected["input_ids"], given
        assert options.chat is not None
        template = next(iter(templates_of(options.chat).values()))
        if template.has_generation:
            assert mask_of(documents) == [*map(bool, expected["assistant_masks"])]
        else:
            check_trained(documents, given, template, tokenizer)
    return used


def reader_messages(given: dict[str, Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in m.items() if v is not None} for m in given["messages"]]


def check_trained(
    documents: Any, given: dict[str, Any], template: Any, path: pathlib.Path
) -> None:
    """Checks what is trained on by generating the conversation token by token.

    A model that has the prompt for a message generates all tokens from the first that
    is not wholly in it, to the end of the turn.
    """
    spans = documents.spans
    check_spans(spans, documents.lengths)
    messages, tools = reader_messages(given), given.get("tools")
    text = template.render(messages, tools)
    found = tokenizers.Tokenizer.from_file(str(path)).encode(
        text, add_special_tokens=False
    )
    trained = np.zeros(len(found.ids), bool)
    owner = np.full(len(found.ids), -1)
    for begin, stop, message, is_trained in zip(
        spans.begins, spans.stops, spans.messages, spans.trained, strict=True
    ):
        trained[begin:stop] = is_trained
        owner[begin:stop] = message
    for number, message in enumerate(messages):
        own = np.flatnonzero(trained & (owner == number))
        if message["role"] != "assistant":
            assert not own.size
            continue
        prompt = template.render(messages[:number], tools, prompt=True)
        if not text.startswith(prompt):
            continue  # The template changes what came before.
        if not own.size and documents.counts.open_turns:
            continue  # It says nothing, and has no end.
        first = next(n for n, (_, end) in enumerate(found.offsets) if end > len(prompt))
        assert own.tolist() == [*range(first, int(own[-1]) + 1)], (number, given)
        if not documents.counts.open_turns:
            end = found.offsets[own[-1]][1]
            so_far = template.render(messages[: number + 1], tools)
            said = text[max(len(prompt), end - 20) : end]
            # White space can depend on whether a message follows.
            assert said.lstrip() in so_far, (number, given)
            token = found.tokens[own[-1]]
            assert token in SPECIAL, (token, given)


def mask_of(documents: Any) -> list[bool]:
    """Returns whether each token of a document is trained on."""
    spans = documents.spans
    mask = np.zeros(documents.lengths[0], bool)
    for begin, stop in zip(
        spans.begins[spans.trained], spans.stops[spans.trained], strict=True
    ):
        mask[begin:stop] = True
    return [*map(bool, mask)]


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_transformers(
    name: str, tokenizer: pathlib.Path, reference: Any
) -> None:
    used = compare(name, tokenizer, reference, 30)
    assert used or name in THOUGHTFUL


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_ids_of_a_thousand_conversations_are_those_of_transformers(
    name: str, tokenizer: pathlib.Path, reference: Any
) -> None:
    used = compare(name, tokenizer, reference, 1000)
    assert used or name in THOUGHTFUL
