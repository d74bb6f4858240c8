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
from tests.golden.facts import command, convert, digest, digest_of_array
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
    file.write_text("".join(lines), encoding="utf-8")
    return file


def write_texts(folder, documents=()):
    """Writes documents as JSON lines."""
    values = ({"text": text} for text in documents or texts())
    return write_lines(folder / "texts.jsonl", values)


def write_tokenizer(folder, **fields):
    """Writes a tokenizer.json."""
    file = folder / "tokenizer.json"
    file.write_bytes(tokenizer_json(1000, **fields))
    return file


def pack(folder, inputs, *options, name="rows"):
    """Packs documents into rows of 64 tokens unless options say otherwise."""
    several = inputs if isinstance(inputs, list) else [inputs]
    length = () if "--length" in options else ("--length", 64)
    output = folder / name.replace(" ", "-")
    command("pack", *several, output, *length, *options, "--workers", 1)
    return loader.open(output)


def shown(values, limit=24):
    """Returns the first values of a row as a short text."""
    return " ".join(map(str, values[:limit].tolist()))


def runs(row):
    """Returns the numbers of a row, each with how often it follows itself."""
    groups = ((value, len([*same])) for value, same in itertools.groupby(row.tolist()))
    return " ".join(f"{value}x{count}" for value, count in groups)


def facts(data, **options):
    """Returns the arrays of all rows: digests, and the beginnings of two."""
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


PLAIN = {
    "best_fit": f"--eos {END}",
    "concatenated": "--bos 7 --pack concat",
    "a_document_in_each_row": f"--bos 7 --eos {END} --pack none",
    # The fast path gives the rows of the other, where its package is installed.
    "fast": f"--eos {END}" + " --fast" * bool(importlib.util.find_spec("gigatoken")),
}


def plain(folder, options, name="rows", **fields):
    """Packs the texts by a tokenizer.json."""
    options = ("--tokenizer", write_tokenizer(folder, **fields), *options.split())
    return pack(folder, write_texts(folder), *options, name=name)


for _name, _options in PLAIN.items():
    case(lambda folder, options=_options: facts(plain(folder, options)), _name)


@case
def truncated(folder):
    return {
        method: facts(plain(folder, f"--truncate --pack {method}", method))
        for method in ("best-fit", "concat")
    }


@case
def long_documents(folder):
    """Most documents are longer than a row."""
    data = plain(folder, f"--eos {END} --length 16")
    return {
        "in the piece": facts(data),
        "in the document": facts(data, document_positions=True),
    }


@case
def several_shards(folder):
    """Each shard is packed separately."""
    tokenizer = write_tokenizer(folder)
    inputs = []
    for number in range(3):
        inputs.append(folder / f"{number}.jsonl")
        write_lines(inputs[-1], ({"text": text} for text in texts(20, number)))
    options = ("--tokenizer", tokenizer, "--eos", END, "--match-shards")
    return facts(pack(folder, inputs, *options))


@case
def special_tokens_of_the_tokenizer(folder):
    template = ("<s>", "$A", "</s>")
    return facts(plain(folder, "--add-special-tokens", template=template))


@case
def sentence_piece(folder):
    inputs, found = write_texts(folder), {}
    for kind in ("bpe", "unigram"):
        model = folder / f"{kind}.model"
        model.write_bytes(sentence_piece_model(kind))
        options = ("--tokenizer", model, "--bos", "<s>", "--eos", "</s>")
        found[kind] = facts(pack(folder, inputs, *options, name=kind))
    return found


@case
def ranks(folder):
    """Ids of more than two bytes, of a published file of ranks."""
    tokenizer = folder / "ranks.tiktoken"
    tokenizer.write_bytes(published("cl100k_base"))
    options = ("--tokenizer", tokenizer, "--eos", END)
    return facts(pack(folder, write_texts(folder), *options))


def letters(documents):
    """A tokenizer that is a function."""
    return [list(text.lower().encode()) for text in documents]


letters.vocabulary_size = 257
letters.special_ids = {"</s>": 256}


