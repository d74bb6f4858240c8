"""The benchmarks' text is like C4, and peers read it."""

from __future__ import annotations

import itertools
import pathlib
import statistics
import time

import pytest
import zstandard

from benchmarks import c4_like
from benchmarks.contestants import Input
from tests.support import tfds_data
from tests.support.records import read_tfrecords
from tests.support.tensorflow_process import with_tensorflow


@pytest.fixture(scope="module")
def records() -> list[bytes]:
    return list(itertools.islice(c4_like.generate_records(seed=7), 2048))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Input:
    directory = tmp_path_factory.mktemp("c4_like")
    written = c4_like.write_dataset(directory, size_bytes=300_000, files=2)
    return Input(kind="main", directory=directory, files=tuple(written))


@with_tensorflow
def parsed_by_tensorflow(records: list[bytes]) -> dict[str, list[bytes]]:
    import tensorflow as tf

    spec = {name: tf.io.FixedLenFeature([], tf.string) for name in c4_like.FEATURES}
    parsed = tf.io.parse_example(records, spec)
    return {name: tensor.numpy().tolist() for name, tensor in parsed.items()}


@pytest.mark.slow
@pytest.mark.parametrize("group", sorted(c4_like.REAL_C4_RATIOS))
def test_compresses_like_c4(records: list[bytes], group: int) -> None:
    compressor = zstandard.ZstdCompressor(level=3)
    compressed = sum(
        len(compressor.compress(b"".join(records[start : start + group])))
        for start in range(0, len(records), group)
    )
    ratio = compressed / sum(map(len, records))
    assert ratio == pytest.approx(c4_like.REAL_C4_RATIOS[group], abs=0.03)


def test_lengths_have_the_mean_and_the_tail_of_c4(records: list[bytes]) -> None:
    lengths = sorted(map(len, records))
    assert statistics.mean(lengths) == pytest.approx(2200, rel=0.1)
    # Real C4: 1,348 bytes, 13,850 bytes and 221 bytes.
    assert statistics.median(lengths) == pytest.approx(1400, rel=0.1)
    assert lengths[len(lengths) * 99 // 100] > 9_000
    assert lengths[0] < 300


def test_same_seed_same_bytes(tmp_path: pathlib.Path) -> None:
    contents = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        written = c4_like.write_dataset(
            tmp_path / name, size_bytes=50_000, files=2, seed=seed
        )
        contents.append([file.path.read_bytes() for file in written])
    assert contents[0] == contents[1]
    assert contents[0][0] != contents[0][1]
    assert contents[0][0] != contents[2][0]


def test_tensorflow_reads_it(source: Input) -> None:
    for file in source.files:
        serialized = read_tfrecords(file.path)
        assert len(serialized) == file.records
        parsed = parsed_by_tensorflow(serialized)
        for text in parsed["text"]:
            first, *others = text.decode().split()
            assert first[0].isupper() or first[0].isdigit() or not others
            assert text.endswith(b".")
        for moment in parsed["timestamp"]:
            time.strptime(moment.decode(), "%Y-%m-%dT%H:%M:%SZ")
        assert all(url.startswith(b"https://") for url in parsed["url"])


def test_tensorflow_datasets_reads_it(source: Input) -> None:
    examples = tfds_data.read_in_order(source.directory, "train")
    assert len(examples) == source.records
    assert set(examples[0]) == set(c4_like.FEATURES)
