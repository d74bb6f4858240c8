"""What is trained on, beside an oracle that builds the text and knows each part."""

import json
import random
from typing import NamedTuple

import numpy as np
import pytest
import tokenizers

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.packed.message_spans import ROLES
from gristmill.transforms.chat.conversation_reader import ConversationReader
from tests.rows.conversations import (
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
SAID = [
    {"role": "user", "content": "hello world"},
    {"role": "assistant", "content": "the answer"},
]


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
        *("<|h|>{}<|h|>\n\n", "<|eot|>", ""),
        trims=True,
    ),
    "words": Style(
        "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
        *("{}: ", "", "\n"),
    ),
    "header_is_special": Style(
        "{% for m in messages %}{{ '<|h|>' + m.role + '|' + m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|h|>assistant|{% endif %}",
        *("<|h|>{}|", "", ""),
    ),
    "ending_after_blank": Style(
        "{% for m in messages %}{{ '[' + m.role + ']' + m.content + ' </s>' }}"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
        *("[{}]", " </s>", ""),
    ),
}


def some_private(rng, part):
    """Returns a content that only this part can have, with white space around it."""
    own = [chr(0xE000 + 40 * part + number) for number in range(40)]
    text = "".join(rng.choices([*own, " ", "\n", rng.choice(WORDS)], k=9))
    return rng.choice(["", " ", "\n"]) + own[0] + text + rng.choice(["", " ", "\n\n"])


def oracle(style, messages, wanted):
    """Returns the text, and for each byte the message, and whether it is trained on."""
    data, owner, trained = "", [], []

    def write(text, message, train):
        nonlocal data
        data += text
        owner.extend([message] * len(text.encode()))
        trained.extend([train] * len(text.encode()))

    last = len(messages) - 1
    for number, message in enumerate(messages):
        role = message["role"]
        says = wanted in (role, "all") or (wanted == "last" and number == last)
        write(style.header.format(role), -1, False)
        content = message["content"]
        write(content.strip() if style.trims else content, number, says)
        write(style.ending, number if says else -1, says)
        write(style.after, -1, False)
    return data, np.array(owner), np.array(trained)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("masks")
    write_bpe(made)
    for name, style in STYLES.items():
        (made / f"{name}.jinja").write_text(style.template)
    return made


@pytest.mark.parametrize(
    ("wanted", "seed", "rounds"),
    [
        *((wanted, 0, 12) for wanted in ("assistant", "last", "all", "user")),
        *(
            pytest.param("assistant", seed, 100, marks=pytest.mark.soak)
            for seed in range(1, 50)
        ),
    ],
)
@pytest.mark.parametrize("name", STYLES)
def test_masks_are_those_of_the_oracle(folder, name, wanted, seed, rounds):
    tokenizer = folder / "tokenizer.json"
    known = tokenizers.Tokenizer.from_file(str(tokenizer))
    options = chat_options(folder / f"{name}.jinja", tokenizer, train=wanted)
    rng = random.Random(f"{name}{wanted}{seed}")
    for _ in range(rounds):
        roles = ["user", "assistant"] * rng.randrange(1, 5)
        messages = [
            {"role": role, "content": some_private(rng, part)}
            for part, role in enumerate(roles)
        ]
        text, message_of, trained = oracle(STYLES[name], messages, wanted)
        documents = read(options, {"messages": messages})
        encoded = known.encode(text, add_special_tokens=False)
        assert documents.ids.tolist() == encoded.ids
        begins = [len(text[:begin].encode()) for begin, _ in encoded.offsets]
        # Bytes of one character have one offset: they go on from it.
        for at in range(1, len(begins)):
            if encoded.offsets[at] == encoded.offsets[at - 1]:
                begins[at] = begins[at - 1] + 1
        spans = documents.spans
        mask, owner = np.zeros(len(begins), bool), np.full(len(begins), -1)
        for number, (begin, stop) in enumerate(
            zip(spans.begins, spans.stops, strict=True)
        ):
            mask[begin:stop] = spans.trained[number]
            owner[begin:stop] = spans.messages[number]
        assert mask.tolist() == trained[begins].tolist(), (text, messages)
        assert owner.tolist() == message_of[begins].tolist(), (text, messages)


