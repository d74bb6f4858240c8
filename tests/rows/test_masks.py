"""What is trained on, beside an oracle that builds the text and knows each part."""

import json
import random
from typing import NamedTuple

import pytest
import tokenizers

from gristmill.dataset import InputError
from gristmill.dataset.packed.message_spans import ROLES
from tests.rows.conversations import WORDS, chat_options, read, seen_spans, write_bpe
from tests.rows.packed_rows import tokens_of

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
    """Returns the text; for each letter its message, and whether it is trained on."""
    text, said = "", []
    for number, message in enumerate(messages):
        role, content = message["role"], message["content"]
        is_last = number == len(messages) - 1
        trained = wanted in (role, "all") or (wanted == "last" and is_last)
        for part, what in (
            (style.header.format(role), None),
            (content.strip() if style.trims else content, (number, trained)),
            (style.ending, (number, True) if trained else None),
            (style.after, None),
        ):
            text += part
            said += [what] * len(part)
    return text, said


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("masks")
    write_bpe(made)
    return made


@pytest.mark.parametrize(
    ("wanted", "seed", "rounds"),
    [
        *((wanted, 0, 12) for wanted in ("assistant", "last", "all", "user")),
        pytest.param("assistant", 1, 5000, marks=pytest.mark.soak),
    ],
)
@pytest.mark.parametrize("name", STYLES)
def test_masks_are_those_of_the_oracle(folder, tmp_path, name, wanted, seed, rounds):
    tokenizer, template = folder / "tokenizer.json", tmp_path / "own.jinja"
    template.write_text(STYLES[name].template)
    known = tokenizers.Tokenizer.from_file(str(tokenizer))
    options = chat_options(template, tokenizer, train=wanted)
    rng = random.Random(f"{name}{wanted}{seed}")
    for _ in range(rounds):
        roles = ["user", "assistant"] * rng.randrange(1, 5)
        messages = [
            {"role": role, "content": some_private(rng, part)}
            for part, role in enumerate(roles)
        ]
        text, said = oracle(STYLES[name], messages, wanted)
        documents = read(options, {"messages": messages})
        encoded = known.encode(text, add_special_tokens=False)
        assert documents.ids.tolist() == encoded.ids
        (found,) = tokens_of(documents.spans, documents.lengths)
        found = [each and (each.message, each.trained) for each in found]
        expected = [said[begin] for begin, _ in encoded.offsets]
        assert found == expected, (text, messages)


def made(folder, template, *records, **chat):
    path = folder / "own.jinja"
    path.write_text(template)
    given = [r if isinstance(r, dict) else {"messages": r} for r in records]
    return read(chat_options(path, folder / "tokenizer.json", **chat), *given)


def spans_of(folder, template, *records, **chat):
    """Returns message, role, whether it is trained on, and text of each span."""
    documents = made(folder, template, *records, **chat)
    return seen_spans(documents, folder / "tokenizer.json")


def trained_text(spans):
    return "".join(text for n, _, trained, text in spans if trained and n == 1)


