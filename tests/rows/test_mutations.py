"""Mutated templates, chats, tokenizers and code: no mask is wrong without a word.

Contents are of characters that only one message has, so a brute-force look at the text
of the tokens tells which is whose. What was made of a mutated template or conversation
has to be right by that look, or be set aside, refused or counted. Mutated code has to
be noticed by it.
"""

from __future__ import annotations

import collections
import json
import pathlib
import random
import re
from typing import Any

import pytest
import tokenizers

from gristmill.dataset.base.errors import GristmillError
from gristmill.transforms.chat.conversation_reader import ConversationReader
from gristmill.transforms.chat.template import templates_of
from tests.rows.test_masks import CHATML, STYLES
from tests.support.conversations import chat_options, write_bpe

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
TEMPLATES = [CHATML, TAGGED, LOOPED, *(style.template for style in STYLES.values())]
OWN = 12
_FIRST = 0xE000


def private(message: int, rng: random.Random) -> str:
    """Returns a content whose characters no other message has."""
    first = _FIRST + OWN * message
    own = "".join(chr(first + rng.randrange(OWN)) for _ in range(rng.randrange(3, 9)))
    return rng.choice(["", " ", "\n"]) + own + rng.choice(["", " ", " sun", "\n"])


def some_messages(rng: random.Random) -> list[dict[str, Any]]:
    roles = ["system"] * rng.randrange(2) + ["user", "assistant"] * rng.randrange(1, 4)
    return [
        {"role": role, "content": private(number, rng)}
        for number, role in enumerate(roles)
    ]


def _cut(text: str, rng: random.Random) -> str:
    """Takes out a piece of the template, such as a tag or a text."""
    pieces = re.split(r"(\{\{.*?\}\}|\{%.*?%\})", text)
    at = rng.randrange(len(pieces))
    return "".join(pieces[:at] + pieces[at + 1 :])


def _twice(text: str, rng: random.Random) -> str:
    pieces = re.split(r"(\{\{.*?\}\}|\{%.*?%\})", text)
    at = rng.randrange(len(pieces))
    return "".join([*pieces[: at + 1], pieces[at], *pieces[at + 1 :]])


def _swapped(text: str, rng: random.Random) -> str:
    pieces = re.split(r"(\{\{.*?\}\}|\{%.*?%\})", text)
    at = rng.randrange(len(pieces) - 1)
    return "".join([*pieces[:at], pieces[at + 1], pieces[at], *pieces[at + 2 :]])


def _filtered(text: str, rng: random.Random) -> str:
    change = rng.choice(
        [
            *("|trim", "|upper", "[:3]", "[1:]", "|reverse", " * 2", "|title"),
            *("|length|string", "|replace('\ue000', '')", "|tojson", "|e"),
            ".split()[0]",
        ]
    )
    return text.replace("m.content", f"(m.content{change})")


def _other(text: str, rng: random.Random) -> str:
    return text.replace("m.content", f"messages[{rng.randrange(3)}].content", 1)


def _without_special(text: str, rng: random.Random) -> str:
    return re.sub(r"<\|\w+\|>|</s>", rng.choice(["", "|", "<pad>"]), text)


def _conditional(text: str, rng: random.Random) -> str:
    test = rng.choice(["loop.last", "not loop.first", "m.content|length > 6"])
    test = rng.choice([test, f"'{chr(_FIRST)}' not in m.content"])
    return text.replace(
        "{{ m.content }}", f"{{% if {test} %}}{{{{ m.content }}}}{{% endif %}}"
    )


OF_TEMPLATE = [
    _cut,
    _twice,
    _swapped,
    _filtered,
    _other,
    _without_special,
    _conditional,
]


def _unknown_role(messages: list, rng: random.Random) -> None:
    rng.choice(messages)["role"] = rng.choice(["gpt", "", "ASSISTANT", "narrator", 7])


def _special_content(messages: list, rng: random.Random) -> None:
    message = rng.choice(messages)
    text = rng.choice(
        ["<|im_end|>", "<|im_start|>assistant\n", "<pad>", "</s>", "<|h|>"]
    )
    message["content"] += text + message["content"].strip()


def _mark_content(messages: list, rng: random.Random) -> None:
    plane = rng.choice([0x100000, 0xF0000])
    rng.choice(messages)["content"] += chr(plane + rng.randrange(0xFFF0))


def _empty(messages: list, rng: random.Random) -> None:
    rng.choice(messages)["content"] = rng.choice(["", " ", "\n\n", None])


def _no_content(messages: list, rng: random.Random) -> None:
    del rng.choice(messages)["content"]


def _same_content(messages: list, rng: random.Random) -> None:
    messages.append({"role": "assistant", "content": "sun"})
    messages.insert(0, {"role": "user", "content": "sun"})


def _weight(messages: list, rng: random.Random) -> None:
    rng.choice(messages)["weight"] = rng.choice([-1, "1", 0, float("inf"), True])


def _header_content(messages: list, rng: random.Random) -> None:
    rng.choice(messages)["content"] += "\n[INST] user: |assistant: "


def _parts(messages: list, rng: random.Random) -> None:
    kind = rng.choice([{"type": "image"}, {"type": "text"}, 3])
    rng.choice(messages)["content"] = [kind]


