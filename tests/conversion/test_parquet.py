"""Parquet files through whole conversions, compared with pyarrow and TensorFlow."""

from __future__ import annotations

import pathlib
import shutil
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill import loader
from gristmill.dataset.base.errors import (
    CorruptInputError,
    UserFunctionError,
)
from gristmill.dataset.metadata.manifest import open_manifest, read_table
from gristmill.loader.provenance.locate import locate
from gristmill.pipelines.verify import verify
from gristmill.transforms.sources.formats import RecordOptions
from gristmill.transforms.tables.example_rows import encode_rows
from gristmill.transforms.tables.table_features import features_of
from tests.support.conversion import convert, job_of, read_output, skipped_in
from tests.support.examples import Example
from tests.support.gcs_server import GcsServer
from tests.support.parquet_files import flip, page_offset, some_table, write_parquet
from tests.support.ways_to_convert import (
    check_beam,
    check_kills,
    check_workers,
    shard_bytes,
)

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
    if plan[0] == "match_shards":
        assert tuple(table.columns["records"].tolist()) == ROWS
    assert not verify(str(tmp_path / "out")).findings


@pytest.mark.slow
def test_records_are_what_tensorflow_reads_and_features_say(folder, tmp_path):
    convert(job_of(folder / "0.parquet", tmp_path / "out"))
    rows = pq.read_table(folder / "0.parquet").to_pylist()
    for record, row in zip(read_output(tmp_path / "out"), rows, strict=True):
        feature = Example.FromString(record).features.feature
        assert feature["text"].bytes_list.value == [row["text"].encode()]
        assert feature["number"].int64_list.value == [row["number"]]
        assert ("score" in feature) == (row["score"] is not None)
        assert feature["tags"].bytes_list.value == [tag.encode() for tag in row["tags"]]
    dataset = loader.open(tmp_path / "out")
    decoder = loader.ExampleDecoder.of(dataset)
    batch = decoder(dataset.read([0, 1, 2]))
    assert batch["number"].tolist() == [0, 1, 2]


@pytest.mark.slow
def test_workers_change_nothing(folder, tmp_path):
    check_workers(folder, tmp_path, num_shards=5)


class TestDamage:
    @pytest.fixture
    def damaged(self, folder, tmp_path) -> pathlib.Path:
        """File 2 cannot be read from row 1,000 to 1,500, file 4 not at all."""
        copy = tmp_path / "in"
        shutil.copytree(folder, copy)
        flip(copy / "2.parquet", page_offset(copy / "2.parquet", 2, 1))
        (copy / "4.parquet").write_bytes((copy / "4.parquet").read_bytes()[:-1])
        return copy

    @pytest.mark.parametrize(("plan", "shards"), PLANS)
    def test_it_is_left_out_and_all_else_kept(
        self, damaged, expected, tmp_path, plan, shards
    ):
        options = {"on_corrupt": "skip", "plan": plan}
        convert(job_of(damaged, tmp_path / "out", **options))
        lost = [*range(901 + 1000, 901 + 1500), *range(3201, 3601)]
        kept = [record for n, record in enumerate(expected) if n not in set(lost)]
        assert read_output(tmp_path / "out") == kept
        group, file = skipped_in(tmp_path / "out")
        assert (group["begin_row"], group["end_row"]) == (1000, 1500)
        assert group["reason"] == "row group 2"
        size = (damaged / "4.parquet").stat().st_size
        assert (file["begin_bytes"], file["end_bytes"]) == (0, size)
        assert file["reason"] == "footer"
        assert not verify(str(tmp_path / "out")).findings

    def test_it_is_an_error_that_names_the_row(self, damaged, tmp_path):
        (damaged / "4.parquet").unlink()
        with pytest.raises(CorruptInputError) as caught:
            convert(job_of(damaged, tmp_path / "out"))
        assert caught.value.where == f"{damaged}/2.parquet, row 1,000"
        assert not (tmp_path / "out" / "dataset.json").exists()


def named(record: bytes) -> bytes:
    """A function for --map that fails at one record."""
    if b"fail" in record:
        raise ValueError("not this one")
    return record[:1]


def test_a_function_gets_records_and_its_error_names_the_row(tmp_path):
    table = pa.table({"text": [*map(str, range(3000)), "fail", "x"]})
    path = write_parquet(tmp_path / "a.parquet", table[:3000], row_group_size=999)
    options = {
        "map": f"{__name__}:named",
        "records": RecordOptions(record="column:text"),
    }
    convert(job_of(path, tmp_path / "out", **options))
    assert read_output(tmp_path / "out") == [str(n).encode()[:1] for n in range(3000)]
    assert open_manifest(str(tmp_path / "out")).splits["train"].features is None
    write_parquet(path, table, row_group_size=999)
    with pytest.raises(UserFunctionError) as caught:
        convert(job_of(path, tmp_path / "other", **options))
    assert f"{path}, row 3,000" in str(caught.value)


