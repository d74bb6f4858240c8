"""Documents for packing: C4-like text in which no document occurs twice.

Text of `benchmarks.c4_like` has a closed vocabulary, which a tokenizer that remembers
words soon has seen whole. Here one word in a hundred is new, as in half a gigabyte of
C4 (in its first 2.4 MB the words seen grow with the 0.63rd power of all words, which
gives 1.1 % over the first 500 MB). With real texts, documents are put together from
their sentences.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import pathlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from benchmarks import c4_like, peers

NEW_WORDS = 0.01
"""Share of the words that are invented on the spot."""

_VOCABULARY = 32_768
_TRAINING_BYTES = 20_000_000
_SYLLABLES = [a + b for a in "bcdfghjklmnpqrstvwxz" for b in ("a", "e", "i", "o", "u")]
_SENTENCE_END = re.compile(rb"(?<=[.!?]\s)")


def _line(text: bytes) -> bytes:
    return json.dumps({"text": text.decode()}, ensure_ascii=False).encode() + b"\n"


_ENCODERS: Mapping[str, Callable[[bytes], bytes]] = {
    "tfrecord": lambda text: c4_like.frame_record(
        c4_like.encode_example({b"text": text})
    ),
    "jsonl": _line,
    "text": c4_like.frame_record,
}
FORMS = tuple(_ENCODERS)


def generate_texts(seed: int, real: Sequence[bytes] = ()) -> Iterator[bytes]:
    """Yields documents without end, each with at least one new word.

    Args:
        seed: The same seed gives the same documents.
        real: Texts whose sentences are used; none for invented text.
    """
    rng = np.random.default_rng([seed, 1])
    source = _splice(rng, real) if real else _invent(seed)
    for text in source:
        words = text.split(b" ")
        count = max(1, rng.binomial(len(words), NEW_WORDS))
        places = rng.integers(0, len(words), count).tolist()
        picks = rng.integers(0, len(_SYLLABLES), (count, 4)).tolist()
        for place, picked in zip(places, picks, strict=True):
            words[place] = "".join([_SYLLABLES[pick] for pick in picked]).encode()
        yield b" ".join(words)


def _invent(seed: int) -> Iterator[bytes]:
    for row in c4_like.generate_rows(seed=seed):
        yield row[b"text"]


def _splice(rng: np.random.Generator, real: Sequence[bytes]) -> Iterator[bytes]:
    """Yields documents as long as real ones, of some sentences from one after another.

    A run of sentences from one document is three sentences long on average.
    """
    sentences = [_SENTENCE_END.split(text) for text in real]
    lengths = [len(text) for text in real]
    while True:
        wanted_bytes = lengths[int(rng.integers(len(lengths)))]
        parts: list[bytes] = []
        size_bytes = 0
        while size_bytes < wanted_bytes:
            chosen = sentences[int(rng.integers(len(sentences)))]
            start = int(rng.integers(len(chosen)))
            for sentence in chosen[start : start + int(rng.geometric(1 / 3))]:
                parts.append(sentence)
                size_bytes += len(sentence)
        yield b"".join(parts)


def read_real(directory: pathlib.Path) -> list[bytes]:
    """Returns the texts of a folder of TFRecord files, such as C4 from TFDS."""
    from gristmill import loader

    decode = loader.ExampleDecoder({"text": loader.FixedFeature(bytes)})
    found: list[bytes] = []
    for path in sorted(directory.glob("*tfrecord*")):
        records = list(peers.read_frames_unchecked(str(path)))
        found += decode(records)["text"].tolist()
    if not found:
        raise FileNotFoundError(f"no TFRecord files with texts in {directory}")
    return found


@functools.lru_cache(maxsize=1)
def _real_texts(directory: pathlib.Path | None) -> list[bytes]:
    return [] if directory is None else read_real(directory)


def _write_file(
    job: tuple[pathlib.Path, int, int, int, Sequence[str], pathlib.Path | None],
) -> tuple[int, int]:
    """Writes one file of each form; returns its documents and bytes of text."""
    directory, number, files, size_bytes, forms, real = job
    documents = written_bytes = 0
    with contextlib.ExitStack() as stack:
        outputs = []
        for form in forms:
            path = directory / form / f"c4-{number:05}-of-{files:05}.{form}"
            output = stack.enter_context(open(path, "wb", buffering=1 << 20))
            outputs.append((_ENCODERS[form], output))
        for text in generate_texts(number, _real_texts(real)):
            for encode, output in outputs:
                output.write(encode(text))
            documents += 1
            written_bytes += len(text)
            if written_bytes >= size_bytes:
                break
    return documents, written_bytes


def write_inputs(
    directory: pathlib.Path,
    size_bytes: int,
    *,
    files: int = 8,
    forms: Sequence[str] = FORMS,
    real: pathlib.Path | None = None,
) -> tuple[int, int]:
    """Writes the same documents in each form, with a process for each core.

    Args:
        directory: Gets a folder for each form.
        size_bytes: Size of text.
        files: How many of each form.
        forms: `tfrecord`: Examples with a feature `text`; `jsonl`: objects with a
            field `text`; `text`: frames of a TFRecord file that are the text.
        real: A folder of TFRecord files whose texts are used.

    Returns:
        Documents, and bytes of text.
    """
    for form in forms:
        (directory / form).mkdir(parents=True)
    share = size_bytes // files
    jobs = [(directory, each, files, share, forms, real) for each in range(files)]
    if files == 1:
        return _write_file(jobs[0])
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        written = pool.map(_write_file, jobs, chunksize=1)
    return sum(each[0] for each in written), sum(each[1] for each in written)


def train_tokenizer(
    path: pathlib.Path,
    *,
    real: pathlib.Path | None = None,
    vocabulary: int = _VOCABULARY,
    size_bytes: int = _TRAINING_BYTES,
) -> None:
    """Writes a byte-level BPE `tokenizer.json`, trained on such text of another seed.

    Args:
        path: The file; its folder gets the configuration that `transformers` reads.
        real: A folder of TFRecord files whose texts are used.
        vocabulary: Ids.
        size_bytes: Size of text to train on.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    def texts() -> Iterator[str]:
        left = size_bytes
        for text in generate_texts(1_000_000, _real_texts(real)):
            yield text.decode()
            left -= len(text)
            if left <= 0:
                return

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts(),
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))
    (path.parent / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}\n'
    )