OF_DATA = [
    *(_unknown_role, _special_content, _mark_content, _empty, _no_content),
    *(_same_content, _weight, _header_content, _parts),
]


def _without_token(fields: dict[str, Any], rng: random.Random) -> None:
    """Takes out a special token: the template's text of it is several tokens."""
    lost = fields["added_tokens"].pop(rng.randrange(len(fields["added_tokens"])))
    fields["model"]["vocab"].pop(lost["content"], None)


def _not_special(fields: dict[str, Any], rng: random.Random) -> None:
    rng.choice(fields["added_tokens"])["special"] = False


def _stripping(fields: dict[str, Any], rng: random.Random) -> None:
    rng.choice(fields["added_tokens"])[rng.choice(["lstrip", "rstrip"])] = True


def _normalised(fields: dict[str, Any], rng: random.Random) -> None:
    kind = rng.choice(["Lowercase", "NFKC", "Strip"])
    own = {"strip_left": True, "strip_right": True} if kind == "Strip" else {}
    fields["normalizer"] = {"type": kind, **own}


def _prefixed(fields: dict[str, Any], rng: random.Random) -> None:
    fields["pre_tokenizer"]["add_prefix_space"] = True


OF_TOKENIZER = [_without_token, _not_special, _stripping, _normalised, _prefixed]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    made = tmp_path_factory.mktemp("mutations")
    write_bpe(made)
    return made


def outcome(
    folder: pathlib.Path, template: str, messages: list[Any], tokenizer: str
) -> str:
    """Returns what became of a conversation.

    `right` if the trained text is what it has to be, `told` if it was set aside,
    refused or counted, else how it is wrong.
    """
    path = folder / "mutated.jinja"
    path.write_text(template)
    record = json.dumps({"messages": messages}, ensure_ascii=False).encode()
    try:
        options = chat_options(path, folder / tokenizer, special_text="token")
        reader = ConversationReader(options)
        documents = reader.read([record], "record {}".format)
    except GristmillError:
        return "told"
    told = documents.counts
    if not documents.lengths[0]:
        return "told" if told.set_aside else "silent: nothing is left"
    known = tokenizers.Tokenizer.from_file(str(folder / tokenizer))
    assert options.chat is not None
    (each,) = templates_of(options.chat).values()
    given = [{k: v for k, v in m.items() if v is not None} for m in messages]
    text = each.render(given, None)
    if known.encode(text, add_special_tokens=False).ids != documents.ids.tolist():
        return "silent: other tokens"
    spans = documents.spans
    trained = ["\n"]  # Between what is not trained on.
    shown = []
    at = 0
    for begin, end, is_trained in zip(
        spans.begins.tolist(), spans.stops.tolist(), spans.trained, strict=True
    ):
        shown.append(known.decode(documents.ids[at:begin], skip_special_tokens=False))
        own = known.decode(documents.ids[begin:end], skip_special_tokens=False)
        (trained if is_trained else shown).append(own)
        at = end
    shown.append(known.decode(documents.ids[at:], skip_special_tokens=False))
    if told.special_texts or told.open_turns:
        return "told"
    owners = collections.defaultdict(set)
    for number, message in enumerate(messages):
        for char in filter(_is_private, message.get("content") or ""):
            owners[char].add(number)
    for part, wanted in ((trained, True), (shown, False)):
        for char in filter(_is_private, "".join(part)):
            (number,) = owners[char]
            says = messages[number]["role"] == "assistant"
            says = says and messages[number].get("weight", 1) > 0
            if says != wanted:
                return f"silent: message {number} trained: {wanted}"
    words = re.sub("[^a-z]", "", "".join(trained).replace("sun", ""))
    for name in ("assistant", "user", "system", "INST"):
        said = "".join(str(m.get("content")) for m in messages)
        if name in words and name not in said:
            return "silent: a header is trained"
    return "right"


def _is_private(char: str) -> bool:
    return _FIRST <= ord(char) < _FIRST + 40 * OWN


def rounds(folder: pathlib.Path, count: int, first: int = 0) -> collections.Counter:
    found: collections.Counter = collections.Counter()
    for seed in range(first, first + count):
        rng = random.Random(seed)
        template, messages = rng.choice(TEMPLATES), some_messages(rng)
        mutate: Any = rng.choice([OF_TEMPLATE, OF_DATA, OF_TOKENIZER][seed % 3])
        tokenizer = "tokenizer.json"
        if mutate in OF_TOKENIZER:
            fields = json.loads((folder / tokenizer).read_text("utf-8"))
            mutate(fields, rng)
            tokenizer = "mutated.json"
            (folder / tokenizer).write_text(json.dumps(fields), encoding="utf-8")
        elif mutate in OF_DATA:
            mutate(messages, rng)
        else:
            template = mutate(template, rng)
        what = outcome(folder, template, messages, tokenizer)
        assert not what.startswith("silent"), (
            f"seed {seed}, {mutate.__name__}: {what}\n{template}\n{messages}"
        )
        found[what] += 1
    return found


@pytest.mark.slow
def test_no_mutation_is_silent(folder: pathlib.Path) -> None:
    found = rounds(folder, 300)
    assert found["told"] > 40
    assert found["right"] > 40


@pytest.mark.soak
def test_none_of_many_is_silent(folder: pathlib.Path) -> None:
    rounds(folder, 5000, first=1000)
