"""Toy documents, a tokenizer for them, and the datasets that the runs use."""

import json
import random
import subprocess
import sys

from tests.rows.packed_shards import conversations, supervised_dataset

LENGTH = 64
VOCABULARY = 320
BEGIN, END = "<s>", "</s>"
_WORDS = ("cat", "dog", "bird", "tree", "house", "river", "sees", "likes", "red", "big")
_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}"
    "</s>{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


def documents(seed, count):
    """Yields texts that differ, short and long: words in runs that can be learnt."""
    rng = random.Random(seed)
    for number in range(count):
        words = [f"{seed}.{number}"]
        place = rng.randrange(len(_WORDS))
        for _ in range(rng.choice((4, 8, 15, 30, 60, 120))):
            words.append(_WORDS[place])
            place = (place + rng.choice((1, 1, 1, 5))) % len(_WORDS)
        yield " ".join(words)


def train_tokenizer(folder):
    """Writes tokenizer.json, and what `transformers` reads beside it."""
    from tokenizers import (
        Tokenizer,
        decoders,
        models,
        pre_tokenizers,
        processors,
        trainers,
    )

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents(99, 200), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A {END}", special_tokens=[(BEGIN, 1), (END, 2)]
    )
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": "<pad>",
        "bos_token": BEGIN,
        "eos_token": END,
        "chat_template": _TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def chats():
    """Returns conversations, each of which fits a row."""
    some = conversations(4_000, seed=7, vocabulary=18, most=8)
    return [(ids, said) for ids, said in some if len(ids) <= LENGTH]


def make(folder):
    """Writes the tokenizer, and the datasets that runs name."""
    from gristmill.dataset import Writer, encode_example

    train_tokenizer(folder / "tokenizer")
    for seed, name in enumerate(("one", "two")):
        for split, count in (("train", 500), ("validation", 60)):
            with Writer(
                folder / name, split=split, records_per_shard=count // 4
            ) as writer:
                for text in documents(seed * 2 + (split != "train"), count):
                    writer.write(encode_example({"text": text}))
            files = f"{folder / name}/{name}-{split}.array_record*"
            pack = [sys.executable, "-m", "gristmill", "pack", files]
            pack += [folder / f"packed-{name}", "--length", str(LENGTH)]
            pack += ["--tokenizer", folder / "tokenizer" / "tokenizer.json"]
            subprocess.run([*pack, "--split", split, "--num-shards", "4"], check=True)
    sizes = {"length": LENGTH, "vocabulary_size": VOCABULARY}
    chat = folder / "packed-chat"
    supervised_dataset(chat, [chats()], name="packed-chat", **sizes)
    with Writer(folder / "chat", records_per_shard=25) as writer:
        for number in range(100):
            columns = {"prompt": f"count to {number}", "completion": "one two three"}
            writer.write(encode_example(columns))
