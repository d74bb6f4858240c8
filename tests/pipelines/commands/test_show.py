"""What is in a dataset, shown to people and to scripts.

Covers: pipelines/results/contents.py, pipelines/results/formatting.py.
"""

from __future__ import annotations

import json
import pathlib

import pytest

from tests.support.records import text_records, write_tfrecords
from tests.support.shell import gristmill, succeeded, write_source


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> pathlib.Path:
    return write_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def dataset(source, tmp_path_factory) -> pathlib.Path:
    output = tmp_path_factory.mktemp("dataset") / "texts"
    succeeded("convert", "*.tfrecord", output, "--num-shards", "5", cwd=source)
    return output


def test_inspect_and_head(dataset, source):
    text = succeeded("inspect", dataset, cwd=source)
    assert "600 in 5 shards" in text
    assert (
        json.loads(succeeded("inspect", dataset, "--json", cwd=source))["records"]
        == 600
    )
    lines = succeeded("head", dataset, "-n", "201", "--json", cwd=source).splitlines()
    assert len(lines) == 201
    last = json.loads(lines[-1])
    assert last["bytes"] == len(text_records(1, seed=1)[0])
    assert "record 0:" in succeeded("head", dataset, "-n", "1", cwd=source)
    done = gristmill("head", dataset, "--split", "test", cwd=source)
    assert done.returncode == 2
    assert "no such split" in done.stderr


def test_head_decodes_examples(tmp_path):
    import tensorflow as tf

    features = {
        "text": tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"Hello there"])),
        "ids": tf.train.Feature(int64_list=tf.train.Int64List(value=[1, -2])),
        "score": tf.train.Feature(float_list=tf.train.FloatList(value=[0.5])),
    }
    example = tf.train.Example(features=tf.train.Features(feature=features))
    write_tfrecords(tmp_path / "in.tfrecord", [example.SerializeToString()])
    succeeded("convert", "in.tfrecord", "out", cwd=tmp_path)
    text = succeeded("head", "out", cwd=tmp_path)
    assert "text: 'Hello there'" in text
    assert "ids: [1, -2]" in text
    assert "score: 0.5" in text
