"""The cost of encoding a `tf.train.Example`, beside TensorFlow's own classes.

    python -m benchmarks.encode --markdown docs/performance/encode.md

Each case is encoded by `gristmill.dataset.encode_example`, as columns of a table by
what converts Parquet files, and by building a `tf.train.Example` and calling
`SerializeToString(deterministic=True)`, in turns. All must return the same bytes. The
table has the median of the rounds.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.contest import describe_environment
from gristmill.dataset import encode_example
from gristmill.transforms.tables import encode_rows, features_of

_RECORDS = 1000  # Of a round.


def cases(seed: int = 0) -> dict[str, Mapping[str, Any]]:
    """Returns features of a record, by what they are like."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 50_000, 2048).astype(np.int32)
    return {
        "text of 3 KB and URL": {
            "text": "text " * int(rng.integers(200, 1000)),
            "url": f"https://example.org/{seed}",
        },
        "image of 100 KB, label and name": {
            "image": rng.bytes(int(rng.integers(50_000, 150_000))),
            "label": 7,
            "name": f"image {seed}",
        },
        "2,048 tokens, an array": {"tokens": tokens},
        "2,048 tokens, a list": {"tokens": tokens.tolist()},
        "768 floats, an array": {"x": rng.random(768, np.float32)},
        "20 integers of a name each": {f"feature {n:02d}": seed * n for n in range(20)},
    }


def by_tensorflow(features: Mapping[str, Any]) -> bytes:
    """Encodes features with TensorFlow's classes, as their documentation shows it."""
    import tensorflow as tf

    def feature(value: Any) -> Any:
        values = value if isinstance(value, list | np.ndarray) else [value]
        if isinstance(values[0], str):
            values = [text.encode() for text in values]
        if isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if isinstance(values[0], float | np.floating):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    named = {name: feature(value) for name, value in features.items()}
    example = tf.train.Example(features=tf.train.Features(feature=named))
    return bytes(example.SerializeToString(deterministic=True))


def measure(records: Sequence[Mapping[str, Any]], *, rounds: int) -> list[float]:
    """Returns microseconds of CPU per record: one by one, as a table, by TensorFlow."""
    batch = pa.RecordBatch.from_pylist(records)
    features = features_of(batch.schema)
    encoders: list[Callable[[], list[bytes]]] = [
        lambda: list(map(encode_example, records)),
        lambda: encode_rows(batch, features),
        lambda: list(map(by_tensorflow, records)),
    ]
    if not encoders[0]() == encoders[1]() == encoders[2]():
        raise RuntimeError("they encode differently")
    seconds: list[list[float]] = [[] for _ in encoders]
    for _ in range(rounds):
        for encode, spent in zip(encoders, seconds, strict=True):
            started = time.process_time()
            encode()
            spent.append(time.process_time() - started)
    return [statistics.median(spent) / len(records) * 1e6 for spent in seconds]


def main(argv: Sequence[str] | None = None) -> None:
    """Measures all cases, prints the table, and writes it to the document."""
    parser = argparse.ArgumentParser(description="What encoding examples costs.")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--quick", action="store_true", help="numbers mean nothing")
    parser.add_argument("--markdown", type=pathlib.Path, help="where the table goes")
    options = parser.parse_args(argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    rounds, records = (1, 3) if options.quick else (options.rounds, _RECORDS)
    lines = [
        "| a record is | `encode_example` | columns of a table | `tf.train.Example` |",
        "| --- | ---: | ---: | ---: |",
    ]
    drawn = [cases(seed) for seed in range(records)]
    for name in drawn[0]:
        figures = measure([each[name] for each in drawn], rounds=rounds)
        lines.append(" | ".join([f"| {name}", *(f"{f:.1f}" for f in figures)]) + " |")
    text = "\n".join(lines)
    print(text)
    if options.markdown is not None:
        options.markdown.write_text(
            "# The cost of encoding\n\n"
            f"Measured on {describe_environment(())['date']}: microseconds of CPU "
            "per record, one core, the median of "
            f"{rounds} rounds of {records}\nrecords; made by "
            "`python -m benchmarks.encode --markdown docs/performance/encode.md`.\n\n"
            f"{text}\n",
            encoding="utf-8",
        )


if __name__ == "__main__":
    main()