def twice(line):
    """A function for `--map`: no document, or two of the line."""
    return [line, line[::-1]] if len(line) > 20 else []


@case
def tokenizer_that_is_a_function(folder):
    words = [
        f"{first}{second} " * 9
        for first, second in itertools.pairwise(string.ascii_letters)
    ]
    file = folder / "lines.txt"
    file.write_text("".join(word[: 5 + n % 20] + "\n" for n, word in enumerate(words)))
    tokenizer = ("--tokenizer", f"{__name__}:letters", "--eos", "</s>")
    options = (*tokenizer, "--input-format", "text")
    mapped = ("--map", f"{__name__}:twice")
    return {
        "plain": facts(pack(folder, file, *options)),
        "mapped": facts(pack(folder, file, *options, *mapped, name="mapped")),
    }


@case
def ids_of_a_column(folder):
    """Documents that are tokens already, in ids of two, three and four bytes."""
    chance = random.Random(2)
    found = {}
    for limit in (50_000, 100_000, 1 << 31):
        documents = [
            [chance.randrange(limit) for _ in range(chance.randrange(40))]
            for _ in range(50)
        ]
        file = folder / f"{limit}.parquet"
        pq.write_table(pa.table({"ids": documents}), file, row_group_size=20)
        size = ("--vocabulary-size", limit) if limit < 1 << 31 else ()
        options = ("--column", "ids", "--eos", 2, *size)
        found[str(limit)] = facts(pack(folder, file, *options, name=str(limit)))
    return found


@case
def formats_of_documents(folder):
    """The same documents give the same rows, from files of any format."""
    tokenizer, documents = write_tokenizer(folder), texts()
    examples = [encode_example({"body": text}) for text in documents]
    frames = folder / "texts.tfrecord"
    frames.write_bytes(b"".join(map(encode_frame, examples)))
    table = folder / "texts.parquet"
    pq.write_table(pa.table({"n": range(60), "body": documents}), table)
    lines = write_lines(folder / "l.jsonl", ({"n": 1, "body": t} for t in documents))
    converted = folder / "converted"
    convert(frames, converted, "--num-shards", 1)
    found = {}
    for name, file in (
        ("tfrecord", frames),
        ("parquet", table),
        ("jsonl", lines),
        ("dataset", converted),
    ):
        options = ("--tokenizer", tokenizer, "--eos", END, "--column", "body")
        found[name] = facts(pack(folder, file, *options, name=f"rows-{name}"))
    assert all(each == found["jsonl"] for each in found.values())
    return found["jsonl"]


@case
def rows_as_examples(folder):
    """Rows that other readers can read."""
    options = ("--tokenizer", write_tokenizer(folder), "--rows", "example")
    data = pack(folder, write_texts(folder), *options)
    decode = loader.ExampleDecoder(
        {
            name: loader.RaggedFeature("int32")
            for name in ("inputs", "inputs_position", "inputs_segmentation")
        }
    )
    arrays = decode(list(data))
    return {
        "rows": facts(data),
        "examples": {
            name: [digest_of_array(ragged.values), shown(ragged.values)]
            for name, ragged in arrays.items()
        },
    }


@case
def rows_of_two_jobs(folder):
    """Rows of later documents are joined to those that were there."""
    tokenizer = write_tokenizer(folder)
    options = ("--tokenizer", tokenizer, "--eos", END)
    parts = []
    for number in range(2):
        file = folder / f"{number}.jsonl"
        write_lines(file, ({"text": text} for text in texts(30, number)))
        parts.append(pack(folder, file, *options, name=f"rows-{number}").path)
    return facts(loader.open(parts))


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


