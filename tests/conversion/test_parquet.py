"""Parquet files through whole conversions, compared with pyarrow and TensorFlow."""

from __future__ import annotations

import pathlib
import tempfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gristmill import loader
from gristmill.loader.provenance.locate import locate
from gristmill.transforms.sources.formats import RecordOptions
from tests.support.conversion import convert, job_of, read_output
from tests.support.examples import Example
from tests.support.parquet_files import flip, page_offset, write_parquet

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