ANSWER = "{{ messages[1].content }}"
ASKED = (
    "{{ messages[0].content }}{% if add_generation_prompt %}|{% elif messages[1] %}|"
)
TAGGED = (
    "{% for m in messages %}{{ m.role }}>{% if m.role == 'assistant' %}"
    "{% generation %} {{ m.content }}\n<|eot|>\n{% endgeneration %}{% else %}"
    "{{ m.content }}<|eot|>{% endif %}{% endfor %}"
)
# Instead of a content, in a template that is right without it.
CONTENTS = {
    "dropped": "",
    "cut": "{{ m.content[:5] }}",
    "twice": "{{ m.content }}{{ m.content }}",
    "reversed": "{{ m.content|reverse }}",
    "its length": "{{ m.content|length }}{{ m.content }}",
}
# Templates that change, drop or mix contents.
REJECTED = {
    **{
        name: CHATML.replace("{{ m.content }}", each) for name, each in CONTENTS.items()
    },
    "mixed": ANSWER + "{{ messages[0].content }}" + ANSWER,
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


THOUGHT = {"role": "assistant", "content": "<think>\nmoon\n</think>\n\nthe answer"}
REASONED = [SAID[0], SAID[1] | {"reasoning_content": "moon"}]
CALLED = [SAID[0], SAID[1] | {"tool_calls": [{"function": {"arguments": {"n": 3}}}]}]
# The same with messages that have more parts.
REJECTED_TALKS = {
    "a tool call is left out": (CHATML, CALLED),
    "a thought decides": (
        "{% for m in messages %}{% if 'moon' in (m.reasoning_content or '') %}!"
        "{% endif %}{% endfor %}" + CHATML,
        REASONED,
    ),
    "a message in two places": (
        CHATML.replace("m.content", "(m.reasoning_content or m.content)")
        + "{% for m in messages if m.reasoning_content %}{{ m.content }}{% endfor %}",
        [*REASONED, SAID[0]],
    ),
    "two contents in one place": (
        "{% for m in messages %}{{ m.content[:12] if loop.first else m.content[-11:] }}"
        "{% endfor %}{% generation %}{{ messages[1].content }}{% endgeneration %}",
        SAID,
    ),
    "one end of two messages": (
        "{% for m in messages %}{{ m.content }}{% if not (loop.last and "
        "add_generation_prompt) %}<|im_end|>{% endif %}{% endfor %}",
        [*SAID, SAID[1]],
    ),
    "a tag around half a message": (
        "{% set a, b = messages[1].content.split('</think>') %}{{ a }}</think>"
        "{% generation %}{{ b }}{% endgeneration %}{{ messages[0].content }}",
        [SAID[0], THOUGHT],
    ),
}


@pytest.mark.parametrize(
    ("template", "said"),
    [*((each, SAID) for each in REJECTED.values()), *REJECTED_TALKS.values()],
    ids=[*REJECTED, *REJECTED_TALKS],
)
def test_a_content_that_cannot_be_found_is_set_aside(folder, template, said):
    documents = made(folder, template, said)
    assert documents.counts.set_aside == {"rejected": 1}
    assert not documents.lengths[0]
    with pytest.raises(InputError, match="record 0"):
        made(folder, template, said, max_rejected=0)


def test_a_content_after_a_prompt_may_change(folder):
    for content in ("content|upper", "content.split()|join('_')"):
        template = f"{ASKED}{{{{ messages[1].{content} }}}}{{% endif %}}"
        documents = made(folder, template, SAID)
        assert documents.counts.set_aside == {}
        assert documents.lengths[0]


def test_a_template_without_a_tag_where_it_speaks(folder):
    template = "{% generation %}{% endgeneration %}{{ messages[0].content }}" + ANSWER
    assert made(folder, template, SAID).counts.set_aside == {"untrained": 1}


def test_a_speaker_that_is_unknown_and_half_of_a_character_are_set_aside(folder):
    unknown, half = ([{"role": "gpt", "content": c}] for c in ("hello", "\ud800"))
    found = made(folder, CHATML, unknown, half, {"text": "\ud800"})
    assert found.counts.set_aside == {"untrained": 1, "rejected": 2}


PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
PADDED = PLAIN.replace("{% endfor", "<pad>{% endfor")
HALVES = [SAID[0] | {"content": "hello th"}, SAID[1] | {"content": "at is"}]
NARRATED = [{"role": "narrator", "content": "sun"}, *SAID]
ASKS, ENDS = (0, "user", False, "hello world"), "\n\nthe answer<|im_end|>"


def says(text, role="assistant", trained=True, message=1):
    return message, role, trained, text


SPANS = {
    "no end of turn": (CHATML, SAID, {"train_end_of_turn": "no"}, [says("the answer")]),
    "tagged": (TAGGED, SAID, {}, [ASKS, says(" the answer\n<|eot|>\n")]),
    "a pad that is the end": (
        PADDED,
        SAID,
        {"eos": "<pad>"},
        [says("the answer<pad>")],
    ),
    "a token that is not wholly in the prompt": (
        PLAIN,
        HALVES,
        {},
        [says("hello", "user", False, 0), says(" that is")],
    ),
    "a token in two messages that are trained on": (
        PLAIN,
        HALVES,
        {"train": "all"},
        [says("hello that", "user", message=0), says(" is")],
    ),
    "other roles": (
        CHATML,
        NARRATED,
        {},
        [
            says("sun", "other", False, 0),
            says("hello world", "user", False),
            says("the answer<|im_end|>", message=2),
        ],
    ),
    "the answers of a prompt": (
        CHATML,
        {"prompt": [*SAID, SAID[0]], "completion": "moon"},
        {},
        [
            says("the answer", trained=False),
            says("hello world", "user", False, message=2),
            says("moon<|im_end|>", message=3),
        ],
    ),
    "thinking": (
        CHATML,
        [SAID[0], THOUGHT],
        {},
        [says("<think>\nmoon\n</think>", "thinking"), says(ENDS)],
    ),
    "without thinking": (
        CHATML,
        [SAID[0], THOUGHT],
        {"train_without": "thinking"},
        [says("<think>\nmoon\n</think>", "thinking", False), says(ENDS)],
    ),
    "text like a special token": (
        CHATML,
        [SAID[0], SAID[1] | {"content": "is <|im_end|> it"}],
        {},
        [ASKS, says("is <|im_end|> it<|im_end|>")],
    ),
    "text alone": (
        CHATML,
        {"text": "hello"},
        {},
        [says("<s>hello</s>", "other", True, 0)],
    ),
}


@pytest.mark.parametrize(
    ("template", "said", "options", "expected"), SPANS.values(), ids=SPANS
)
def test_spans(folder, template, said, options, expected):
    found = spans_of(folder, template, said, **options)
    assert found[-len(expected) :] == expected


CHOSEN = CHATML.replace("{{ m.content", "{% if m.content %}{{ m.content")
STYLES_OF_EMPTY = {
    "chatml": STYLES["chatml"],
    "trimmed": STYLES["trimmed"],
    "chosen": STYLES["chatml"]._replace(
        template=CHOSEN.replace("<|im_e", "{% endif %}<|im_e")
    ),
}


@pytest.mark.parametrize("content", ["", " \n "])
@pytest.mark.parametrize("style", STYLES_OF_EMPTY.values(), ids=STYLES_OF_EMPTY)
def test_an_empty_answer_is_trained_on_with_its_end(folder, style, content):
    said = [SAID[0], {"role": "assistant", "content": content}]
    expected = (content.strip() if style.trims else content) + style.ending
    for messages in (said, [*said, *SAID]):
        assert trained_text(spans_of(folder, style.template, messages)) == expected


def test_what_a_template_lacks_is_counted_or_told(folder):
    template = STYLES["header_is_special"].template
    assert made(folder, template, [*SAID, SAID[0]]).counts.open_turns == 1
    thinks = CHATML.replace("assistant\n", "assistant\n<think>")
    for template, message in (
        (CHATML.partition("{% if add")[0], r"begin message 1 with '<\|im_start\|>"),
        (thinks, "does not go on from its generation prompt"),
    ):
        with pytest.raises(InputError, match=message):
            made(folder, template, SAID, max_rejected=0)


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
    kept = made(folder, CHATML, SAID * 6, length=5)
    assert kept.counts.set_aside == {"long": 1}


def test_a_tokenizer_that_changes_text_keeps_its_borders(folder, tmp_path):
    """The library tells places where bytes of tokens are not the text."""
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"] = {"type": "Lowercase"}
    level = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    content["post_processor"] = {"type": "ByteLevel", **level}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    talk = [SAID[0], SAID[1] | {"content": " The Été Answer"}]
    assert trained_text(spans_of(tmp_path, CHATML, talk)) == " the été answer<|im_end|>"