def made(folder, template, *records, **chat):
    path = folder / "own.jinja"
    path.write_text(template)
    given = [r if isinstance(r, dict) else {"messages": r} for r in records]
    return read(chat_options(path, folder / "tokenizer.json", **chat), *given)


def spans_of(folder, template, *records, **chat):
    """Returns message, role, whether it is trained on, and text of each span."""
    documents = made(folder, template, *records, **chat)
    return seen_spans(documents, folder / "tokenizer.json")


def trained_text(spans, message=1):
    return "".join(text for n, _, trained, text in spans if trained and n == message)


# Templates that change, drop or mix contents, and why these are set aside.
ANSWER = "{{ messages[1].content }}"
PROVED = {
    "upper case": "{{ messages[1].content|upper }}",
    "replaced": "{{ messages[1].content|replace('the', 'a') }}",
    "its words": "{{ messages[1].content.split()|join('_') }}",
}
REJECTED = {
    "cut": "{{ messages[1].content[:5] }}",
    "dropped": "{{ messages[0].content }}",
    "twice": "{{ messages[1].content * 2 }}",
    "reversed": "{{ messages[1].content|reverse }}",
    "its length": "{{ messages[1].content|length }}" + ANSWER,
    "escaped": "{{ messages[1].content|tojson(ensure_ascii=true) }}",
    "begins with": "{% if messages[1].content.startswith('the') %}"
    + ANSWER
    + "{% endif %}",
    "mixed": ANSWER + "{{ messages[0].content }}" + ANSWER,
    "letters only": (
        "{% for c in messages[1].content %}{% if c.isalpha() %}{{ c }}{% endif %}"
        "{% endfor %}"
    ),
    "a message in a tag of another": (
        "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}"
        "{% endgeneration %}"
    ),
    "a tag around the user": (
        "{% generation %}{{ messages[0].content }}{% endgeneration %}" + ANSWER
    ),
    "half a tag": (
        "{{ messages[0].content }}{% set a, b = messages[1].content.split() %}{{ a }}"
        "{% generation %} {{ b }}{% endgeneration %}"
    ),
    "an error": "{{ raise_exception('roles must alternate') }}",
    "a type": "{{ messages[0].content + 1 }}",
}
EMPTY_TAGS = (
    "{% generation %}{% endgeneration %}" + ANSWER + "{{ messages[0].content }}"
)


@pytest.mark.parametrize("template", PROVED.values(), ids=PROVED)
def test_a_content_that_is_changed_and_found_is_used(folder, template):
    prompt = "{{ messages[0].content }}{% if add_generation_prompt %}|{% elif "
    answer = "messages[1] %}|" + template + "{% endif %}"
    documents = made(folder, prompt + answer, SAID)
    assert not documents.counts.set_aside
    assert documents.lengths[0]


@pytest.mark.parametrize("template", REJECTED.values(), ids=REJECTED)
def test_a_content_that_cannot_be_found_is_set_aside(folder, template):
    documents = made(folder, template, SAID)
    assert documents.counts.set_aside == {"rejected": 1}
    assert not documents.lengths[0]
    with pytest.raises(InputError, match="record 0"):
        made(folder, template, SAID, max_rejected=0)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        (EMPTY_TAGS, SAID),  # Tags are missing where it speaks.
        (CHATML, [{"role": "gpt", "content": "hello"}]),  # An unknown role.
    ],
)
def test_a_conversation_without_a_trained_token_is_set_aside(folder, template, said):
    assert made(folder, template, said).counts.set_aside == {"untrained": 1}


THOUGHT = {"role": "assistant", "content": "<think>\nmoon\n</think>\n\nthe answer"}
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
TAGGED = (
    "{% for m in messages %}{{ m.role }}>{% if m.role == 'assistant' %}"
    "{% generation %} {{ m.content }}\n<|eot|>\n{% endgeneration %}{% else %}"
    "{{ m.content }}<|eot|>{% endif %}{% endfor %}"
)
HALVES = [SAID[0] | {"content": "hello wor"}, SAID[1] | {"content": "ld hello"}]
LAST = (1, "assistant", True, "the answer")
ENDED = "\n\nthe answer<|im_end|>"


