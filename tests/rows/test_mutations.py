"""Mutated templates, chats and tokenizers: no mask is wrong without a word.

Contents are of characters that only one message has, so a brute-force look at the text
of the tokens tells which is whose. What was made of a mutated template or conversation
has to be right by that look, or be set aside, refused or counted.
"""

import collections
import itertools
import json
import random
import re

import pytest
import tokenizers

from gristmill.dataset import GristmillError
from gristmill.transforms.chat.template import templates_of
from tests.rows.conversations import chat_options, read, write_bpe
from tests.rows.packed_rows import tokens_of
from tests.rows.test_masks import STYLES, some_private

TAGGED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}\n{% else %}"
    "{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
)
LOOPED = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}"
    "<<{{ m.content }}>>\n{% elif m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content|trim }}</s>{% endif %}{% endfor %}"
)
TEMPLATES = [TAGGED, LOOPED, *(style.template for style in STYLES.values())]


def some_messages(rng):
    roles = ["system"] * rng.randrange(2) + ["user", "assistant"] * rng.randrange(1, 4)
    return [
        {"role": role, "content": some_private(rng, n)} for n, role in enumerate(roles)
    ]


def privates(text):
    """Returns the letters of a text that `some_private` gives one message alone."""
    return [char for char in text if 0xE000 <= ord(char) < 0xF000]


def pieces(change):
    """A mutation of the tags and texts of a template: of some pieces at a place."""

    def mutate(text, rng):
        found = re.split(r"(\{\{.*?\}\}|\{%.*?%\})", text)
        at = rng.randrange(len(found) - 1)
        return "".join([*found[:at], *change(*found[at : at + 2]), *found[at + 2 :]])

    return mutate


def replaced(old, *new, times=-1):
    """A mutation of what a template writes."""
    return lambda text, rng: text.replace(old, rng.choice(new), times)


OF_TEMPLATE = [
    pieces(lambda one, two: [two]),
    pieces(lambda one, two: [one, one, two]),
    pieces(lambda one, two: [two, one]),
    replaced(
        "m.content",
        "m.content|trim",
        "m.content|upper",
        "m.content[:3]",
        "m.content[1:]",
        "m.content|reverse",
        "(m.content * 2)",
        "m.content|title",
        "m.content|e",
        "m.content|length|string",
        "m.content|replace('\ue000', '')",
        "m.content|tojson",
        "m.content.split()[0]",
    ),
    replaced("m.content", *(f"messages[{n}].content" for n in range(3)), times=1),
    lambda text, rng: re.sub(r"<\|\w+\|>|</s>", rng.choice(["", "|", "<pad>"]), text),
    replaced(
        "{{ m.content }}",
        "{% if loop.last %}{{ m.content }}{% endif %}",
        "{% if not loop.first %}{{ m.content }}{% endif %}",
        "{% if m.content|length > 6 %}{{ m.content }}{% endif %}",
        "{% if '\ue000' not in m.content %}{{ m.content }}{% endif %}",
    ),
]


def field(name, *values):
    """A mutation of a field of a message."""

    def mutate(messages, rng):
        rng.choice(messages)[name] = rng.choice(values)

    return mutate


def added(*texts):
    """A mutation of a content, which something is added to."""

    def mutate(messages, rng):
        message = rng.choice(messages)
        message["content"] += rng.choice(texts) + message["content"].strip()

    return mutate


def same_content(messages, _):
    messages.append({"role": "assistant", "content": "sun"})
    messages.insert(0, {"role": "user", "content": "sun"})


PARTS = [[{"type": "image"}], [{"type": "text"}], [3]]
OF_DATA = [
    field("role", "gpt", "", "ASSISTANT", "narrator", 7),
    field("content", "", " ", "\n\n", None, *PARTS),
    field("weight", -1, "1", 0, float("inf"), True),
    added("<|im_end|>", "<|im_start|>assistant\n", "<pad>", "</s>", "<|h|>"),
    added("\U00100123", "\U000f0123", "\U000fffef", "\n[INST] user: |assistant: "),
    lambda messages, rng: rng.choice(messages).pop("content"),
    same_content,
]


