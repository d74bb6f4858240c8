"""What is trained on, beside an oracle that builds the text and knows each part."""

from __future__ import annotations

import json
import pathlib
import random
from typing import Any, NamedTuple

import numpy as np
import pytest
import tokenizers

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.packed.message_spans import ROLES
from gristmill.transforms.chat.conversation_reader import ConversationReader
from tests.support.conversations import (
    TEMPLATES,
    WORDS,
    chat_options,
    read,
    seen_spans,
    special_tokens,
    write_bpe,
)

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Style(NamedTuple):
    """A template, and how a message is written by it: header, ending, trimming."""

    template: str
    header: str
    ending: str
    after: str
    trims: bool = False


STYLES = {
    "chatml": Style(CHATML, "<|im_start|>{}\n", "<|im_end|>", "\n"),
    "trimmed": Style(
        "{% for m in messages %}{{ '<|h|>' + m.role + '<|h|>\n\n' + m.content|trim + "
        "'<|eot|>' }}{% endfor %}{% if add_generation_prompt %}<|h|>assistant<|h|>\n\n"
        "{% endif %}",
        "<|h|>{}<|h|>\n\n",
        "<|eot|>",
        "",
        trims=True,
    ),
    "words": Style(
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
        "{}: ",
        "",
        "\n",
    ),
    "header_is_special": Style(
        "{% for m in messages %}{{ '<|h|>' + m.role + '|' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|h|>assistant|{% endif %}",
        "<|h|>{}|",
        "",
        "",
    ),
    "ending_after_blank": Style(
        "{% for m in messages %}{{ '[' + m.role + ']' + m.content + ' </s>' }}"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
        "[{}]",
        " </s>",
        "",
    ),
}


def some_private(rng: random.Random, part: int) -> str:
    """Returns a content that only this part can have, with white space around it."""
    own = [chr(0xE000 + 40 * part + number) for number in range(40)]
    text = "".join(rng.choices([*own, " ", "\n", rng.choice(WORDS)], k=9))
    return rng.choice(["", " ", "\n"]) + own[0] + text + rng.choice(["", " ", "\n\n"])


def oracle(style: Style, messages: list[dict[str, Any]], wanted: str) -> Any:
    """Returns the text, and for each byte the message, and whether it is trained on."""
    data = bytearray()
    message_of: list[int] = []
    trained: list[bool] = []

    def write(text: str, message: int, *, train: bool) -> None:
        data.extend(text.encode())
        size = len(text.encode())
        message_of.extend([message] * size)
        trained.extend([train] * size)

    said = [n for n, m in enumerate(messages) if m["role"] == "assistant"]
    if wanted == "last":
        said = said[-1:]
    elif wanted == "all":
        said = list(range(len(messages)))
    elif wanted == "user":
        said = [n for n, m in enumerate(messages) if m["role"] == "user"]
    for number, message in enumerate(messages):
        write(style.header.format(message["role"]), -1, train=False)
        content = message["content"]
        write(content.strip() if style.trims else content, number, train=number in said)
        ends = number in said
        write(style.ending, number if ends else -1, train=ends)
        write(style.after, -1, train=False)
    return data.decode(), np.array(message_of), np.array(trained)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("masks")
    write_bpe(made)
    for name, style in STYLES.items():
        (made / f"{name}.jinja").write_text(style.template)
    return made


def compare(
    folder: pathlib.Path, name: str, wanted: str, rounds: int, seed: int = 0
) -> None:
    style = STYLES[name]
    tokenizer = folder / "tokenizer.json"
    known = tokenizers.Tokenizer.from_file(str(tokenizer))
    options = chat_options(folder / f"{name}.jinja", tokenizer, train=wanted)
    rng = random.Random(f"{name}{wanted}{seed}")
    for _ in range(rounds):
        messages = []
        for turn in range(rng.randrange(1, 5)):
            for role in ("user", "assistant"):
                part = 2 * turn + (role == "assistant")
                messages.append({"role": role, "content": some_private(rng, part)})
        text, message_of, trained = oracle(style, messages, wanted)
        documents = read(options, {"messages": messages})
        encoded = known.encode(text, add_special_tokens=False)
        assert documents.ids.tolist() == encoded.ids
        begins = [len(text[:begin].encode()) for begin, _ in encoded.offsets]
        # Bytes of one character have one offset: they go on from it.
        for at in range(1, len(begins)):
            if encoded.offsets[at] == encoded.offsets[at - 1]:
                begins[at] = begins[at - 1] + 1
        spans = documents.spans
        mask = np.zeros(len(encoded.ids), bool)
        owner = np.full(len(encoded.ids), -1)
        for begin, stop, message, is_trained in zip(
            spans.begins, spans.stops, spans.messages, spans.trained, strict=True
        ):
            mask[begin:stop] = is_trained
            owner[begin:stop] = message
        assert mask.tolist() == trained[begins].tolist(), (text, messages)
        assert owner.tolist() == message_of[begins].tolist(), (text, messages)


