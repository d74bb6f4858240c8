"""Rows of tokens: documents and conversations."""

import functools
import json
import pathlib
import random

from gristmill import loader
from tests.golden.cases import case
from tests.golden.facts import command, digest, digest_of_array, play
from tests.rows.tokenizer_files import END, tokenizer_json

TEMPLATES = pathlib.Path(__file__).parents[1] / "rows/templates"
WORDS = (
    *("the", "a", "of", "sun", "river", "été", "北京", "🙂", "foo-bar", "17", "3.5"),
    *("x=1;", "{json}", "end.", "\n"),
)
ARRAYS = {
    "inputs": "inputs",
    "targets": "targets",
    "inputs_segmentation": "segments",
    "inputs_position": "positions",
    "targets_segmentation": "trained segments",
    "targets_mask": "trained targets",
    "targets_weights": "weights",
    "inputs_mask": "trained inputs",
    "labels": "labels",
    "targets_position": None,
}


def write_lines(file, values):
    """Writes values as JSON lines."""
    lines = (json.dumps(value, ensure_ascii=False) + "\n" for value in values)
    pathlib.Path(file).write_text("".join(lines), encoding="utf-8")


def write_texts(file, count, seed):
    """Writes documents: one is empty, most are short, some are longer than a row."""
    chance = random.Random(seed)
    lengths = [0, 100, *(int(chance.expovariate(0.1)) for _ in range(count - 2))]
    texts = [" ".join(chance.choices(WORDS, k=length)) for length in lengths]
    write_lines(file, ({"n": 1, "text": text} for text in texts))


def facts(path, **options):
    """Returns what all rows have together, and digests of their arrays."""
    data = loader.open(path)
    arrays = loader.PackedRows.of(data, names=ARRAYS, **options)(list(data))
    digests = {name: digest_of_array(array) for name, array in arrays.items()}
    plain = ("inputs", "targets", "segments", "positions")
    return {
        "rows": len(data),
        "tokens": int((arrays["segments"] > 0).sum()),
        "pieces": int(arrays["segments"].max(axis=1).sum()),
        "trained": int(arrays["trained targets"].sum()),
        "digests": {name: digests.pop(name) for name in plain},
        "trained digest": digest(digests[name].encode() for name in sorted(digests)),
    }


def in_document(path):
    return facts(path, document_positions=True)


JSON = "--tokenizer tokenizer.json --length 64"
PACK = f"pack texts.jsonl rows {JSON}"
SCRIPTS = {
    "best_fit": f"{PACK} --eos {END}\n-> rows rows",
    "concatenated": f"{PACK} --bos 7 --pack concat\n-> rows rows",
    "a_document_in_each_row": f"{PACK} --bos 7 --eos {END} --pack none\n-> rows rows",
    "truncated": f"""
        pack texts.jsonl best-fit {JSON} --truncate --pack best-fit
        -> best-fit: rows best-fit
        pack texts.jsonl concat {JSON} --truncate --pack concat
        -> concat: rows concat""",
    # Most documents are longer than a row.
    "long_documents": f"""
        pack texts.jsonl rows --tokenizer tokenizer.json --eos {END} --length 16
        -> in the piece: rows rows
        -> in the document: in_document rows""",
    "special_tokens_of_the_tokenizer": f"{PACK} --add-special-tokens\n-> rows rows",
    "rows_as_examples": f"{PACK} --rows example\n-> rows: rows rows",
    # Each shard is packed separately.
    "several_shards": f"""
        pack 0.jsonl 1.jsonl 2.jsonl rows {JSON} --eos {END} --match-shards
        -> rows rows""",
}


def scripted(name):
    write_texts("texts.jsonl", 60, 1)
    for number in range(3):
        write_texts(f"{number}.jsonl", 20, number)
    ends = {"special": ("<s>", "</s>"), "enclosed": True}
    own = ends if "of_the_tokenizer" in name else {}
    pathlib.Path("tokenizer.json").write_bytes(tokenizer_json(1000, **own))
    return play(SCRIPTS[name], rows=facts, in_document=in_document)


for _name in SCRIPTS:
    case(lambda name=_name: scripted(name), _name)


def says(role, content, **more):
    """Returns a message."""
    return {"role": role, "content": content, **more}


