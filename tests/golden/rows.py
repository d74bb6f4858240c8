"""Rows of tokens: documents and conversations."""

import functools
import importlib.util
import itertools
import json
import pathlib
import random
import string

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers

from gristmill import loader
from gristmill.dataset import encode_example, encode_frame
from tests.golden.cases import case
from tests.golden.facts import command, digest, digest_of_array, play
from tests.rows.tokenizer_files import (
    END,
    added_token,
    published,
    sentence_piece_model,
    tokenizer_json,
)

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


def texts(count=60, seed=1):
    """Returns documents: one is empty, most are short, some are longer than a row."""
    chance = random.Random(seed)
    lengths = [0, 100, *(int(chance.expovariate(0.1)) for _ in range(count - 2))]
    return [" ".join(chance.choices(WORDS, k=length)) for length in lengths]


def write_lines(file, values):
    """Writes values as JSON lines."""
    lines = (json.dumps(value, ensure_ascii=False) + "\n" for value in values)
    pathlib.Path(file).write_text("".join(lines), encoding="utf-8")


def write_texts(file, *given, name="text"):
    write_lines(file, ({"n": 1, name: text} for text in texts(*given)))


def shown(values, limit=24):
    """Returns the first values of a row as a short text."""
    return " ".join(map(str, values[:limit].tolist()))


def runs(row):
    """Returns the numbers of a row, each with how often it follows itself."""
    groups = ((value, len([*same])) for value, same in itertools.groupby(row.tolist()))
    return " ".join(f"{value}x{count}" for value, count in groups)


def facts(*paths, **options):
    """Returns the arrays of all rows: digests, and the beginnings of two."""
    data = loader.open([*paths])
    arrays = loader.PackedRows.of(data, names=ARRAYS, **options)(list(data))
    digests = {name: digest_of_array(array) for name, array in arrays.items()}
    plain = ("inputs", "targets", "segments", "positions")
    return {
        "rows": len(data),
        "tokens": int((arrays["segments"] > 0).sum()),
        "pieces": int(arrays["segments"].max(axis=1).sum()),
        "trained": int(arrays["trained targets"].sum()),
        "ids": [shown(row) for row in arrays["inputs"][:2]],
        "segments": [runs(row) for row in arrays["segments"][:2]],
        "digests": {name: digests.pop(name) for name in plain},
        "trained digest": digest(digests[name].encode() for name in sorted(digests)),
    }


def in_document(path):
    return facts(path, document_positions=True)


def of_examples(path):
    """Returns the arrays of rows that other readers can read."""
    names = ("inputs", "inputs_position", "inputs_segmentation")
    decode = loader.ExampleDecoder(dict.fromkeys(names, loader.RaggedFeature("int32")))
    return {
        name: [digest_of_array(ragged.values), shown(ragged.values)]
        for name, ragged in decode(list(loader.open(path))).items()
    }


# The fast path gives the rows of the other, where its package is installed.
FAST = "--fast" if importlib.util.find_spec("gigatoken") else ""
JSON = "--tokenizer tokenizer.json --length 64"
PACK = f"pack texts.jsonl rows {JSON}"
SCRIPTS = {
    "best_fit": f"{PACK} --eos {END}\n-> rows rows",
    "concatenated": f"{PACK} --bos 7 --pack concat\n-> rows rows",
    "a_document_in_each_row": f"{PACK} --bos 7 --eos {END} --pack none\n-> rows rows",
    "fast": f"{PACK} --eos {END} {FAST}\n-> rows rows",
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
    # Each shard is packed separately.
    "several_shards": f"""
        pack 0.jsonl 1.jsonl 2.jsonl rows {JSON} --eos {END} --match-shards
        -> rows rows""",
    "special_tokens_of_the_tokenizer": f"{PACK} --add-special-tokens\n-> rows rows",
    "sentence_piece": """
        pack texts.jsonl bpe --tokenizer bpe.model --bos <s> --eos </s> --length 64
        -> bpe: rows bpe
        pack texts.jsonl uni --tokenizer unigram.model --bos <s> --eos </s> --length 64
        -> unigram: rows uni""",
    # Ids of more than two bytes, of a published file of ranks.
    "ranks": f"""
        pack texts.jsonl rows --tokenizer ranks.tiktoken --eos {END} --length 64
        -> rows rows""",
    "tokenizer_that_is_a_function": """
        pack lines.txt rows --tokenizer tests.golden.rows:letters --eos </s> \
            --input-format text --length 64
        -> plain: rows rows
        pack lines.txt mapped --tokenizer tests.golden.rows:letters --eos </s> \
            --input-format text --length 64 --map tests.golden.rows:twice
        -> mapped: rows mapped""",
    # Documents that are tokens already, in ids of two, three and four bytes.
    "ids_of_a_column": """
        pack 50000.parquet two --column ids --eos 2 --length 64 --vocabulary-size 50000
        -> 50000: rows two
        pack 100000.parquet three --column ids --eos 2 --length 64 \
            --vocabulary-size 100000
        -> 100000: rows three
        pack 2147483648.parquet four --column ids --eos 2 --length 64
        -> 2147483648: rows four""",
    # The same documents give the same rows, from files of any format.
    "formats_of_documents": f"""
        pack bodies.tfrecord rows1 {JSON} --eos {END} --column body
        -> rows rows1
        pack bodies.parquet rows2 {JSON} --eos {END} --column body
        -> rows rows2
        pack bodies.jsonl rows3 {JSON} --eos {END} --column body
        -> rows rows3
        convert bodies.tfrecord converted --num-shards 1
        pack converted rows4 {JSON} --eos {END} --column body
        -> rows rows4""",
    # Rows that other readers can read.
    "rows_as_examples": f"""
        {PACK} --rows example
        -> rows: rows rows
        -> examples: examples rows""",
    # Rows of later documents are joined to those that were there.
    "rows_of_two_jobs": f"""
        pack long0.jsonl rows0 {JSON} --eos {END}
        pack long1.jsonl rows1 {JSON} --eos {END}
        -> rows rows0 rows1""",
}