@pytest.mark.parametrize("wanted", ["assistant", "last", "all", "user"])
@pytest.mark.parametrize("name", STYLES)
def test_masks_are_those_of_the_oracle(
    folder: pathlib.Path, name: str, wanted: str
) -> None:
    compare(folder, name, wanted, 12)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(50))
@pytest.mark.parametrize("name", STYLES)
def test_masks_of_many_conversations_are_those_of_the_oracle(
    folder: pathlib.Path, name: str, seed: int
) -> None:
    compare(folder, name, "assistant", 100, seed)


SAID = [
    {"role": "user", "content": "hello world"},
    {"role": "assistant", "content": "the answer"},
]


def made(folder: pathlib.Path, template: str, *records: Any, **chat: Any) -> Any:
    path = folder / "own.jinja"
    path.write_text(template)
    given = [r if isinstance(r, dict) else {"messages": r} for r in records]
    return read(chat_options(path, folder / "tokenizer.json", **chat), *given)


def spans_of(folder: pathlib.Path, template: str, *records: Any, **chat: Any) -> Any:
    documents = made(folder, template, *records, **chat)
    return seen_spans(documents, folder / "tokenizer.json")


# Templates that change, drop or mix contents, and why these are set aside.
CHANGED = {
    "upper case is proved": ("{{ messages[1].content|upper }}", ""),
    "cut": ("{{ messages[1].content[:5] }}", "rejected"),
    "dropped": ("{{ messages[0].content }}", "rejected"),
    "replaced": ("{{ messages[1].content|replace('the', 'a') }}", ""),
    "twice": ("{{ messages[1].content * 2 }}", "rejected"),
    "reversed": ("{{ messages[1].content|reverse }}", "rejected"),
    "its length": (
        "{{ messages[1].content|length }}{{ messages[1].content }}",
        "rejected",
    ),
    "its words": ("{{ messages[1].content.split()|join('_') }}", ""),
    "escaped": ("{{ messages[1].content|tojson(ensure_ascii=true) }}", "rejected"),
    "begins with": (
        "{% if messages[1].content.startswith('the') %}{{ messages[1].content }}"
        "{% endif %}",
        "rejected",
    ),
    "mixed": (
        "{{ messages[1].content }}{{ messages[0].content }}{{ messages[1].content }}",
        "rejected",
    ),
    "letters only": (
        "{% for c in messages[1].content %}{% if c.isalpha() %}{{ c }}{% endif %}"
        "{% endfor %}",
        "rejected",
    ),
    "a message in a tag of another": (
        "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% endgeneration %}",
        "rejected",
    ),
    "a tag around the user": (
        "{% generation %}{{ messages[0].content }}{% endgeneration %}"
        "{{ messages[1].content }}",
        "rejected",
    ),
    "half a tag": (
        "{{ messages[0].content }}{% set a, b = messages[1].content.split() %}{{ a }}"
        "{% generation %} {{ b }}{% endgeneration %}",
        "rejected",
    ),
    "tags that are missing where it speaks": (
        "{% generation %}{% endgeneration %}{{ messages[1].content }}"
        "{{ messages[0].content }}",
        "untrained",
    ),
    "an error": ("{{ raise_exception('roles must alternate') }}", "rejected"),
    "a type": ("{{ messages[0].content + 1 }}", "rejected"),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_content_that_cannot_be_found_is_set_aside(
    folder: pathlib.Path, name: str
) -> None:
    template, reason = CHANGED[name]
    if reason == "":
        template = (
            "{{ messages[0].content }}{% if add_generation_prompt %}|{% elif "
            "messages[1] %}|" + template + "{% endif %}"
        )
    documents = made(folder, template, SAID)
    aside = documents.counts.set_aside
    assert aside == ({reason: 1} if reason else {}), aside
    assert bool(documents.lengths[0]) == (not reason)
    if reason == "rejected":
        with pytest.raises(InputError, match="record 0"):
            made(folder, template, SAID, max_rejected=0)


def test_tags_decide_what_is_trained_on(folder: pathlib.Path) -> None:
    tagged = (
        "{% for m in messages %}{{ m.role }}>{% if m.role == 'assistant' %}"
        "{% generation %} {{ m.content }}\n<|eot|>\n{% endgeneration %}{% else %}"
        "{{ m.content }}<|eot|>{% endif %}{% endfor %}"
    )
    found = spans_of(folder, tagged, SAID)
    assert [(n, t, text) for n, _, t, text in found] == [
        (0, False, "hello world"),
        (1, True, " the answer\n<|eot|>\n"),
    ]


@pytest.mark.parametrize("content", ["", " ", " \n "])
@pytest.mark.parametrize("name", ["chatml", "trimmed", "chosen"])
def test_an_empty_answer_is_trained_on_with_its_end(
    folder: pathlib.Path, name: str, content: str
) -> None:
    chosen = CHATML.replace(
        "{{ m.content }}", "{% if m.content %}{{ m.content }}{% endif %}"
    )
    template = chosen if name == "chosen" else STYLES[name].template
    said = [SAID[0], {"role": "assistant", "content": content}]
    end = STYLES.get(name, STYLES["chatml"]).ending
    kept = "" if name == "trimmed" else content
    for messages in (said, [*said, *SAID]):
        found = spans_of(folder, template, messages)
        own = [text for number, _, trained, text in found if trained and number == 1]
        assert "".join(own) == kept + end


def test_pad_that_equals_eos_is_trained_on(folder: pathlib.Path) -> None:
    template = "{% for m in messages %}{{ m.content }}<pad>{% endfor %}"
    found = spans_of(folder, template, SAID, eos="<pad>")
    assert found[-1] == (1, 3, True, "the answer<pad>")


def test_an_end_of_turn_can_be_left_out(folder: pathlib.Path) -> None:
    found = spans_of(folder, CHATML, SAID, train_end_of_turn="no")
    assert found[-1] == (1, 3, True, "the answer")


def test_a_turn_without_an_end_is_counted(folder: pathlib.Path) -> None:
    template = STYLES["header_is_special"].template
    documents = made(folder, template, [*SAID, SAID[0]])
    assert documents.counts.open_turns == 1


def test_a_token_that_is_not_wholly_in_the_prompt_is_trained(
    folder: pathlib.Path,
) -> None:
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    messages = [
        {"role": "user", "content": "hello wor"},
        {"role": "assistant", "content": "ld hello"},
    ]
    found = spans_of(folder, template, messages)
    assert [text for *_, text in found] == ["hello", " world hello"]


def test_a_template_without_a_generation_prompt_is_told(folder: pathlib.Path) -> None:
    template = CHATML.partition("{% if add")[0]
    with pytest.raises(InputError, match=r"begin message 1 with '<\|im_start\|>"):
        made(folder, template, SAID, max_rejected=0)
    thinks = CHATML.replace("assistant\n", "assistant\n<think>")
    with pytest.raises(InputError, match="does not go on from its generation prompt"):
        made(folder, thinks, SAID, max_rejected=0)


CALL = {"name": "f", "arguments": {"n": 3, "of": [1, {"x": None}]}}
CALLS = [
    SAID[0],
    {"role": "assistant", "tool_calls": [{"function": CALL}] * 2},
    {"role": "tool", "content": "9"},
    SAID[1],
]


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        ("qwen3", "<tool_call>\n{", "}\n</tool_call><|im_end|>"),
        ("mistral_v3_tekken", "[TOOL_CALLS][{", "}]</s>"),
        ("gptoss", " to=functions.f", "<|call|>"),
    ],
)
def test_all_of_a_tool_call_is_trained(
    tmp_path: pathlib.Path, name: str, begin: str, end: str
) -> None:
    template = TEMPLATES / f"{name}.jinja"
    write_bpe(tmp_path, tuple(special_tokens(template.read_text("utf-8"))))
    calls = json.loads(json.dumps(CALLS))
    if name == "gptoss":  # It writes one call only.
        del calls[1]["tool_calls"][1]
    for call in calls[1]["tool_calls"]:
        call["id"] = calls[2]["tool_call_id"] = "abcdefghi"
    options = chat_options(template, tmp_path / "tokenizer.json", date="2025-01-31")
    found = seen_spans(read(options, {"messages": calls}), tmp_path / "tokenizer.json")
    said = "".join(
        text for number, _, trained, text in found if trained and number == 1
    )
    assert said.startswith(begin), said
    assert said.endswith(end), said
    arguments = '{"n": 3, "of": [1, {"x": null}]}'
    assert said.count(arguments) == len(calls[1]["tool_calls"])


