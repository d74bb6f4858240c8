"""Published templates: the ids of transformers, and spans of messages."""

import datetime
import json
import random

import pytest
import tokenizers

from gristmill.transforms.chat.conversation_reader import AsideError, ConversationReader
from gristmill.transforms.chat.template import templates_of
from gristmill.transforms.tokens.load_tokenizer import load_tokenizer
from tests.rows.conversations import (
    TEMPLATES,
    chat_options,
    some_conversation,
    special_tokens,
    write_bpe,
)
from tests.rows.packed_rows import tokens_of
from tests.support.told import told

TEXTS = {path.stem: path.read_text("utf-8") for path in TEMPLATES.glob("*.jinja")}
SPECIAL = special_tokens(*TEXTS.values())
# Their prompts open a thought that their conversations do not have.
THOUGHTFUL = ("deepseek_r1_distill", "deepseekv3")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_bpe(tmp_path_factory.mktemp("chat"), SPECIAL)


@pytest.fixture(scope="module")
def reference(tokenizer):
    transformers = pytest.importorskip("transformers")
    return transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer), bos_token="<s>", eos_token="</s>"
    )


def conversation(name, rng):
    """Returns a conversation in the form that a template takes."""
    given = some_conversation(rng, special=SPECIAL)
    if name.startswith(("idefics", "smolvlm")):
        for message in given["messages"]:
            message["content"] = [{"type": "text", "text": message["content"]}]
    return given


def check_trained(said, is_open, given, template, known):
    """Checks what is trained on by generating the conversation token by token.

    A model that has the prompt for a message generates all tokens from the first that
    is not wholly in it, to the end of the turn.
    """
    messages, tools = given["messages"], given.get("tools")
    text = template.render(messages, tools)
    found = known.encode(text, add_special_tokens=False)
    for number, message in enumerate(messages):
        own = [
            at
            for at, each in enumerate(said)
            if each is not None and each.trained and each.message == number
        ]
        if message["role"] != "assistant":
            assert not own
            continue
        prompt = template.render(messages[:number], tools, prompt=True)
        # The template changes what came before; or it says nothing, and has no end.
        if not text.startswith(prompt) or (not own and is_open):
            continue
        first = next(n for n, (_, end) in enumerate(found.offsets) if end > len(prompt))
        assert own == [*range(first, own[-1] + 1)], (number, given)
        if not is_open:
            end = found.offsets[own[-1]][1]
            so_far = template.render(messages[: number + 1], tools)
            said_last = text[max(len(prompt), end - 20) : end]
            # White space can depend on whether a message follows.
            assert said_last.lstrip() in so_far, (number, given)
            assert found.tokens[own[-1]] in SPECIAL, given


@pytest.mark.parametrize("rounds", [30, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", sorted(TEXTS))
def test_ids_are_those_of_transformers(name, rounds, tokenizer, reference):
    today = datetime.datetime.now().date().isoformat()
    path = TEMPLATES / f"{name}.jinja"
    options = chat_options(path, tokenizer, date=today, special_text="token")
    reader = ConversationReader(options)
    (template, *_) = templates_of(options.chat).values()
    known = tokenizers.Tokenizer.from_file(str(tokenizer))
    rng, used = random.Random(name), 0
    asked = {"return_dict": True, "return_assistant_tokens_mask": True}
    for _ in range(rounds):
        given = conversation(name, rng)
        messages, tools = given["messages"], given.get("tools")
        record, failed = json.dumps(given).encode(), None
        try:
            expected = reference.apply_chat_template(
                messages, tools=tools, chat_template=TEXTS[name], **asked
            )
        except Exception as error:
            failed = str(error).partition("\n")[0][:40]
        if failed is not None:
            with told(AsideError, failed, reason="rejected"):
                reader.rendered(record)
            continue
        documents = reader.read([record], "record {}".format)
        counts, ids = documents.counts, documents.ids.tolist()
        (said,) = tokens_of(documents.spans, documents.lengths)
        if said:
            used += 1
            if template.has_generation:
                masks = [each is not None and each.trained for each in said]
                assert masks == [*map(bool, expected["assistant_masks"])]
            else:
                check_trained(said, counts.open_turns, given, template, known)
        else:
            assert counts.aside_rejected or counts.aside_untrained
            # What is set aside is rendered and tokenised alike.
            text = template.render(messages, tools).encode()
            ids = load_tokenizer(options).encode([text], as_text=False).ids.tolist()
        assert ids == expected["input_ids"], given
    assert used or name in THOUGHTFUL