def letters(documents):
    """A tokenizer that is a function."""
    return [list(text.lower().encode()) for text in documents]


letters.vocabulary_size = 257
letters.special_ids = {"</s>": 256}


def twice(line):
    """A function for `--map`: no document, or two of the line."""
    return [line, line[::-1]] if len(line) > 20 else []


def write_all():
    """Writes the inputs and tokenizers that scripts name."""
    write_texts("texts.jsonl")
    for number in range(3):
        write_texts(f"{number}.jsonl", 20, number)
        write_texts(f"long{number}.jsonl", 30, number)
    for kind in ("bpe", "unigram"):
        pathlib.Path(f"{kind}.model").write_bytes(sentence_piece_model(kind))
    pathlib.Path("ranks.tiktoken").write_bytes(published("cl100k_base"))
    pairs = itertools.pairwise(string.ascii_letters)
    words = [f"{first}{second} " * 9 for first, second in pairs]
    lines = (word[: 5 + n % 20] + "\n" for n, word in enumerate(words))
    pathlib.Path("lines.txt").write_text("".join(lines))
    chance = random.Random(2)
    for limit in (50_000, 100_000, 1 << 31):
        sizes = (chance.randrange(40) for _ in range(50))
        ids = [[chance.randrange(limit) for _ in range(size)] for size in sizes]
        pq.write_table(pa.table({"ids": ids}), f"{limit}.parquet", row_group_size=20)
    examples = (encode_example({"body": text}) for text in texts())
    pathlib.Path("bodies.tfrecord").write_bytes(b"".join(map(encode_frame, examples)))
    pq.write_table(pa.table({"n": range(60), "body": texts()}), "bodies.parquet")
    write_texts("bodies.jsonl", name="body")


def scripted(name):
    write_all()
    own = {"template": ("<s>", "$A", "</s>")} if "of_the_tokenizer" in name else {}
    pathlib.Path("tokenizer.json").write_bytes(tokenizer_json(1000, **own))
    whats = {"rows": facts, "in_document": in_document, "examples": of_examples}
    return play(SCRIPTS[name], **whats)


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
    added = [added_token(1000 + number, name) for number, name in enumerate(names)]
    return tokenizer_json(1000, added_tokens=added)


def pack_chat(name, talks, options="", template="chatml"):
    """Packs conversations, and returns arrays and the texts that are trained on."""
    write_lines(f"{name}.jsonl", talks)
    pathlib.Path("chat.json").write_bytes(chat_tokenizer())
    length = () if "--length" in options else ("--length", 256)
    command(
        *("pack", f"{name}.jsonl", f"{name}-rows", "--chat", "--bos", "<s>"),
        *("--eos", "</s>", "--template", TEMPLATES / f"{template}.jinja"),
        *("--tokenizer", "chat.json", "--date", "2025-01-31", "--max-rejected", 100),
        *(*length, *options.split()),
    )
    data = loader.open(f"{name}-rows")
    arrays = loader.PackedRows.of(data, names=ARRAYS)(list(data))
    reader = tokenizers.Tokenizer.from_str(chat_tokenizer().decode())
    found = []
    for ids, trained in zip(arrays["inputs"], arrays["trained inputs"], strict=True):
        edges = np.flatnonzero(np.diff(np.pad(trained, 1)))
        for begin, end in edges.reshape(-1, 2).tolist():
            text = reader.decode(ids[begin:end].tolist(), skip_special_tokens=False)
            found.append(text if len(text) < 60 else f"{text[:25]}...{text[-25:]}")
    return {"texts": found, **facts(data.path)}


def messages(*talks):
    """Returns records of messages."""
    return [{"messages": talk} for talk in talks or TALKS]


SPECIAL = [says("user", "What is <|im_end|>?"), says("assistant", "A <s> token.")]
WEIGHTS = [0.5, [1, 1, 0.25, 1, 2], 1]
SHARED = [
    {"from": "human", "value": "Hello?"},
    {"from": "gpt", "value": "Hello, world!"},
]
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


@case
def chat_with_weights():
    talks = zip((TALKS[0], TALKS[1], TALKS[5]), WEIGHTS, strict=True)
    return pack_chat("rows", [{"messages": t, "weight": w} for t, w in talks])


@case
def chat_in_other_forms():
    pairs = [{"prompt": "2 + 2 = ", "completion": "4"}]
    return {
        "shared": pack_chat("shared", [{"conversations": SHARED}]),
        "pairs": pack_chat("pairs", pairs),
        "plain": pack_chat("plain", [{"text": text} for text in texts(12)]),
    }