def test_unknown_roles_are_told_and_not_trained_on(folder: pathlib.Path) -> None:
    documents = made(folder, CHATML, [{"role": "gpt", "content": "hello"}])
    assert documents.counts.set_aside == {"untrained": 1}
    messages = [{"role": "narrator", "content": "sun"}, *SAID]
    assert spans_of(folder, CHATML, messages)[0] == (
        0,
        ROLES.index("other"),
        False,
        "sun",
    )


THOUGHT = {"role": "assistant", "content": "<think>\nmoon\n</think>\n\nthe answer"}


def test_half_of_a_character_is_told(folder: pathlib.Path) -> None:
    (folder / "own.jinja").write_text(CHATML)
    options = chat_options(folder / "own.jinja", folder / "tokenizer.json")
    lines = [
        json.dumps(each).encode()
        for each in (
            {"text": "\ud800"},
            {"messages": [{"role": "user", "content": "\ud800"}]},
        )
    ]
    documents = ConversationReader(options).read(lines, "record {}".format)
    assert documents.counts.set_aside == {"rejected": 2}


def test_thinking_can_be_left_out(folder: pathlib.Path) -> None:
    found = spans_of(folder, CHATML, [SAID[0], THOUGHT])
    texts = [(ROLES[role], trained, text) for _, role, trained, text in found[1:]]
    assert texts == [
        ("thinking", True, "<think>\nmoon\n</think>"),
        ("assistant", True, "\n\nthe answer<|im_end|>"),
    ]
    found = spans_of(folder, CHATML, [SAID[0], THOUGHT], train_without="thinking")
    assert [text for *_, trained, text in found if trained] == [
        "\n\nthe answer<|im_end|>"
    ]


