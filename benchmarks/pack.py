"""`gristmill pack` beside bare tokenizers and the preprocessing of other projects."""

import functools
import itertools
import json
import multiprocessing
import pathlib
import random
import sys

from benchmarks import c4_like
from benchmarks.contest import (
    Contest,
    Contestant,
    Peer,
    expect,
    gristmill,
    main,
    make,
    said_by,
    split_in,
)
from benchmarks.frames import read_frames

LENGTH = 2048
_FILES = 8
_BATCH = 256
_TRAINING_BYTES = 20_000_000
_VOCABULARY = 32_768
_CASES = ("Hugging Face's tokenizers", "gigatoken", "conversations")
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
    "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class Pack(Contest):
    """Packing.

    Documents of C4-like text, none of which occurs twice, become rows of 2,048
    tokens: whole processes with two workers, start-up included. The bare pools
    encode the same texts and write nothing. `--fast` uses gigatoken, and compares a
    sample with Hugging Face's library. datatrove and Megatron-LM tokenise with the
    latter, or with gigatoken in `preprocess_data_fast.py`, write a stream of
    tokens, and pack nothing. All make the same number of tokens. Conversations are
    packed with one worker beside the text that the template ChatML writes for them.
    gristmill reads every row back.
    """

    name = "pack"
    reference = ("megatron", "bare", "bare_fast", "gristmill_text")
    contestants = {
        "gristmill": Contestant("`gristmill pack`"),
        "bare": Contestant("bare pool", bound=True),
        "gristmill_fast": Contestant("`gristmill pack --fast`"),
        "bare_fast": Contestant("bare pool of gigatoken", bound=True),
        "datatrove": Contestant("datatrove, `DocumentTokenizer`", option="datatrove"),
        "megatron": Contestant("Megatron-LM, `preprocess_data.py`", option="megatron"),
        "megatron_fast": Contestant(
            "Megatron-LM, `preprocess_data_fast.py`", option="megatron"
        ),
        "gristmill_chat": Contestant("`gristmill pack --chat`"),
        "gristmill_text": Contestant("the same text, as documents"),
    }
    options = {
        "bytes": (50_000_000, 200_000, "of text, or of conversations"),
        "datatrove": (None, None, "a Python that has it"),
        "megatron": (None, None, "a Python that has it"),
        "megatron_checkout": (None, None, "a checkout of Megatron-LM"),
    }
    packages = ("gigatoken", "numpy", "tokenizers", "zstandard")
    elsewhere = {"datatrove": "datatrove"}
    peers = (
        Peer(
            "Megatron-LM's `preprocess_data_fast.py`",
            "Megatron-LM",
            "text to tokens, 2 workers; `gristmill pack --fast` packs rows, too",
            "gristmill_fast",
            "megatron_fast",
            _CASES[1],
            True,
        ),
        Peer(
            "Megatron-LM's `preprocess_data.py`",
            "Megatron-LM",
            "the same",
            "gristmill_fast",
            "megatron",
            _CASES[1],
        ),
        Peer(
            "datatrove's `DocumentTokenizer`",
            "datatrove",
            "the same",
            "gristmill_fast",
            "datatrove",
            _CASES[1],
        ),
    )

    def environment(self):
        """Returns the commit of Megatron-LM, too."""
        found, checkout = super().environment(), self.args.megatron_checkout
        if checkout:
            command = ("git", "-C", checkout, "rev-parse", "--short=12", "HEAD")
            found["packages"]["Megatron-LM"] = said_by(*command)
        return found

    def cases(self):
        """Writes documents, conversations and a tokenizer."""
        self._tokenizer = train_tokenizer(self.work, self.args.bytes)
        self._tokens = None
        self._bytes = write_texts(self.work / "in", self.args.bytes)
        self._write_lines()
        yield _CASES[0], ["gristmill", "bare"]
        peers = ("datatrove", "megatron", "megatron_fast")
        yield _CASES[1], ["gristmill_fast", "bare_fast", *peers]
        self._bytes = _write_conversations(self.work, self.args.bytes)
        yield _CASES[2], ["gristmill_chat", "gristmill_text"]

    def _write_lines(self):
        """Writes the documents as JSON lines: in as many files, and in one."""
        (self.work / "lines").mkdir()
        with open(self.work / "all.jsonl", "wb") as every:
            for path in sorted((self.work / "in").iterdir()):
                lines = b"".join(_line({"text": text}) for text in _texts_of(path))
                (self.work / "lines" / f"{path.name}.jsonl").write_bytes(lines)
                every.write(lines)

    def _command(self, key, output):
        name, _, way = key.partition("_")
        inputs = self.work / "in"
        if name == "bare":
            return self.program("bare", way, self._tokenizer, *sorted(inputs.iterdir()))
        if key == "datatrove":
            return [
                self.args.datatrove,
                "-m",
                "benchmarks.peers",
                "pack_datatrove",
                self._tokenizer,
                self.work / "lines",
                output,
            ]
        if name == "megatron":
            how = ["--use-gigatoken"] if way else ["--workers=2"]
            program = "preprocess_data_fast.py" if way else "preprocess_data.py"
            return [
                self.args.megatron,
                f"{self.args.megatron_checkout}/tools/{program}",
                f"--input={self.work}/all.jsonl",
                f"--output-prefix={output}/c4",
                f"--tokenizer-model={self.work}",
                "--tokenizer-type=HuggingFaceTokenizer",
                *how,
            ]
        how = [f"--tokenizer={self._tokenizer}", f"--length={LENGTH}", "--quiet"]
        if way in ("chat", "text"):
            template = self.work / "chatml.jinja"
            how += ["--chat", f"--template={template}"] if way == "chat" else []
            source = self.work / f"{way}.jsonl"
            how += ["--workers=1", "--num-shards=1"]
            return gristmill("pack", source, output, *how)
        how += ["--column=text", "--workers=2", f"--num-shards={_FILES}"]
        fast = ["--fast"] if way else []
        return gristmill("pack", inputs, output, *how, *fast)

    def measure(self, case, key):
        """Packs once."""
        output = self.fresh()
        output.mkdir()
        checkout = self.args.megatron_checkout
        variables = {"PYTHONPATH": checkout} if "megatron" in key else {}
        run = self.run(self._command(key, output), variables=variables)
        tokens = run.pop("tokens", None) or _tokens_in(output)
        if case != _CASES[2]:  # A conversation is cut where its text is not.
            self._tokens = self._tokens or tokens
            expect(tokens, self._tokens, "tokens")
        return {**run, "work": self._bytes / 1e6}


