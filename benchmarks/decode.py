"""The cost of decoding a batch of `tf.train.Example`, and of `tf.io.parse_example`.

    python -m benchmarks.decode --markdown docs/performance/decode.md

Each case is decoded by `gristmill.loader.ExampleDecoder`, by TensorFlow in a
`tf.function` with one thread, and by the `protobuf` package's own parser with nothing
taken out of it (`Example.FromString`), in turns. What the first two return is compared
before. CPU time is that of the process, all threads counted; the table has the median
of the rounds.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.contest import describe_environment
from gristmill.loader import ExampleDecoder, FixedFeature, RaggedFeature


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """Records, and what to decode of them.

    Attributes:
        name: What they are like.
        records: A batch of them.
        features: As `ExampleDecoder` takes them.
        spec: The same as `tf.io.parse_example` takes it.
    """

    name: str
    records: Sequence[bytes]
    features: Mapping[str, Any]
    spec: Mapping[str, Any]


def cases(*, scale: float, seed: int = 0) -> list[Case]:
    """Makes the cases; `scale` multiplies the number of records in a batch."""
    import tensorflow as tf

    rng = np.random.default_rng(seed)

    def batch(records: int, make: Callable[[int], Mapping[str, Any]]) -> list[bytes]:
        return [_example(make(i)) for i in range(max(2, int(records * scale)))]

    text, label = FixedFeature(bytes), FixedFeature("int32")
    tf_text, tf_label = (tf.io.FixedLenFeature([], t) for t in (tf.string, tf.int64))
    tokens = {"tokens": tf.io.FixedLenFeature([2048], tf.int64)}
    many = [f"feature_{number:02d}" for number in range(40)]
    return [
        Case(
            name="2,048 tokens, most of them frequent ones",
            records=batch(256, lambda _: {"tokens": rng.zipf(1.2, 2048) % 50_257}),
            features={"tokens": FixedFeature("int32", shape=(2048,))},
            spec=tokens,
        ),
        Case(
            name="2,048 tokens, any of 128,000",
            records=batch(256, lambda _: {"tokens": rng.integers(0, 128_000, 2048)}),
            features={"tokens": FixedFeature("int32", shape=(2048,))},
            spec=tokens,
        ),
        Case(
            name="text of 2.2 KB",
            records=batch(1024, lambda _: {"text": [rng.bytes(2200)]}),
            features={"text": text},
            spec={"text": tf_text},
        ),
        Case(
            name="image of 100 KB and label",
            records=batch(64, lambda i: {"image": [rng.bytes(100_000)], "label": [i]}),
            features={"image": text, "label": label},
            spec={"image": tf_text, "label": tf_label},
        ),
        Case(
            name="1,024 floats",
            records=batch(256, lambda _: {"x": rng.random(1024)}),
            features={"x": FixedFeature("float32", shape=(1024,))},
            spec={"x": tf.io.FixedLenFeature([1024], tf.float32)},
        ),
        Case(
            name="5 small features, one of them a list",
            records=batch(
                1024,
                lambda i: {
                    "text": [rng.bytes(300)],
                    "label": [i],
                    "embedding": rng.random(16),
                    "ids": rng.integers(0, 50_000, rng.integers(1, 64)),
                    "url": [b"https://example.org/%d" % i],
                },
            ),
            features={
                "text": text,
                "label": label,
                "embedding": FixedFeature("float32", shape=(16,)),
                "ids": RaggedFeature("int32"),
                "url": text,
            },
            spec={
                "text": tf_text,
                "label": tf_label,
                "embedding": tf.io.FixedLenFeature([16], tf.float32),
                "ids": tf.io.RaggedFeature(tf.int64),
                "url": tf_text,
            },
        ),
        Case(
            name="40 integers of a name each",
            records=batch(1024, lambda i: {name: [i] for name in many}),
            features={name: label for name in many},
            spec={name: tf_label for name in many},
        ),
    ]


def _example(features: Mapping[str, Any]) -> bytes:
    import tensorflow as tf

    def feature(values: Any) -> Any:
        if isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    named = {name: feature(values) for name, values in features.items()}
    example = tf.train.Example(features=tf.train.Features(feature=named))
    return bytes(example.SerializeToString())


def contestants(case: Case) -> dict[str, Callable[[], Any]]:
    """Returns the decoders of a case, by name, after comparing their results."""
    import tensorflow as tf

    decoder = ExampleDecoder(case.features)
    signature = [tf.TensorSpec([None], tf.string)]
    parse = tf.function(
        lambda records: tf.io.parse_example(records, case.spec),
        input_signature=signature,
    )

    def tensorflow() -> dict[str, Any]:
        parsed = parse(tf.constant(case.records))
        return {
            name: (
                value.values if isinstance(value, tf.RaggedTensor) else value
            ).numpy()
            for name, value in parsed.items()
        }

    def protobuf() -> list[Any]:
        return [tf.train.Example.FromString(record) for record in case.records]

    ours, theirs = decoder(case.records), tensorflow()
    for name, values in theirs.items():
        own = ours[name]
        if isinstance(case.spec[name], tf.io.RaggedFeature):
            lengths = parse(tf.constant(case.records))[name].row_lengths().numpy()
            own = own[np.arange(own.shape[1]) < lengths[:, None]]
        np.testing.assert_array_equal(own, values)
    return {
        "gristmill": lambda: decoder(case.records),
        "tensorflow": tensorflow,
        "protobuf": protobuf,
    }


def measure(case: Case, *, rounds: int) -> dict[str, float]:
    """Returns microseconds of CPU per record, the median of some rounds, by name."""
    decoders = contestants(case)
    for decode in decoders.values():
        decode()
    seconds: dict[str, list[float]] = {name: [] for name in decoders}
    for _ in range(rounds):
        for name, decode in decoders.items():
            started = time.process_time()
            decode()
            seconds[name].append(time.process_time() - started)
    return {
        name: statistics.median(each) / len(case.records) * 1e6
        for name, each in seconds.items()
    }


def table(rows: Sequence[tuple[Case, Mapping[str, float]]]) -> str:
    """Returns the measurements as Markdown."""
    lines = [
        "| a record is | records in a batch | gristmill | `tf.io.parse_example` | "
        "parsed by `protobuf` |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for case, costs in rows:
        numbers = (costs[name] for name in ("gristmill", "tensorflow", "protobuf"))
        cells = " | ".join(f"{number:.1f}" for number in numbers)
        lines.append(f"| {case.name} | {len(case.records):,} | {cells} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Measures all cases, prints the table, and writes it to the document."""
    parser = argparse.ArgumentParser(description="What decoding examples costs.")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--quick", action="store_true", help="numbers mean nothing")
    parser.add_argument("--markdown", type=pathlib.Path, help="where the table goes")
    options = parser.parse_args(argv)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    import tensorflow as tf

    if not options.quick:  # In a process of its own: this cannot be changed later.
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    rounds, scale = (1, 0.01) if options.quick else (options.rounds, 1.0)
    rows = [(case, measure(case, rounds=rounds)) for case in cases(scale=scale)]
    text = table(rows)
    print(text)
    if options.markdown is not None:
        options.markdown.write_text(
            "# The cost of decoding\n\n"
            f"Measured on {describe_environment(())['date']}: microseconds of CPU "
            "per record, one core, the median of "
            f"{rounds} rounds; made by\n"
            "`python -m benchmarks.decode --markdown docs/performance/decode.md`.\n\n"
            f"{text}\n"
        )


if __name__ == "__main__":
    main()
