"""Conversations for tests, a tokenizer for them, and their readers."""

import dataclasses
import json
import pathlib
import re

import tokenizers

from gristmill.dataset.packed.message_spans import ROLES
from gristmill.transforms import ChatOptions, PackOptions
from gristmill.transforms.chat.conversation_reader import ConversationReader
from gristmill.transforms.chat.template import with_template
from gristmill.transforms.tokens.load_tokenizer import find_tokenizer
from tests.rows.packed_rows import tokens_of
from tests.rows.tokenizer_files import tokenizer_json

TEMPLATES = pathlib.Path(__file__).with_name("templates")
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
OWN_SPECIAL = ("<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>", "<|eot|>", "<|h|>")


def special_tokens(*texts):
    """Returns the special tokens that templates write, and a few more."""
    found = {token for text in texts for token in SPECIAL.findall(text)}
    return tuple(sorted(found | {*OWN_SPECIAL}))


BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}


def write_bpe(folder, special=OWN_SPECIAL):
    """Writes the tokenizer.json of a byte-pair tokenizer to a folder."""
    path = folder / "tokenizer.json"
    path.write_bytes(tokenizer_json(1_000, special=special, pre_tokenizer=BYTE_LEVEL))
    return path


def chat_options(template, tokenizer, *, length=1 << 20, special_text="text", **chat):
    """Returns options with tokenizer and template found."""
    ends = {
        name: chat.pop(name, end) for name, end in (("bos", "<s>"), ("eos", "</s>"))
    }
    options = PackOptions(
        length=length,
        tokenizer=str(tokenizer),
        special_text=special_text,
        chat=ChatOptions(template=str(template), **chat),
        **ends,
    )
    found = dataclasses.replace(options, found=find_tokenizer(options))
    return with_template(found)


def read(options, *records):
    """Returns the documents of records."""
    lines = [json.dumps(record).encode() for record in records]
    documents = ConversationReader(options).read(lines, "record {}".format)
    tokens_of(documents.spans, documents.lengths)
    return documents


def seen_spans(documents, tokenizer):
    """Returns message, role, whether it is trained on, and text of each span."""
    known = tokenizers.Tokenizer.from_file(str(tokenizer))
    spans, found = documents.spans, []
    starts = documents.lengths.cumsum() - documents.lengths
    begins = starts[spans.documents] + spans.begins
    for begin, length, *said in zip(
        *(column.tolist() for column in (begins, *spans.columns[1:5])), strict=True
    ):
        role, message, trained = said
        ids = documents.ids[begin : begin + length].tolist()
        text = known.decode(ids, skip_special_tokens=False)
        found.append((message, ROLES[role], trained, text))
    return found


def some_text(rng, *, special=()):
    """Returns a text, sometimes empty, with white space around it, or special."""
    text = " ".join(rng.choices(WORDS, k=rng.randrange(0, 12)))
    if special and rng.random() < 0.1:
        text += rng.choice(special) + rng.choice(WORDS)
    if rng.random() < 0.2:
        text = rng.choice(["\n", " ", "\n\n"]) + text + rng.choice(["\n", " ", ""])
    return text


WEATHER = {
    "name": "weather",
    "description": "says é",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


def some_conversation(rng, *, special=()):
    """Returns a conversation: several turns, and sometimes tools and reasoning."""
    messages = []
    if rng.random() < 0.5:
        messages.append({"role": "system", "content": some_text(rng) + " s"})
    has_tools = rng.random() < 0.4
    for _ in range(rng.randrange(1, 4)):
        question = some_text(rng, special=special) + rng.choice([" q", "?"])
        messages.append({"role": "user", "content": question})
        if has_tools and rng.random() < 0.6:
            arguments = {"city": some_text(rng) + "Ü", "days": rng.randrange(9)}
            call = {"name": "weather", "arguments": arguments}
            content = rng.choice(["", "I call."])
            call_id = "".join(rng.choices("abcdefghi", k=9))
            calls = [{"type": "function", "id": call_id, "function": call}]
            calling = {"role": "assistant", "content": content, "tool_calls": calls}
            result = {"role": "tool", "tool_call_id": call_id, "name": "weather"}
            messages += [calling, result | {"content": some_text(rng) + "r"}]
        answer = {"role": "assistant", "content": some_text(rng, special=special)}
        if rng.random() < 0.3:
            answer["reasoning_content"] = some_text(rng) + "so"
        elif rng.random() < 0.2:
            answer["content"] = f"<think>\n{some_text(rng)}x\n</think>\n\nyes"
        messages.append(answer)
    tools = [{"type": "function", "function": WEATHER}]
    return {"messages": messages} | ({"tools": tools} if has_tools else {})