def _tokens_in(output):
    """Returns the tokens of a dataset, or of files of two bytes a token."""
    if (output / "dataset.json").exists():
        return split_in(output)["packed"]["tokens"]
    files = [*output.rglob("*.ds"), *output.rglob("*_document.bin")]
    return sum(path.stat().st_size for path in files) // 2


def _line(record):
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def write_texts(directory, size_bytes):
    """Writes TFRecord files of documents; returns their bytes."""
    *_, written = c4_like.write_tfrecords(
        directory, size_bytes=size_bytes, files=_FILES, records="documents"
    )
    return written


def write_rows(inputs, output, tokenizer):
    """Packs documents to rows, in as many shards as there are files."""
    how = (f"--tokenizer={tokenizer}", f"--length={LENGTH}", "--column=text")
    make("pack", inputs, output, *how, f"--num-shards={_FILES}")


def _batched(items):
    while batch := list(itertools.islice(items, _BATCH)):
        yield batch


def _texts_of(path):
    from gristmill import loader

    decode = loader.ExampleDecoder({"text": loader.FixedFeature(bytes)})
    for records in _batched(read_frames(str(path))):
        yield from (text.decode() for text in decode(records)["text"].tolist())


def _write_conversations(work, size_bytes):
    """Writes conversations, their text, and the template; returns bytes of text."""
    chance, texts = random.Random(0), c4_like.generate_texts(seed=0)
    written, chats, documents = 0, [], []
    while written < size_bytes:
        messages = []
        for _ in range(chance.randint(1, 4)):
            question, answer = next(texts).decode()[:200], next(texts).decode()
            messages += [
                {"role": "user", "content": question},
                {"role": "assistant", "content": answer},
            ]
        rendered = "".join(
            f"<|im_start|>{each['role']}\n{each['content']}<|im_end|>\n"
            for each in messages
        )
        chats.append(_line({"messages": messages}))
        documents.append(_line({"text": rendered}))
        written += len(rendered.encode())
    (work / "chat.jsonl").write_bytes(b"".join(chats))
    (work / "text.jsonl").write_bytes(b"".join(documents))
    (work / "chatml.jinja").write_text(_CHATML)
    return written


def train_tokenizer(folder, size_bytes):
    """Writes a byte-level BPE `tokenizer.json`, trained on text of another seed."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    texts = c4_like.generate_texts(seed=1_000_000)
    taken = c4_like.taken(min(size_bytes, _TRAINING_BYTES), texts)
    tokenizer.train_from_iterator(
        map(bytes.decode, taken),
        trainers.BpeTrainer(
            vocab_size=_VOCABULARY,
            special_tokens=[*_SPECIAL],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    path = folder / "tokenizer.json"
    tokenizer.save(str(path))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": _SPECIAL[0]}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return path


@functools.cache
def _fast(path):
    from gigatoken import Tokenizer

    return Tokenizer(path)


def _encode(job):
    """Encodes a file with one thread and drops the ids; returns how many."""
    path, file, fast = job
    texts = _texts_of(pathlib.Path(file))
    if fast:
        return sum(len(_fast(path).encode(text.encode())) for text in texts)
    from tokenizers import Tokenizer

    encode = Tokenizer.from_file(path).encode_batch_fast
    batches = (encode(batch, add_special_tokens=False) for batch in _batched(texts))
    return sum(len(each) for batch in batches for each in batch)


def bare(fast, tokenizer, *inputs):
    """Encodes files in a pool of two that writes nothing."""
    jobs = [(tokenizer, path, fast) for path in inputs]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        tokens = sum(pool.imap_unordered(_encode, jobs))
        pool.close()
        pool.join()
    return {"tokens": tokens}


if __name__ == "__main__":
    sys.exit(main(Pack))
