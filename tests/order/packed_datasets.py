"""Packed datasets in which every token says of which document it is, and which token.

So all that packing keeps of sources can be compared with the tokens themselves.
"""

import random

import numpy as np

from gristmill.dataset import encode_frame
from gristmill.transforms import PackOptions
from tests.support.records import frames_of

STRIDE = 1 << 10
"""Token t of document d is d * STRIDE + t."""


def record(document, tokens):
    """Returns a record that becomes a document of so many tokens."""
    return b"%d %d" % (document, tokens) + b"." * (document % 7)


def documents(count, *, seed, first=0):
    """Returns records of documents, some of them empty and some longer than rows."""
    chance = random.Random(seed)
    lengths = [
        chance.choice((0, 1, chance.randrange(30), chance.randrange(30), 90))
        for _ in range(count)
    ]
    return [record(first + number, length) for number, length in enumerate(lengths)]


def tokens_of(data):
    """Returns the tokens of a record."""
    document, count = map(int, data.rstrip(b".").split())
    return document * STRIDE + np.arange(count, dtype=np.uint32)


def number_of(data):
    """Returns the number of the document that a record becomes."""
    return int(data.split()[0])


def drop_and_multiply(data):
    """A function for `--map`: drops every third record, makes three of every fifth."""
    number = number_of(data)
    if number % 3 == 0:
        return []
    if number % 5 == 0:
        return [record(100_000 + 10 * number + i, 5 + i) for i in range(3)]
    return [data]


MAPPED = f"{__name__}:drop_and_multiply"


def write_frames(path, records):
    """Writes a TFRecord file; returns the file and the place of each document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(frames_of(records))
    sizes = np.cumsum([0, *(len(encode_frame(data)) for data in records)])
    return {
        number_of(data): (str(path), int(at))
        for data, at in zip(records, sizes, strict=False)
    }


def tokens(texts):
    """A tokenizer of such records."""
    return [tokens_of(text.encode()) for text in texts]


tokens.vocabulary_size = 1 << 32  # type: ignore[attr-defined]
tokens.special_ids = {}  # type: ignore[attr-defined]


def packing(length=32, method="best-fit"):
    """Returns how a job packs such records."""
    tokenizer = f"{__name__}:tokens"
    return PackOptions(length=length, method=method, column="", tokenizer=tokenizer)