def calls(name, **arguments):
    """Returns the calls of a tool."""
    called = {"name": name, "arguments": arguments}
    return [{"type": "function", "id": "abcdefghi", "function": called}]


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Says the weather, été and hiver.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
            },
        },
    }
]
TALKS = [
    [says("user", "Hello?"), says("assistant", "Hello, world! 🙂")],
    [
        says("system", "You answer in one word."),
        says("user", "What is 2 + 2?"),
        says("assistant", "4"),
        says("user", "And the capital of France?"),
        says("assistant", "Paris,\nof course."),
    ],
    [says("user", "No one answers.")],
    [says("user", "été " * 30), says("assistant", "北京 " * 20 + "end.")],
    [
        says("user", "Think first."),
        says("assistant", "Done.", reasoning_content="The sun is not the moon."),
        says("user", "Again."),
        says("assistant", "Done twice.", reasoning_content="So it is."),
    ],
    [says("user", "One more?"), says("assistant", "Yes: <b>1</b> {json} 'quoted'")],
]
WITH_TOOLS = [
    says("user", "Is it warm in Köln?"),
    says("assistant", "I ask.", tool_calls=calls("weather", city="Köln")),
    says("tool", "17.5 degrees", tool_call_id="abcdefghi", name="weather"),
    says("assistant", "Yes, 17.5 degrees."),
]


@functools.cache
def chat_tokenizer():
    """Returns a tokenizer.json that has the special tokens of the templates."""
    names = (
        *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|user|>", "<|assistant|>"),
        *("<|system|>", "<|end|>", "<|endoftext|>", "<think>", "</think>"),
        *("<tool_call>", "</tool_call>", "[INST]", "[/INST]", "[TOOL_CALLS]"),
        *("[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
        *("[/TOOL_RESULTS]", "<|start|>", "<|message|>", "<|channel|>", "<|call|>"),
    )
    return tokenizer_json(1000, special=names)


def pack_chat(name, talks, options="", template="chatml"):
    """Packs conversations, and returns the facts of the rows."""
    write_lines(f"{name}.jsonl", talks)
    pathlib.Path("chat.json").write_bytes(chat_tokenizer())
    length = () if "--length" in options else ("--length", 256)
    command(
        *("pack", f"{name}.jsonl", f"{name}-rows", "--chat", "--bos", "<s>"),
        *("--eos", "</s>", "--template", TEMPLATES / f"{template}.jinja"),
        *("--tokenizer", "chat.json", "--date", "2025-01-31", "--max-rejected", 100),
        *(*length, *options.split()),
    )
    return facts(f"{name}-rows")


def messages(*talks):
    """Returns records of messages."""
    return [{"messages": talk} for talk in talks or TALKS]


SPECIAL = [says("user", "What is <|im_end|>?"), says("assistant", "A <s> token.")]
TOOLED = [{"messages": WITH_TOOLS, "tools": TOOLS}, {"messages": TALKS[0]}]
LONG = "--length 1024 "
# Conversations, and by name the options and the template.
CHATS = {
    "chat_by_markers": (
        messages(),
        {name: ("", name) for name in ("chatml", "phi3", "mistral_v3_tekken")},
    ),
    "chat_by_generation_tags": (
        messages(),
        {name: ("", name) for name in ("qwen3_training", "phi3_training")},
    ),
    "chat_with_tools": (
        TOOLED,
        {
            "assistant": (LONG, "qwen3"),
            "without calls": (LONG + "--train-without tools", "qwen3"),
            "and tools": (LONG + "--train assistant,tool", "qwen3"),
            "tags": (LONG, "qwen3_training"),
            "mistral": (LONG, "mistral_v3_tekken"),
        },
    ),
    "chat_trains_on": (
        messages(),
        {
            "last": ("--train last",),
            "all": ("--train all",),
            "user": ("--train user,system",),
            "no end of turn": ("--train-end-of-turn no",),
            "thinking all": ("", "qwen3"),
            "thinking spoken": ("--train-without thinking", "qwen3"),
        },
    ),
    "chat_longer_than_a_row": (
        messages(),
        {a: (f"--length 40 --truncate-turns {a}",) for a in ("yes", "no")},
    ),
    "chat_with_special_tokens_in_contents": (
        messages(SPECIAL, TALKS[0]),
        {how: (f"--special-text {how}",) for how in ("token", "text")},
    ),
}


def chats(talks, given):
    return {
        name: pack_chat(name.replace(" ", "-"), talks, *options)
        for name, options in given.items()
    }


for _name, _given in CHATS.items():
    case(lambda given=_given: chats(*given), _name)