def pack_chat(
    folder,
    talks,
    *options,
    template="chatml",
    name="rows",
):
    """Packs conversations, and returns arrays and the texts that are trained on."""
    inputs = write_lines(folder / f"{name}.jsonl", talks)
    file = folder / "chat.json"
    file.write_bytes(chat_tokenizer())
    length = () if "--length" in options else ("--length", 256)
    data = pack(
        folder,
        inputs,
        *("--chat", "--template", TEMPLATES / f"{template}.jinja", "--bos", "<s>"),
        *("--eos", "</s>", "--tokenizer", file, "--date", "2025-01-31"),
        *("--max-rejected", 100),
        *length,
        *options,
        name=name,
    )
    arrays = loader.PackedRows.of(data, names=ARRAYS)(list(data))
    reader = tokenizers.Tokenizer.from_str(chat_tokenizer().decode())
    found = []
    for ids, trained in zip(arrays["inputs"], arrays["trained inputs"], strict=True):
        edges = np.flatnonzero(np.diff(np.pad(trained, 1)))
        for begin, end in edges.reshape(-1, 2).tolist():
            text = reader.decode(ids[begin:end].tolist(), skip_special_tokens=False)
            found.append(text if len(text) < 60 else f"{text[:25]}...{text[-25:]}")
    return {"texts": found, **facts(data)}


def messages(talks=TALKS):
    """Returns records of messages."""
    return [{"messages": talk} for talk in talks]


def by_templates(folder, *names):
    talks = messages()
    return {n: pack_chat(folder, talks, template=n, name=n) for n in names}


@case
def chat_by_markers(folder):
    """Templates without generation tags."""
    return by_templates(folder, "chatml", "phi3", "mistral_v3_tekken")


@case
def chat_by_generation_tags(folder):
    return by_templates(folder, "qwen3_training", "phi3_training")


@case
def chat_with_tools(folder):
    talks = [{"messages": WITH_TOOLS, "tools": TOOLS}, {"messages": TALKS[0]}]
    found = {}
    for name, template, options in (
        ("assistant", "qwen3", ()),
        ("without calls", "qwen3", ("--train-without", "tools")),
        ("and tools", "qwen3", ("--train", "assistant,tool")),
        ("tags", "qwen3_training", ()),
        ("mistral", "mistral_v3_tekken", ()),
    ):
        long = ("--length", 1024, *options)
        found[name] = pack_chat(folder, talks, *long, template=template, name=name)
    return found


@case
def chat_trains_on(folder):
    return {
        name: pack_chat(
            *(folder, messages(), *options.split()),
            template="qwen3" if name.startswith("thinking") else "chatml",
            name=name,
        )
        for name, options in {
            "last": "--train last",
            "all": "--train all",
            "user": "--train user,system",
            "no end of turn": "--train-end-of-turn no",
            "thinking all": "",
            "thinking spoken": "--train-without thinking",
        }.items()
    }


@case
def chat_longer_than_a_row(folder):
    options = ("--length", 40, "--truncate-turns")
    return {
        answer: pack_chat(folder, messages(), *options, answer, name=answer)
        for answer in ("yes", "no")
    }


@case
def chat_with_weights(folder):
    talks = [
        {"messages": TALKS[0], "weight": 0.5},
        {"messages": TALKS[1], "weight": [1, 1, 0.25, 1, 2]},
        {"messages": TALKS[5], "weight": 1},
    ]
    return pack_chat(folder, talks)


@case
def chat_in_other_forms(folder):
    shared = [
        {
            "conversations": [
                {"from": "human", "value": "Hello?"},
                {"from": "gpt", "value": "Hello, world!"},
            ]
        }
    ]
    pairs = [{"prompt": "2 + 2 = ", "completion": "4"}]
    plain = [{"text": text} for text in texts(12)]
    return {
        "shared": pack_chat(folder, shared, name="shared"),
        "pairs": pack_chat(folder, pairs, name="pairs"),
        "plain": pack_chat(folder, plain, name="plain"),
    }


@case
def chat_with_special_tokens_in_contents(folder):
    talks = messages(
        [
            [says("user", "What is <|im_end|>?"), says("assistant", "A <s> token.")],
            TALKS[0],
        ]
    )
    return {
        how: pack_chat(folder, talks, "--special-text", how, name=how)
        for how in ("token", "text")
    }
