"""Parquet files through whole conversions, compared with pyarrow and TensorFlow."""

from __future__ import annotations

import pathlib

import pyarrow.parquet as pq
import pytest

from gristmill import loader
from gristmill.dataset.metadata.manifest import open_manifest, read_table
from gristmill.pipelines.convert import convert as run_conversion
from gristmill.pipelines.options.conversion_jobs import conversion_of
from gristmill.pipelines.options.definitions import ConvertOptions
from gristmill.pipelines.verify import verify
from gristmill.transforms.tables import encode_rows, features_of
from tests.support.conversion import (
    contents,
    convert,
    job_of,
    read_output,
)
from tests.support.parquet_files import some_table, write_parquet

ROWS = (900, 1, 2300, 0, 400)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("parquet") / "in"
    for number, rows in enumerate(ROWS):
        table = some_table(rows + 1, seed=number)[:rows]
        path = folder / f"{number}.parquet"
        write_parquet(path, table, row_group_size=500, use_dictionary=number % 2 == 0)
    return folder


@pytest.fixture(scope="module")
def expected(folder) -> list[bytes]:
    records = []
    for path in sorted(folder.iterdir()):
        table = pq.read_table(path)
        for batch in table.combine_chunks().to_batches():
            records += encode_rows(batch, features_of(table.schema))
    return records


PLANS = [
    (("num_shards", 7), 7),
    (("shard_bytes", 20_000), None),
    (("records_per_shard", 333), 11),
    (("match_shards", None), 5),
]


@pytest.mark.parametrize(("plan", "shards"), PLANS)
def test_every_plan_keeps_every_row_in_order(folder, expected, tmp_path, plan, shards):
    convert(job_of(folder, tmp_path / "out", plan=plan))
    assert read_output(tmp_path / "out") == expected
    split = open_manifest(str(tmp_path / "out")).splits["train"]
    table = read_table(str(tmp_path / "out"), split)
    if shards:
        assert len(table.paths) == shards
    if plan[0] == "records_per_shard":
        assert table.columns["records"].tolist() == [333] * 10 + [271]
    if plan[0] == "match_shards":
        assert tuple(table.columns["records"].tolist()) == ROWS
    assert not verify(str(tmp_path / "out")).findings


@pytest.mark.slow
def test_records_are_what_tensorflow_reads_and_features_say(folder, tmp_path):
    import tensorflow as tf

    convert(job_of(folder / "0.parquet", tmp_path / "out"))
    rows = pq.read_table(folder / "0.parquet").to_pylist()
    for record, row in zip(read_output(tmp_path / "out"), rows, strict=True):
        feature = tf.train.Example.FromString(record).features.feature
        assert feature["text"].bytes_list.value == [row["text"].encode()]
        assert feature["number"].int64_list.value == [row["number"]]
        assert ("score" in feature) == (row["score"] is not None)
        assert feature["tags"].bytes_list.value == [tag.encode() for tag in row["tags"]]
    dataset = loader.open(tmp_path / "out")
    decoder = loader.ExampleDecoder.of(dataset)
    batch = decoder(dataset.read([0, 1, 2]))
    assert batch["number"].tolist() == [0, 1, 2]


@pytest.mark.slow
def test_workers_and_order_change_nothing(folder, tmp_path):
    for workers in (1, 2):
        options = ConvertOptions(
            input=(str(folder),),
            output=f"{tmp_path}/{workers}",
            name="data",
            num_shards=5,
        )
        run_conversion(conversion_of(options).jobs, workers=workers)
    assert contents(tmp_path / "1") == contents(tmp_path / "2")