@pytest.mark.parametrize(
    ("template", "said", "options", "expected"),
    [
        (CHATML, SAID, {"train_end_of_turn": "no"}, [LAST]),
        (
            *(TAGGED, SAID, {}),
            [
                (0, "user", False, "hello world"),
                (1, "assistant", True, " the answer\n<|eot|>\n"),
            ],
        ),
        # A pad that equals the end of a turn is trained on.
        (
            *(PLAIN.replace("{% endfor", "<pad>{% endfor"), SAID, {"eos": "<pad>"}),
            [(1, "assistant", True, "the answer<pad>")],
        ),
        # So is a token that is not wholly in the prompt.
        (
            *(PLAIN, HALVES, {}),
            [(0, "user", False, "hello"), (1, "assistant", True, " world hello")],
        ),
        (
            *(CHATML, [{"role": "narrator", "content": "sun"}, *SAID], {}),
            [
                (0, "other", False, "sun"),
                (1, "user", False, "hello world"),
                (2, "assistant", True, "the answer<|im_end|>"),
            ],
        ),
        (
            *(CHATML, [SAID[0], THOUGHT], {}),
            [
                (1, "thinking", True, "<think>\nmoon\n</think>"),
                (1, "assistant", True, ENDED),
            ],
        ),
        (
            *(CHATML, [SAID[0], THOUGHT], {"train_without": "thinking"}),
            [
                (1, "thinking", False, "<think>\nmoon\n</think>"),
                (1, "assistant", True, ENDED),
            ],
        ),
    ],
    ids=["no end", "tags", "pad", "halves", "narrator", "thinking", "spoken"],
)
def test_spans(folder, template, said, options, expected):
    found = spans_of(folder, template, said, **options)
    named = [(n, ROLES[role], trained, text) for n, role, trained, text in found]
    assert named[-len(expected) :] == expected


@pytest.mark.parametrize("content", ["", " ", " \n "])
@pytest.mark.parametrize("name", ["chatml", "trimmed", "chosen"])
def test_an_empty_answer_is_trained_on_with_its_end(folder, name, content):
    chosen = "{% if m.content %}{{ m.content }}{% endif %}"
    style = STYLES.get(name, STYLES["chatml"])
    template = style.template
    if name == "chosen":
        template = template.replace("{{ m.content }}", chosen)
    said = [SAID[0], {"role": "assistant", "content": content}]
    kept = "" if style.trims else content
    for messages in (said, [*said, *SAID]):
        assert trained_text(spans_of(folder, template, messages)) == kept + style.ending


def test_a_turn_without_an_end_is_counted(folder):
    template = STYLES["header_is_special"].template
    assert made(folder, template, [*SAID, SAID[0]]).counts.open_turns == 1


def test_a_template_without_a_generation_prompt_is_told(folder):
    thinks = CHATML.replace("assistant\n", "assistant\n<think>")
    for template, message in (
        (CHATML.partition("{% if add")[0], r"begin message 1 with '<\|im_start\|>"),
        (thinks, "does not go on from its generation prompt"),
    ):
        with pytest.raises(InputError, match=message):
            made(folder, template, SAID, max_rejected=0)


CALL = {"name": "f", "arguments": {"n": 3, "of": [1, {"x": None}]}}


