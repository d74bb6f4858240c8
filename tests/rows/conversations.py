"""Conversations for tests, a tokenizer for them, and their readers."""

from __future__ import annotations

import dataclasses
import functools
import json
import pathlib
import random
import re
from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from gristmill.transforms.chat.conversation_reader import ConversationReader
from gristmill.transforms.chat.template import with_template
from gristmill.transforms.jobs.pack_options import (
    ChatOptions,
    PackOptions,
    SpecialText,
)
from gristmill.transforms.tokens.documents import Documents
from gristmill.transforms.tokens.load_tokenizer import find_tokenizer
from tests.rows.conversation_rows import check_spans

TEMPLATES = pathlib.Path(__file__).parents[1] / "rows/templates"

WORDS = [
    "the",
    "a",
    "sun",
    "moon",
    "river",
    "answer",
    "is",
    "was",
    "not",
    "hello",
    "world",
    "17",
    "3.5",
    "x=1;",
    "été",
    "北京",
    "🙂",
    "foo-bar",
    "<b>",
    "{json}",
    "\\n",
    "'quoted'",
    "end.",
]

# What templates of models write as special tokens.
_BAR = "\uff5c"
SPECIAL = re.compile(
    r"<\|[\w/ \u2581\-]+\|>|"
    rf"<{_BAR}[^{_BAR}\n]{{1,30}}{_BAR}>|"
    r"\[/?[A-Z_]{3,20}\]|</?s>|<(?:start|end)_of_\w+>"
)
OWN_SPECIAL = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "<|eot|>", "<|h|>"]


def special_tokens(*texts: str) -> list[str]:
    """Returns the special tokens that templates write, and a few more."""
    found = {token for text in texts for token in SPECIAL.findall(text)}
    return sorted(found | {*OWN_SPECIAL})


@functools.cache
def bpe_json(special: tuple[str, ...] = tuple(OWN_SPECIAL), size: int = 700) -> str:
    """Returns the tokenizer.json of a byte-pair tokenizer trained on some words."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size + len(special),
        special_tokens=list(special),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    rng = random.Random(5)
    lines = (" ".join(rng.choices(WORDS, k=20)) + "\n\n" for _ in range(200))
    tokenizer.train_from_iterator(
        [*lines, "assistant\nuser\nsystem\n<think>\n</think>\n\n<tool_call>\n" * 50],
        trainer,
    )
    return tokenizer.to_str()


def write_bpe(folder: pathlib.Path, special: tuple[str, ...] = ()) -> pathlib.Path:
    """Writes the tokenizer.json of `bpe_json` to a folder."""
    path = folder / "tokenizer.json"
    path.write_text(bpe_json(special or tuple(OWN_SPECIAL)), encoding="utf-8")
    return path


def chat_options(
    template: pathlib.Path,
    tokenizer: pathlib.Path,
    *,
    length: int = 1 << 20,
    column: str = "text",
    bos: str = "<s>",
    eos: str = "</s>",
    special_text: SpecialText = "text",
    **chat: Any,
) -> PackOptions:
    """Returns options with tokenizer and template found."""
    options = PackOptions(
        length=length,
        tokenizer=str(tokenizer),
        column=column,
        bos=bos,
        eos=eos,
        special_text=special_text,
        chat=ChatOptions(template=str(template), **chat),
    )
    found = dataclasses.replace(options, found=find_tokenizer(options))
    return with_template(found)


def read(options: PackOptions, *records: Mapping[str, Any]) -> Documents:
    """Returns the documents of records."""
    lines = [json.dumps(record, ensure_ascii=False).encode() for record in records]
    documents = ConversationReader(options).read(lines, "record {}".format)
    check_spans(documents.spans, documents.lengths)
    return documents


def seen_spans(documents: Documents, tokenizer: pathlib.Path) -> list[tuple[Any, ...]]:
    """Returns message, role, whether it is trained on, and text of each span."""
    known = tokenizers.Tokenizer.from_file(str(tokenizer))
    spans = documents.spans
    assert spans is not None
    starts = (documents.lengths.cumsum() - documents.lengths)[spans.documents]
    found = []
    for start, begin, length, role, message, trained in zip(
        starts.tolist(),
        *(column.tolist() for column in spans[1:6]),
        strict=True,
    ):
        ids = documents.ids[start + begin : start + begin + length].tolist()
        text = known.decode(ids, skip_special_tokens=False)
        found.append((message, role, trained, text))
    return found


def some_text(rng: random.Random, *, special: list[str] | None = None) -> str:
    """Returns a text, sometimes empty, with white space around it, or special."""
    text = " ".join(rng.choices(WORDS, k=rng.randrange(0, 12)))
    if special and rng.random() < 0.1:
        text += rng.choice(special) + rng.choice(WORDS)
    if rng.random() < 0.2:
        text = rng.choice(["\n", " ", "\n\n"]) + text + rng.choice(["\n", " ", ""])
    return text


def some_conversation(
    rng: random.Random, *, special: list[str] | None = None
) -> dict[str, Any]:
    """Returns a conversation: several turns, and sometimes tools and reasoning."""
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": some_text(rng) + " s"})
    tools = None
    if rng.random() < 0.4:
        parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
        function = {
            "name": "weather",
            "description": "says é",
            "parameters": parameters,
        }
        tools = [{"type": "function", "function": function}]
    for _ in range(rng.randrange(1, 4)):
        question = some_text(rng, special=special) + rng.choice([" q", "?"])
        messages.append({"role": "user", "content": question})
        if tools is not None and rng.random() < 0.6:
            arguments = {"city": some_text(rng) + "Ü", "days": rng.randrange(9)}
            call = {"name": "weather", "arguments": arguments}
            calling = {"role": "assistant", "content": rng.choice(["", "I call."])}
            call_id = "".join(rng.choices("abcdefghi", k=9))
            calling["tool_calls"] = [
                {"type": "function", "id": call_id, "function": call}
            ]
            result = {"role": "tool", "tool_call_id": call_id, "name": "weather"}
            messages += [calling, result | {"content": some_text(rng) + "r"}]
        answer = {"role": "assistant", "content": some_text(rng, special=special)}
        if rng.random() < 0.3:
            answer["reasoning_content"] = some_text(rng) + "so"
        elif rng.random() < 0.2:
            answer["content"] = f"<think>\n{some_text(rng)}x\n</think>\n\nyes"
        messages.append(answer)
    return {"messages": messages} | ({"tools": tools} if tools else {})
