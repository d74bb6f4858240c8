"""C4-like English-looking text, written as tf.train.Example TFRecords.

A benchmark of compression-bound work is only as good as its input: random bytes
do not compress and a repeated sentence compresses to nothing. The TFRecords written
here behave like those of the C4 corpus, with no download:

- records of 2.2 KB on average with a long tail (log-normal, the longest are tens
  of times the median), each with C4's five features;
- text that compresses like C4's, alone and in groups: see `REAL_C4_RATIOS`.

Everything follows from the seed and the file's number: the same arguments give the
same bytes.

    python -m benchmarks.c4_like DIR --bytes 1GB --files 8
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import pathlib
import re
import struct
import time
from collections.abc import Iterator, Mapping, Sequence

import google_crc32c
import numpy as np

from benchmarks import text_model

DATASET_NAME = "c4_like"
DATASET_VERSION = "1.0.0"
FEATURES = ("text", "timestamp", "url", "content-length", "content-type")

# zstd level 3, bytes out per byte in, of 1,200 real C4 records (2,197 bytes on
# average) compressed in groups of so many records.
REAL_C4_RATIOS = {1: 0.525, 4: 0.469, 16: 0.437, 64: 0.419, 256: 0.394}

_LOG_LENGTH_SIGMA = 1.0  # Of the text's length, about as in real C4.
_MEAN_OVERHEAD_BYTES = 200  # Of a record beside its text.
_TEXT_BYTES_LIMIT = 64 << 10
_BATCH_RECORDS = 1024


@functools.lru_cache(maxsize=1 << 15)
def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, payload: bytes) -> bytes:
    """Returns a length-delimited protobuf field."""
    return b"%b%b%b" % (_varint(number << 3 | 2), _varint(len(payload)), payload)


def encode_example(features: Mapping[bytes, bytes]) -> bytes:
    """Returns a serialized tf.train.Example with one bytes value per feature.

    Args:
      features: values by name, encoded in this order.
    """
    return _field(1, b"".join([_map_entry(*item) for item in features.items()]))


def _map_entry(name: bytes, value: bytes) -> bytes:
    """Returns one entry of Features.feature: the name and Feature.bytes_list.value."""
    feature = _field(1, _field(1, value))
    return _field(1, _field(1, name) + _field(2, feature))


def generate_records(
    *,
    seed: int,
    mean_record_bytes: int = 2200,
    model: text_model.TextModel | None = None,
) -> Iterator[bytes]:
    """Yields serialized tf.train.Examples without end; see `generate_rows`."""
    rows = generate_rows(seed=seed, mean_record_bytes=mean_record_bytes, model=model)
    return map(encode_example, rows)


def generate_rows(
    *,
    seed: int,
    mean_record_bytes: int = 2200,
    model: text_model.TextModel | None = None,
) -> Iterator[dict[bytes, bytes]]:
    """Yields rows of C4's five columns without end.

    Args:
      seed: the same seed gives the same records.
      mean_record_bytes: mean length of a record.
      model: the shape of the text; `TextModel()` where not given.
    """
    if mean_record_bytes <= 2 * _MEAN_OVERHEAD_BYTES:
        raise ValueError(
            f"mean_record_bytes must exceed {2 * _MEAN_OVERHEAD_BYTES} (the features "
            f"other than the text take {_MEAN_OVERHEAD_BYTES}), got {mean_record_bytes}"
        )
    model = model or text_model.TextModel()
    words = text_model.build_lexicon(model).words
    rng = np.random.Generator(np.random.PCG64(seed))
    mu = np.log(mean_record_bytes - _MEAN_OVERHEAD_BYTES) - _LOG_LENGTH_SIGMA**2 / 2
    while True:
        text_bytes = np.exp(rng.normal(mu, _LOG_LENGTH_SIGMA, _BATCH_RECORDS))
        text_bytes = np.minimum(text_bytes, _TEXT_BYTES_LIMIT)
        for text, address, moment in zip(
            text_model.write_documents(rng, text_bytes, model),
            _addresses(rng, words),
            _timestamps(rng),
            strict=True,
        ):
            yield {
                b"text": text,
                b"timestamp": moment,
                b"url": address,
                b"content-length": b"%d" % (5 * len(text)),
                b"content-type": b"text/plain",
            }


def _addresses(rng: np.random.Generator, words: Sequence[str]) -> Iterator[bytes]:
    """Yields one batch of web addresses."""
    picks = rng.integers(0, 20_000, (_BATCH_RECORDS, 7)).tolist()
    for picked in picks:
        a, b, c, *slug = (words[i].lower() for i in picked)
        domain = (".com", ".com", ".org", ".net", ".co.uk")[picked[0] % 5]
        name = "-".join(slug[: 1 + picked[1] % 4])
        yield f"https://www.{a}{b}{domain}/{c}/{name}/".encode()


def _timestamps(rng: np.random.Generator) -> Iterator[bytes]:
    """Yields one batch of crawl times, 18 to 26 April 2019."""
    for second in rng.integers(0, 9 * 86_400, _BATCH_RECORDS).tolist():
        day, rest = divmod(second, 86_400)
        hour, rest = divmod(rest, 3600)
        minute, rest = divmod(rest, 60)
        yield b"2019-04-%02dT%02d:%02d:%02dZ" % (18 + day, hour, minute, rest)


def _masked_crc(data: bytes) -> int:
    crc: int = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frame_record(record: bytes) -> bytes:
    """Returns a record as TFRecord frame: length, its CRC, record, its CRC."""
    length = struct.pack("<Q", len(record))
    return b"%b%b%b%b" % (
        length,
        struct.pack("<I", _masked_crc(length)),
        record,
        struct.pack("<I", _masked_crc(record)),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WrittenFile:
    """One TFRecord file.

    Attributes:
      path: where it is.
      records: records in it.
      size_bytes: its length, frames included.
    """

    path: pathlib.Path
    records: int
    size_bytes: int


def generate_binary(*, seed: int) -> Iterator[bytes]:
    """Yields records of 100 KB without end: token ids as int32, frequent ones often."""
    rng = np.random.default_rng(seed)
    while True:
        yield (rng.zipf(1.2, 25_000) % 50_257).astype("<i4").tobytes()


def write_file(
    path: pathlib.Path,
    *,
    size_bytes: int,
    seed: int,
    mean_record_bytes: int = 2200,
    binary: bool = False,
) -> WrittenFile:
    """Writes one TFRecord file.

    Args:
      path: the file; replaced where it exists.
      size_bytes: records are added until the file has at least this length.
      seed: of the text.
      mean_record_bytes: mean length of a record.
      binary: records of `generate_binary` instead.

    Returns:
      What was written.
    """
    records = written_bytes = 0
    source = (
        generate_binary(seed=seed)
        if binary
        else generate_records(seed=seed, mean_record_bytes=mean_record_bytes)
    )
    with open(path, "wb", buffering=1 << 20) as file:
        while written_bytes < size_bytes:
            written_bytes += file.write(frame_record(next(source)))
            records += 1
    return WrittenFile(path=path, records=records, size_bytes=written_bytes)


def write_dataset(
    directory: pathlib.Path,
    *,
    size_bytes: int,
    files: int = 1,
    seed: int = 0,
    mean_record_bytes: int = 2200,
    binary: bool = False,
) -> list[WrittenFile]:
    """Writes TFRecord files as a TensorFlow Datasets directory of split "train".

    Args:
      directory: created where missing; files of the same names are replaced.
      size_bytes: of all files together; each is less than a record longer than
        its even part.
      files: how many.
      seed: file i of n has text of its own, the same for every n.
      mean_record_bytes: mean length of a record.
      binary: records of `generate_binary` instead.

    Returns:
      The files in order.
    """
    if files < 1:
        raise ValueError(f"files must be at least 1, got {files}")
    directory.mkdir(parents=True, exist_ok=True)
    written = []
    for index in range(files):
        name = f"{DATASET_NAME}-train.tfrecord-{index:05}-of-{files:05}"
        written.append(
            write_file(
                directory / name,
                size_bytes=size_bytes * (index + 1) // files
                - size_bytes * index // files,
                seed=seed * 1_000_003 + index,
                mean_record_bytes=mean_record_bytes,
                binary=binary,
            )
        )
    _write_tfds_metadata(directory, written)
    return written


def _write_tfds_metadata(
    directory: pathlib.Path, written: Sequence[WrittenFile]
) -> None:
    """Writes dataset_info.json and features.json as TensorFlow Datasets reads them."""
    info = {
        "name": DATASET_NAME,
        "version": DATASET_VERSION,
        "fileFormat": "tfrecord",
        "description": "Invented text that compresses like C4.",
        "splits": [
            {
                "name": "train",
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "shardLengths": [str(file.records) for file in written],
                "numBytes": str(sum(file.size_bytes for file in written)),
            }
        ],
    }
    package = "tensorflow_datasets.core.features."
    text = {"pythonClassName": package + "text_feature.Text", "text": {}}
    features = {
        "pythonClassName": package + "features_dict.FeaturesDict",
        "featuresDict": {"features": {name: text for name in FEATURES}},
    }
    for name, content in (
        ("dataset_info.json", info),
        ("features.json", features),
    ):
        (directory / name).write_text(json.dumps(content, indent=2) + "\n")


_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}


def parse_size(text: str) -> int:
    """Returns a number of bytes from text such as "300MB" or "1.5 GiB".

    Raises:
      ValueError: where the text is no size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    if match is None or match[2].upper() not in _UNITS | {"B": 1}:
        raise ValueError(f'expected a size such as "300MB" or "1GiB", got {text!r}')
    return int(float(match[1]) * (_UNITS | {"B": 1})[match[2].upper()])


def main(argv: Sequence[str] | None = None) -> None:
    """Writes a dataset as the command line says."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.c4_like", description=__doc__.splitlines()[0]
    )
    parser.add_argument("directory", type=pathlib.Path, help="where the files go")
    parser.add_argument(
        "--bytes", type=parse_size, default="100MB", help="of all files (100MB)"
    )
    parser.add_argument("--files", type=int, default=8, help="how many (8)")
    parser.add_argument("--seed", type=int, default=0, help="of the text (0)")
    parser.add_argument(
        "--mean-record-bytes", type=int, default=2200, help="mean length (2200)"
    )
    args = parser.parse_args(argv)
    begin = time.perf_counter()
    written = write_dataset(
        args.directory,
        size_bytes=args.bytes,
        files=args.files,
        seed=args.seed,
        mean_record_bytes=args.mean_record_bytes,
    )
    seconds = time.perf_counter() - begin
    size_bytes = sum(file.size_bytes for file in written)
    records = sum(file.records for file in written)
    print(
        f"{args.directory}: {len(written)} files, {records:,} records, "
        f"{size_bytes:,} bytes, {size_bytes / seconds / 1e6:.0f} MB/s"
    )


if __name__ == "__main__":
    main()