@pytest.mark.slow
def test_a_killed_conversion_is_finished_by_the_next(folder, expected, tmp_path):
    check_kills(folder, tmp_path, expected)


@pytest.mark.slow
def test_a_bucket_gives_the_same_bytes(folder, tmp_path, monkeypatch):
    convert(job_of(folder, tmp_path / "local", plan=("num_shards", 4)))
    with GcsServer("in") as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        for path in folder.iterdir():
            server.objects.put("in", f"rows/{path.name}", path.read_bytes())
        # Damaged on its way: a footer, and pages.
        server.fail("flip", "media", name="2.parquet", skip=2, times=2)
        convert(job_of("gs://in/rows/*", tmp_path / "gs", plan=("num_shards", 4)))
        assert not any(fault.times for fault in server.faults)
    assert shard_bytes(tmp_path / "gs") == shard_bytes(tmp_path / "local")


@pytest.mark.slow
def test_beam_gives_the_same_bytes(folder, tmp_path):
    check_beam(folder, tmp_path, num_shards=5)


VALUES = {
    "ints": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.uint8(), st.integers(0, 255)),
    "floats": (pa.float32(), st.floats(width=32)),
    "texts": (pa.string(), st.text(max_size=8)),
    "bytes": (pa.binary(), st.binary(max_size=8)),
    "flags": (pa.bool_(), st.booleans()),
    "lists": (pa.list_(pa.int32()), st.lists(st.integers(-9, 9), max_size=3)),
    "words": (
        pa.dictionary(pa.int32(), pa.string()),
        st.sampled_from(["a", "bb", "ccc"]),
    ),
}


@st.composite
def tables(draw):
    columns = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4))
    rows = draw(st.integers(0, 30))
    arrays = {}
    for number, name in enumerate(columns):
        kind, values = VALUES[name]
        cells = draw(
            st.lists(st.none() | values, min_size=rows, max_size=rows).map(
                lambda found, kind=kind: pa.array(found, kind)
            )
        )
        arrays[f"{name} {number}"] = cells
    return pa.table(arrays)


@pytest.mark.slow
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    table=tables(),
    group=st.integers(1, 12),
    shards=st.integers(1, 5),
    compression=st.sampled_from(["none", "snappy", "gzip", "zstd", "brotli", "lz4"]),
    version=st.sampled_from(["1.0", "2.0"]),
)
def test_any_table_in_any_cut(table, group, shards, compression, version):
    """What TensorFlow parses is what pyarrow's own reader has."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        path = write_parquet(
            folder / "a.parquet",
            table,
            row_group_size=group,
            compression=compression,
            data_page_version=version,
        )
        convert(job_of(path, folder / "out", plan=("num_shards", shards)))
        rows = pq.read_table(path).to_pylist()
        for record, row in zip(read_output(folder / "out"), rows, strict=True):
            feature = Example.FromString(record).features.feature
            assert set(feature) == {k for k, value in row.items() if value is not None}
            for name, value in feature.items():
                found = list(getattr(value, value.WhichOneof("kind")).value)
                cell = row[name] if isinstance(row[name], list) else [row[name]]
                wanted = [c.encode() if isinstance(c, str) else c for c in cell]
                np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("damage", [False, True])
def test_a_row_of_a_batch_is_traced_to_its_row_in_the_file(tmp_path, damage):
    values = [str(n).encode() if n % 9 else b"\xff" for n in range(900)]
    values = [value for value in values if damage or value != b"\xff"]
    table = pa.table({"text": pa.array(values, pa.binary()).view(pa.string())})
    path = write_parquet(
        tmp_path / "a.parquet", table, row_group_size=150, use_dictionary=False
    )
    if damage:
        flip(path, page_offset(path, 2, 0))
    options = {
        "plan": ("num_shards", 3),
        "on_corrupt": "skip",
        "records": RecordOptions(record="column:text"),
        "max_corrupt": 200,
    }
    convert(job_of(path, tmp_path / "out", **options))
    dataset = loader.open(tmp_path / "out")
    batches = loader.global_batches(dataset, batch_size=7, shuffle="none")
    assert len(dataset) == (800 - 134 if damage else 800)
    for step in range(0, len(dataset) // 7, 3):
        location = locate(batches, step, 2)
        assert (location.source_path, location.source_format) == (str(path), "parquet")
        (record,) = batches.read(step, slice(2, 3))
        assert values[location.source_record] == record
