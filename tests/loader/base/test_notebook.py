"""What notebooks show of datasets, batches, feeds and a batch."""

from __future__ import annotations

import html
import re

import numpy as np
import pytest

from gristmill import loader
from gristmill.dataset.metadata.features import FeatureSpec, encode_features
from gristmill.loader.base.notebook import table_html
from tests.support.datasets import convert, describe


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> loader.Dataset:
    path = convert(tmp_path_factory.mktemp("notebook"), [[b"abcd"] * 30, [b"ef"] * 30])
    describe(path, encode_features({"text": FeatureSpec(kind="bytes", dtype="bytes")}))
    return loader.open(path)


def facts(shown: object) -> dict[str, str]:
    """Returns the rows of the table that a notebook shows."""
    rows = re.findall(r"<th[^>]*>(.*?)</th><td[^>]*>(.*?)</td>", shown._repr_html_())
    return {head: html.unescape(text) for head, text in rows}


def test_a_table_escapes_its_texts():
    text = table_html("a < b", [("x & y", "<script>")])
    assert "<caption>a &lt; b</caption>" in text
    assert ">x &amp; y</th>" in text
    assert "&lt;script&gt;</td>" in text


def test_a_dataset(dataset):
    assert facts(dataset) == {
        "name": f"{dataset.path}, split train",
        "records": "60 in 2 shards",
        "mean record": "3 bytes",
        "feature text": "bytes",
    }


def test_batches_and_a_feed(dataset):
    batches = loader.global_batches(dataset, batch_size=10, seed=3, epochs=2)
    assert facts(batches) == {
        "dataset": repr(dataset)[1:-1],
        "batch size": "10 rows",
        "steps": "12",
        "shuffle": "global, seed 3",
    }
    with batches.feed(process_index=1, process_count=2) as feed:
        next(feed)
        shown = facts(feed)
        assert shown["step"] == "1"
        assert shown["rows"] == "host 1 of 2, rows [5, 10)"
        assert shown["workers"] == "0, prefetch 2"
        assert shown["batches"] == repr(batches)[1:-1]


def test_a_mixture_names_its_datasets(dataset):
    batches = loader.global_batches({"a": dataset, "b": dataset}, batch_size=10)
    shown = facts(batches)
    assert shown["a"] == shown["b"] == repr(dataset)[1:-1]
    assert shown["steps"] == "without end"


def test_a_batch(dataset):
    batches = loader.global_batches(dataset, batch_size=6, shuffle="none")
    records = batches.read(0)
    assert repr(loader.describe(records)) == (
        "batch of 1 field\n"
        "  records  6 records, 24 bytes: b'abcd', b'abcd', b'abcd', b'abcd', ..."
    )
    values, splits = np.arange(3, dtype=np.float32), np.array([0, 3])
    tree = {
        "image": np.zeros((2, 3), np.uint8),
        "more": {"ragged": loader.Ragged(values, splits), "empty": np.zeros((0, 2))},
        "name": "x" * 100,
    }
    found = loader.describe(tree)
    assert found.fields == (
        ("image", "uint8 [2, 3]: 0, 0, 0, 0, ..."),
        ("more/ragged/values", "float32 [3]: 0, 1, 2"),
        ("more/ragged/row_splits", "int64 [2]: 0, 3"),
        ("more/empty", "float64 [0, 2]"),
        ("name", f"str: '{'x' * 59}..."),
    )
    assert facts(found)["more/ragged/row_splits"] == "int64 [2]: 0, 3"


def test_arrays_of_jax_are_not_fetched(monkeypatch):
    import jax

    array = jax.numpy.arange(6)
    monkeypatch.setattr(type(array), "__array__", None)
    ((name, text),) = loader.describe([array]).fields
    assert name == "0"
    assert text.startswith("int32 [6], SingleDeviceSharding(")