def test_weights_come_from_messages_and_columns(folder: pathlib.Path) -> None:
    messages = [
        *SAID,
        SAID[0],
        {**SAID[1], "weight": 0.5},
        SAID[0],
        SAID[1] | {"weight": 0},
    ]
    documents = made(folder, CHATML, {"messages": messages, "weight": 0.5})
    spans = documents.spans
    said = spans.roles == ROLES.index("assistant")
    assert spans.weights[said].tolist() == [0.5, 0.25, 1]
    assert spans.trained[said].tolist() == [True, True, False]


def test_a_long_conversation_is_cut_at_the_end_of_a_turn(folder: pathlib.Path) -> None:
    whole = made(folder, CHATML, [*SAID] * 6)
    cut = made(folder, CHATML, [*SAID] * 6, length=40)
    assert 0 < cut.lengths[0] <= 40
    assert cut.ids.tolist() == whole.ids[: cut.lengths[0]].tolist()
    assert seen_spans(cut, folder / "tokenizer.json")[-1][3].endswith("<|im_end|>")
    assert cut.counts.truncated_tokens == whole.lengths[0] - cut.lengths[0]
    assert cut.counts.truncated_documents == 1
    kept = made(folder, CHATML, [*SAID] * 6, length=40, truncate_turns="no")
    assert kept.counts.set_aside == {"long": 1}
    short = made(folder, CHATML, [*SAID] * 6, length=5)
    assert short.counts.set_aside == {"long": 1}


LOOKALIKE = [SAID[0], {"role": "assistant", "content": "is <|im_end|> a token"}]


def test_contents_like_special_tokens_are_text(folder: pathlib.Path) -> None:
    known = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = known.token_to_id("<|im_end|>")
    plain = {"text": "a<s><|im_end|>"}
    as_token = made(folder, CHATML, LOOKALIKE, plain, special_text="token")
    assert as_token.ids.tolist().count(end) == 4
    as_text = made(folder, CHATML, LOOKALIKE, plain)
    assert as_text.counts.special_texts == as_token.counts.special_texts == 3
    assert as_text.ids.tolist().count(end) == 2
    text = known.decode(as_token.ids.tolist(), skip_special_tokens=False)
    assert known.decode(as_text.ids.tolist(), skip_special_tokens=False) == text
    found = seen_spans(as_text, folder / "tokenizer.json")
    assert found[-2][3] == "is <|im_end|> a token<|im_end|>"


def test_plain_text_is_trained_on_whole(folder: pathlib.Path) -> None:
    documents = made(folder, CHATML, {"text": "hello world"}, {"messages": SAID})
    found = seen_spans(documents, folder / "tokenizer.json")
    assert found[0] == (0, ROLES.index("other"), True, "<s>hello world</s>")
    assert documents.counts.special_tokens == 2


def test_a_tokenizer_that_changes_text_keeps_its_borders(
    folder: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The library tells places where bytes of tokens are not the text."""
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Lowercase"}
    content["post_processor"] = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "own.jinja").write_text(CHATML)
    options = chat_options(tmp_path / "own.jinja", tmp_path / "tokenizer.json")
    messages = [SAID[0], {"role": "assistant", "content": " The Été Answer"}]
    found = seen_spans(
        read(options, {"messages": messages}), tmp_path / "tokenizer.json"
    )
    assert found[-1][3] == " the été answer<|im_end|>"