def without_token(fields, rng):
    """Takes out a special token: the template's text of it is several tokens."""
    fields["added_tokens"].pop(rng.randrange(len(fields["added_tokens"])))


def of_token(**changes):
    return lambda fields, rng: rng.choice(fields["added_tokens"]).update(changes)


def normalised(fields, rng):
    kind = rng.choice(["Lowercase", "NFKC", "Strip"])
    own = {"strip_left": True, "strip_right": True} if kind == "Strip" else {}
    fields["normalizer"] = {"type": kind, **own}


OF_TOKENIZER = [
    without_token,
    normalised,
    of_token(special=False),
    of_token(lstrip=True),
    of_token(rstrip=True),
    lambda fields, _: fields["pre_tokenizer"].update(add_prefix_space=True),
]


def outcome(folder, template, messages, tokenizer):
    """Returns what became of a conversation.

    `right` if the trained text is what it has to be, `told` if it was set aside,
    refused or counted, else how it is wrong.
    """
    path = folder / "mutated.jinja"
    path.write_text(template)
    try:
        options = chat_options(path, folder / tokenizer, special_text="token")
        documents = read(options, {"messages": messages})
    except GristmillError:
        return "told"
    told = documents.counts
    if not documents.lengths[0]:
        return "told" if told.set_aside else "silent: nothing is left"
    known = tokenizers.Tokenizer.from_file(str(folder / tokenizer))
    (each,) = templates_of(options.chat).values()
    given = [{k: v for k, v in m.items() if v is not None} for m in messages]
    text, ids = each.render(given, None), documents.ids.tolist()
    if known.encode(text, add_special_tokens=False).ids != ids:
        return "silent: other tokens"
    if told.special_texts or told.open_turns:
        return "told"
    owners = collections.defaultdict(set)
    for number, message in enumerate(messages):
        for char in privates(message.get("content") or ""):
            owners[char].add(number)
    (said,) = tokens_of(documents.spans, documents.lengths)
    texts = {True: "", False: ""}
    for what, run in itertools.groupby(range(len(ids)), said.__getitem__):
        text = known.decode([ids[at] for at in run], skip_special_tokens=False)
        texts[what is not None and what.trained] += text + "\n"
    for is_trained, part in texts.items():
        for char in privates(part):
            (number,) = owners[char]
            says = messages[number]["role"] == "assistant"
            if (says and messages[number].get("weight", 1) > 0) != is_trained:
                return f"silent: message {number} trained: {is_trained}"
    words = re.sub("[^a-z]", "", texts[True].replace("sun", ""))
    contents = "".join(str(m.get("content")) for m in messages)
    for name in ("assistant", "user", "system", "INST"):
        if name in words and name not in contents:
            return "silent: a header is trained"
    return "right"


@pytest.mark.parametrize(
    ("first", "count"),
    [
        pytest.param(0, 300, marks=pytest.mark.slow),
        pytest.param(1000, 5000, marks=pytest.mark.soak),
    ],
)
def test_no_mutation_is_silent(tmp_path, first, count):
    found = collections.Counter()
    whole = write_bpe(tmp_path).read_text()
    for seed in range(first, first + count):
        rng = random.Random(seed)
        template, messages = rng.choice(TEMPLATES), some_messages(rng)
        kind = [OF_TEMPLATE, OF_DATA, OF_TOKENIZER][seed % 3]
        mutate, fields = rng.choice(kind), json.loads(whole)
        if kind is OF_TEMPLATE:
            template = mutate(template, rng)
        else:
            mutate(messages if kind is OF_DATA else fields, rng)
        (tmp_path / "mutated.json").write_text(json.dumps(fields), encoding="utf-8")
        what = outcome(tmp_path, template, messages, "mutated.json")
        case = f"seed {seed}: {what}\n{template}\n{messages}"
        assert not what.startswith("silent"), case
        found[what] += 1
    assert min(found["told"], found["right"]) > 40
