"""Feeds: decoded arrays of examples and of packed rows."""

import itertools
import pathlib
import random

import numpy as np

from gristmill import loader
from gristmill.dataset import encode_example, encode_frame
from tests.golden.cases import case
from tests.golden.facts import command, digest, digest_of_array
from tests.golden.inputs import stored_gzip

FEATURES = {
    "id": loader.FixedFeature("int64"),
    "score": loader.FixedFeature("float32", default=0.5),
    "box": loader.FixedFeature("int32", shape=(2, 2)),
    "text": loader.FixedFeature(bytes),
    "tokens": loader.RaggedFeature("int32"),
}


def example(number):
    """Returns a record of which the bytes tell the number; some lack a feature."""
    chance = random.Random(number)
    score = {"score": number / 8} if number % 3 else {}
    return encode_example(
        {
            "id": number,
            **score,
            "box": [number, -number, 7, number % 5],
            "text": f"text {number} été",
            "tokens": np.array(
                [chance.randrange(1000) for _ in range(number % 11)], np.int64
            ),
        }
    )


def begin():
    """Writes three TFRecord files, the second compressed, and a dataset of them."""
    for number in range(3):
        frames = b"".join(encode_frame(example(40 * number + n)) for n in range(40))
        data = stored_gzip(frames) if number == 1 else frames
        pathlib.Path(f"{number}.tfrecord").write_bytes(data)
    command("convert", "*.tfrecord", "records", "--num-shards", 4)


def digest_of(value):
    """Returns a digest of an array, or of a ragged one."""
    if isinstance(value, loader.Ragged):
        return digest_of_array(value.values) + digest_of_array(value.row_splits)
    return digest_of_array(value)


def shown(value):
    """Returns the first values of an array as a short text, after its type."""
    array = value.values if isinstance(value, loader.Ragged) else np.asarray(value)
    parts = array.ravel()[:12].tolist()
    texts = [part.decode() if isinstance(part, bytes) else str(part) for part in parts]
    return f"{array.dtype}: {' '.join(texts)}"


def facts(datasets, decode, *, steps=12, **options):
    """Returns the arrays of the first batches: their beginnings, and digests."""
    batches = loader.global_batches(datasets, **options)
    with batches.feed(host=(0, 1), decode=decode) as feed:
        found = list(itertools.islice(feed, steps))
    arrays = {
        name: [
            shown(found[0][name]),
            shown(found[-1][name]),
            digest(digest_of(batch[name]).encode() for batch in found),
        ]
        for name in found[0]
    }
    return {"batches": len(found), **arrays}


@case
def decoded_by_threads():
    begin()
    decode = loader.ExampleDecoder(FEATURES)
    return facts(loader.open("records"), decode, batch_size=12, seed=4, steps=25)


@case
def mixture_of_records():
    begin()
    command("convert", "1.tfrecord", "other")
    datasets = {"web": loader.open("records"), "books": loader.open("other")}
    decode, weights = loader.ExampleDecoder(FEATURES), {"web": 2, "books": 1}
    return facts(datasets, decode, batch_size=9, seed=3, weights=weights)


@case
def packed_feed():
    begin()
    options = "--column tokens --length 8 --match-shards --eos 1 --vocabulary-size 1000"
    command("pack", "0.tfrecord", "2.tfrecord", "rows", *options.split())
    rows = loader.open("rows")
    decode = loader.PackedRows.of(rows)
    found = facts(rows, decode, batch_size=4, seed=5, epochs=2, steps=100)
    return found | {"rows": len(rows)}