@pytest.mark.parametrize(
    ("name", "number", "begin", "end"),
    [
        ("qwen3", 2, "<tool_call>\n{", "}\n</tool_call><|im_end|>"),
        ("mistral_v3_tekken", 2, "[TOOL_CALLS][{", "}]</s>"),
        # It writes one call only.
        ("gptoss", 1, " to=functions.f", "<|call|>"),
    ],
)
def test_all_of_a_tool_call_is_trained(tmp_path, name, number, begin, end):
    template = TEMPLATES / f"{name}.jinja"
    write_bpe(tmp_path, tuple(special_tokens(template.read_text("utf-8"))))
    called = {"id": "abcdefghi", "function": CALL}
    asks = {"role": "assistant", "tool_calls": [called] * number}
    tells = {"role": "tool", "content": "9", "tool_call_id": "abcdefghi"}
    options = chat_options(template, tmp_path / "tokenizer.json", date="2025-01-31")
    documents = read(options, {"messages": [SAID[0], asks, tells, SAID[1]]})
    said = trained_text(seen_spans(documents, tmp_path / "tokenizer.json"))
    assert (said[: len(begin)], said[-len(end) :]) == (begin, end)
    assert said.count(json.dumps(CALL["arguments"])) == number


def test_half_of_a_character_is_told(folder):
    options = chat_options(folder / "chatml.jinja", folder / "tokenizer.json")
    lines = [rb'{"text": "\ud800"}', rb'[{"role": "user", "content": "\ud800"}]']
    documents = ConversationReader(options).read(lines, "record {}".format)
    assert documents.counts.set_aside == {"rejected": 2}


def test_weights_come_from_messages_and_columns(folder):
    weighted = [SAID[0], {**SAID[1], "weight": 0.5}, SAID[0], {**SAID[1], "weight": 0}]
    record = {"messages": [*SAID, *weighted], "weight": 0.5}
    spans = made(folder, CHATML, record).spans
    said = spans.roles == ROLES.index("assistant")
    assert spans.weights[said].tolist() == [0.5, 0.25, 1]
    assert spans.trained[said].tolist() == [True, True, False]


def test_a_long_conversation_is_cut_at_the_end_of_a_turn(folder):
    whole, cut = (made(folder, CHATML, SAID * 6, length=n) for n in (1 << 20, 40))
    assert 0 < cut.lengths[0] <= 40
    assert cut.ids.tolist() == whole.ids[: cut.lengths[0]].tolist()
    assert seen_spans(cut, folder / "tokenizer.json")[-1][3].endswith("<|im_end|>")
    assert cut.counts.truncated_tokens == whole.lengths[0] - cut.lengths[0]
    assert cut.counts.truncated_documents == 1
    for options in ({"length": 40, "truncate_turns": "no"}, {"length": 5}):
        kept = made(folder, CHATML, SAID * 6, **options)
        assert kept.counts.set_aside == {"long": 1}


def test_contents_like_special_tokens_are_text(folder):
    known = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    end = known.token_to_id("<|im_end|>")
    records = (
        [SAID[0], SAID[1] | {"content": "is <|im_end|> a token"}],
        {"text": "a<s><|im_end|>"},
    )
    as_text = made(folder, CHATML, *records)
    as_token = made(folder, CHATML, *records, special_text="token")
    assert [d.ids.tolist().count(end) for d in (as_text, as_token)] == [2, 4]
    assert as_text.counts.special_texts == as_token.counts.special_texts == 3
    texts = {
        known.decode(d.ids, skip_special_tokens=False) for d in (as_text, as_token)
    }
    assert len(texts) == 1
    found = seen_spans(as_text, folder / "tokenizer.json")
    assert found[-2][3] == "is <|im_end|> a token<|im_end|>"


def test_plain_text_is_trained_on_whole(folder):
    documents = made(folder, CHATML, {"text": "hello world"}, SAID)
    found = seen_spans(documents, folder / "tokenizer.json")
    assert found[0] == (0, ROLES.index("other"), True, "<s>hello world</s>")
    assert documents.counts.special_tokens == 2


def test_a_tokenizer_that_changes_text_keeps_its_borders(folder, tmp_path):
    """The library tells places where bytes of tokens are not the text."""
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Lowercase"}
    level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    content["post_processor"] = {"type": "ByteLevel", **level}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    found = spans_of(
        tmp_path, CHATML, [SAID[0], SAID[1] | {"content": " The Été Answer"}]
    )
    assert found[-1][3] == " the été answer<|im_end|>"
