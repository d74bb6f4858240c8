"""English-looking text that behaves like C4's, with no download.

A benchmark of compression-bound work is only as good as its input: random bytes do not
compress and a repeated sentence compresses to nothing. Here records have 2.2 KB on
average with a long tail (log-normal), each with C4's five features, and compress like
C4's, alone and in groups: see `REAL_C4_RATIOS`. The same seed gives the same bytes.
"""

import json

import numpy as np

from benchmarks import text_model
from gristmill.dataset import encode_example, encode_frame

FEATURES = ("text", "timestamp", "url", "content-length", "content-type")

# zstd level 3, bytes out per byte in, of 1,200 real C4 records (2,197 bytes on
# average) compressed in groups of so many records.
REAL_C4_RATIOS = {1: 0.525, 4: 0.469, 16: 0.437, 64: 0.419, 256: 0.394}

_NAME = "c4_like"
_LOG_LENGTH_SIGMA = 1.0  # Of the text's length, about as in real C4.
_MEAN_TEXT_BYTES = 2000  # The other features take some 200.
_TEXT_BYTES_LIMIT = 64 << 10
_BATCH_RECORDS = 1024
# In the first 2.4 MB of C4 the words seen grow with the 0.63rd power of all words,
# which gives 1.1 % of new ones over the first 500 MB.
_NEW_WORDS = 0.01
_SYLLABLES = [a + b for a in "bcdfghjklmnpqrstvwxz" for b in "aeiou"]


def generate_rows(*, seed):
    """Yields rows of C4's five columns without end."""
    words = text_model.Lexicon().words
    rng = np.random.default_rng(seed)
    mu = np.log(_MEAN_TEXT_BYTES) - _LOG_LENGTH_SIGMA**2 / 2
    while True:
        text_bytes = np.exp(rng.normal(mu, _LOG_LENGTH_SIGMA, _BATCH_RECORDS))
        text_bytes = np.minimum(text_bytes, _TEXT_BYTES_LIMIT)
        for text, address, moment in zip(
            text_model.write_documents(rng, text_bytes),
            _addresses(rng, words),
            _timestamps(rng),
            strict=True,
        ):
            yield {
                "text": text,
                "timestamp": moment,
                "url": address,
                "content-length": b"%d" % (5 * len(text)),
                "content-type": b"text/plain",
            }


def generate_records(*, seed):
    """Yields the rows as serialized tf.train.Examples, without end."""
    return map(encode_example, generate_rows(seed=seed))


def generate_binary(*, seed):
    """Yields records of 100 KB without end: token ids as int32, frequent ones often."""
    rng = np.random.default_rng(seed)
    while True:
        yield (rng.zipf(1.2, 25_000) % 50_257).astype("<i4").tobytes()


def generate_noise(*, seed):
    """Yields records of 100 KB without end that do not compress, as images do not."""
    rng = np.random.default_rng(seed)
    while True:
        size = int(rng.uniform(50_000, 150_000))
        yield encode_example({"image": rng.bytes(size), "label": size % 1000})


def generate_texts(*, seed):
    """Yields documents without end, each with at least one word that was never there.

    A tokenizer that remembers words would soon have seen a closed vocabulary whole.
    """
    rng = np.random.default_rng([seed, 1])
    for row in generate_rows(seed=seed):
        words = row["text"].split(b" ")
        count = max(1, rng.binomial(len(words), _NEW_WORDS))
        places = rng.integers(0, len(words), count).tolist()
        picks = rng.integers(0, len(_SYLLABLES), (count, 4)).tolist()
        for place, picked in zip(places, picks, strict=True):
            words[place] = "".join([_SYLLABLES[pick] for pick in picked]).encode()
        yield b" ".join(words)


def generate_documents(*, seed):
    """Yields the documents as serialized tf.train.Examples, without end."""
    for text in generate_texts(seed=seed):
        yield encode_example({"text": text})


_KINDS = {
    "text": generate_records,
    "documents": generate_documents,
    "binary": generate_binary,
    "noise": generate_noise,
}


def taken(size_bytes, items):
    """Yields items until they have so many bytes together."""
    for item in items:
        yield item
        size_bytes -= len(item)
        if size_bytes <= 0:
            return


def _addresses(rng, words):
    """Yields one batch of web addresses."""
    for picked in rng.integers(0, 20_000, (_BATCH_RECORDS, 7)).tolist():
        a, b, c, *slug = (words[i].lower() for i in picked)
        domain = (".com", ".com", ".org", ".net", ".co.uk")[picked[0] % 5]
        name = "-".join(slug[: 1 + picked[1] % 4])
        yield f"https://www.{a}{b}{domain}/{c}/{name}/".encode()


def _timestamps(rng):
    """Yields one batch of crawl times, 18 to 26 April 2019."""
    seconds = rng.integers(0, 9 * 86_400, _BATCH_RECORDS)
    for moment in (np.datetime64("2019-04-18T00:00:00") + seconds).tolist():
        yield f"{moment.isoformat()}Z".encode()


def write_tfrecords(directory, *, size_bytes, files, records="text"):
    """Writes TFRecord files, named as TensorFlow Datasets does.

    Args:
        directory: Created where missing.
        size_bytes: Of all files together, less than a record longer.
        files: How many; file i of n has text of its own, the same for every n.
        records: "text", "documents", "binary" or "noise".

    Returns:
        The paths, the number of records in each, and the bytes of all.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths, counts, written = [], [], 0
    for index in range(files):
        path = directory / f"{_NAME}-train.tfrecord-{index:05}-of-{files:05}"
        frames = map(encode_frame, _KINDS[records](seed=index))
        frames = list(taken(size_bytes // files, frames))
        written += path.write_bytes(b"".join(frames))
        paths.append(path)
        counts.append(len(frames))
    return paths, counts, written


def write_tfds_metadata(directory, counts, size_bytes):
    """Describes TFRecord files of text as split "train", for TensorFlow Datasets."""
    split = {
        "name": "train",
        "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
        "shardLengths": [str(count) for count in counts],
        "numBytes": str(size_bytes),
    }
    info = {
        "name": _NAME,
        "version": "1.0.0",
        "fileFormat": "tfrecord",
        "splits": [split],
    }
    package = "tensorflow_datasets.core.features."
    text = {"pythonClassName": package + "text_feature.Text", "text": {}}
    features = {
        "pythonClassName": package + "features_dict.FeaturesDict",
        "featuresDict": {"features": {name: text for name in FEATURES}},
    }
    (directory / "dataset_info.json").write_text(json.dumps(info))
    (directory / "features.json").write_text(json.dumps(features))
