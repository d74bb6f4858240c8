"""Published templates: the ids of transformers, and spans of messages."""

import datetime
import json
import random

import numpy as np
import pytest
import tokenizers

from gristmill.transforms.chat.conversation_reader import AsideError, ConversationReader
from gristmill.transforms.chat.template import templates_of
from gristmill.transforms.tokens.load_tokenizer import load_tokenizer
from tests.rows.conversation_rows import check_spans
from tests.rows.conversations import (
    TEMPLATES,
    chat_options,
    some_conversation,
    special_tokens,
    write_bpe,
)

NAMES = sorted(path.stem for path in TEMPLATES.glob("*.jinja"))
SPECIAL = special_tokens(
    *((TEMPLATES / f"{n}.jinja").read_text("utf-8") for n in NAMES)
)
# Their prompts open a thought that their conversations do not have.
THOUGHTFUL = ("deepseek_r1_distill", "deepseekv3")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return write_bpe(tmp_path_factory.mktemp("chat"), tuple(SPECIAL))


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


def check_trained(documents, given, template, path):
    """Checks what is trained on by generating the conversation token by token.

    A model that has the prompt for a message generates all tokens from the first that
    is not wholly in it, to the end of the turn.
    """
    spans = documents.spans
    check_spans(spans, documents.lengths)
    messages, tools = plain(given), given.get("tools")
    text = template.render(messages, tools)
    known = tokenizers.Tokenizer.from_file(str(path))
    found = known.encode(text, add_special_tokens=False)
    trained = mask_of(documents)
    owner = np.full(len(found.ids), -1)
    for number, (begin, stop) in enumerate(zip(spans.begins, spans.stops, strict=True)):
        owner[begin:stop] = spans.messages[number]
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
            assert found.tokens[own[-1]] in SPECIAL, given


def plain(given):
    return [{k: v for k, v in m.items() if v is not None} for m in given["messages"]]


def mask_of(documents):
    mask = np.zeros(documents.lengths[0], bool)
    trained = documents.spans.taken(documents.spans.trained)
    for begin, stop in zip(trained.begins, trained.stops, strict=True):
        mask[begin:stop] = True
    return mask


@pytest.mark.parametrize("rounds", [30, pytest.param(1000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("name", NAMES)
def test_ids_are_those_of_transformers(name, rounds, tokenizer, reference):
    path = TEMPLATES / f"{name}.jinja"
    today = datetime.datetime.now().date().isoformat()
    options = chat_options(path, tokenizer, date=today, special_text="token")
    reader = ConversationReader(options)
    template = next(iter(templates_of(options.chat).values()))
    rng, used = random.Random(name), 0
    for _ in range(rounds):
        given = conversation(name, rng)
        record, tools, failed = json.dumps(given).encode(), given.get("tools"), None
        try:
            expected = reference.apply_chat_template(
                given["messages"],
                tools=tools,
                chat_template=path.read_text("utf-8"),
                return_dict=True,
                return_assistant_tokens_mask=True,
            )
        except Exception as error:
            failed = error
        if failed is not None:
            with pytest.raises(AsideError) as found:
                reader.rendered(record)
            assert found.value.reason == "rejected"
            assert str(failed).partition("\n")[0][:40] in str(found.value), given
            continue
        documents = reader.read([record], "record {}".format)
        ids = documents.ids.tolist()
        if documents.lengths[0]:
            used += 1
            if template.has_generation:
                masks = [*map(bool, expected["assistant_masks"])]
                assert mask_of(documents).tolist() == masks
            else:
                check_trained(documents, given, template, tokenizer)
        else:
            assert documents.counts.aside_rejected or documents.counts.aside_untrained
            # What is set aside is rendered and tokenised alike.
            text = template.render(plain(given), tools).encode()
            ids = load_tokenizer(options).encode([text], as_text=False).ids.tolist()
        assert ids == expected["input_ids"], given
    assert used or name in THOUGHTFUL
