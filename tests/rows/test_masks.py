"""What is trained on, beside an oracle that builds the text and knows each part."""

import json
import random
from typing import NamedTuple

import pytest
import tokenizers

from gristmill.dataset.base.errors import InputError
from gristmill.dataset.packed.message_spans import ROLES
from tests.rows.conversations import (
    WORDS,
    chat_options,
    read,
    seen_spans,
    write_bpe,
)
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
    """Returns the text, and for each byte its message and whether it is trained on."""
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
            said += [what] * len(part.encode())
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
        begins, before = [], None
        for offsets in encoded.offsets:
            # Bytes of one character have one offset: they go on from it.
            begin = len(text[: offsets[0]].encode())
            begins.append(begins[-1] + 1 if offsets == before else begin)
            before = offsets
        (found,) = tokens_of(documents.spans, documents.lengths)
        found = [each and (each.message, each.trained) for each in found]
        assert found == [said[begin] for begin in begins], (text, messages)


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
EMPTY_TAGS = "{% generation %}{% endgeneration %}" + ANSWER
# Templates that change, drop or mix contents, and why these are set aside, if they are.
SET_ASIDE = {
    "upper case": (ASKED + "{{ messages[1].content|upper }}{% endif %}", None),
    "its words": (
        ASKED + "{{ messages[1].content.split()|join('_') }}{% endif %}",
        None,
    ),
    "cut": ("{{ messages[1].content[:5] }}", "rejected"),
    "dropped": ("{{ messages[0].content }}", "rejected"),
    "twice": ("{{ messages[1].content * 2 }}", "rejected"),
    "reversed": ("{{ messages[1].content|reverse }}", "rejected"),
    "its length": ("{{ messages[1].content|length }}" + ANSWER, "rejected"),
    "escaped": ("{{ messages[1].content|tojson(ensure_ascii=true) }}", "rejected"),
    "begins with": (
        "{% if messages[1].content.startswith('the') %}"
        "{{ messages[1].content }}{% endif %}",
        "rejected",
    ),
    "mixed": (ANSWER + "{{ messages[0].content }}" + ANSWER, "rejected"),
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
        "{% generation %}{{ messages[0].content }}{% endgeneration %}" + ANSWER,
        "rejected",
    ),
    "half a tag": (
        "{{ messages[0].content }}{% set a, b = messages[1].content.split() %}{{ a }}"
        "{% generation %} {{ b }}{% endgeneration %}",
        "rejected",
    ),
    "an error": ("{{ raise_exception('roles must alternate') }}", "rejected"),
    "a type": ("{{ messages[0].content + 1 }}", "rejected"),
    "no tag where it speaks": (EMPTY_TAGS + "{{ messages[0].content }}", "untrained"),
}


@pytest.mark.parametrize(("template", "reason"), SET_ASIDE.values(), ids=SET_ASIDE)
def test_a_content_that_cannot_be_found_is_set_aside(folder, template, reason):
    documents = made(folder, template, SAID)
    assert documents.counts.set_aside == ({reason: 1} if reason else {})
    assert bool(documents.lengths[0]) == (reason is None)
    if reason == "rejected":
        with pytest.raises(InputError, match="record 0"):
            made(folder, template, SAID, max_rejected=0)


def test_a_speaker_that_is_unknown_and_half_of_a_character_are_set_aside(folder):
    unknown, half = ([{"role": "gpt", "content": c}] for c in ("hello", "\ud800"))
    found = made(folder, CHATML, unknown, half, {"text": "\ud800"})
    assert found.counts.set_aside == {"untrained": 1, "rejected": 2}


THOUGHT = {"role": "assistant", "content": "<think>\nmoon\n</think>\n\nthe answer"}
PLAIN = "{% for m in messages %}{{ m.content }}{% endfor %}"
TAGGED = (
    "{% for m in messages %}{{ m.role }}>{% if m.role == 'assistant' %}"
    "{% generation %} {{ m.content }}\n<|eot|>\n{% endgeneration %}{% else %}"
    "{{ m.content }}<|eot|>{% endif %}{% endfor %}"
)
PADDED = PLAIN.replace("{% endfor", "<pad>{% endfor")
HALVES = [SAID[0] | {"content": "hello wor"}, SAID[1] | {"content": "ld hello"}]
NARRATED = [{"role": "narrator", "content": "sun"}, *SAID]
ASKS, ENDS = (0, "user", False, "hello world"), "\n\nthe answer<|im_end|>"


def says(text, role="assistant", trained=True, message=1):
    return message, role, trained, text


@pytest.mark.parametrize(
    ("template", "said", "options", "expected"),
    [
        (CHATML, SAID, {"train_end_of_turn": "no"}, [says("the answer")]),
        (TAGGED, SAID, {}, [ASKS, says(" the answer\n<|eot|>\n")]),
        # A pad that equals the end of a turn is trained on.
        (PADDED, SAID, {"eos": "<pad>"}, [says("the answer<pad>")]),
        # So is a token that is not wholly in the prompt.
        (PLAIN, HALVES, {}, [says("hello", "user", False, 0), says(" world hello")]),
        (
            *(CHATML, NARRATED, {}),
            [says("sun", "other", False, 0), says("hello world", "user", False)],
        ),
        *(
            (
                *(CHATML, [SAID[0], THOUGHT], options),
                [says("<think>\nmoon\n</think>", "thinking", not options), says(ENDS)],
            )
            for options in ({}, {"train_without": "thinking"})
        ),
        # What looks like a special token is text; text alone is trained on whole.
        (
            *(CHATML, [SAID[0], SAID[1] | {"content": "is <|im_end|> it"}], {}),
            [ASKS, says("is <|im_end|> it<|im_end|>")],
        ),
        (CHATML, {"text": "hello"}, {}, [says("<s>hello</s>", "other", True, 0)]),
    ],
    ids=range(9),
)
def test_spans(folder, template, said, options, expected):
    found = spans_of(folder, template, said, **options)
    if "narrator" in str(said):
        assert found.pop() == says("the answer<|im_end|>", message=2)
    assert found[-len(expected) :] == expected


@pytest.mark.parametrize("content", ["", " \n "])
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
