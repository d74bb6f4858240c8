import base64
import datetime
import decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gristmill.dataset.base.errors import CorruptRecordError
from gristmill.dataset.formats.parquet_file import ParquetFile, difference

TYPES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.null()),
    *(pa.string(), pa.large_string(), pa.string_view(), pa.binary()),
    *(pa.large_binary(), pa.binary_view(), pa.binary(3), pa.date32(), pa.date64()),
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    *(pa.timestamp("us", "UTC"), pa.time32("s"), pa.time32("ms"), pa.time64("us")),
    *(pa.time64("ns"), pa.duration("s"), pa.duration("ns"), pa.decimal128(9, 2)),
    *(pa.decimal128(30), pa.decimal256(50), pa.dictionary(pa.int8(), pa.string())),
    pa.dictionary(pa.int32(), pa.int64()),
    *(pa.list_(pa.int8()), pa.large_list(pa.string()), pa.list_(pa.uint32(), 2)),
    pa.map_(pa.string(), pa.uint8()),
    pa.struct([("a", pa.int8()), ("b", pa.list_(pa.struct([("c", pa.date64())])))]),
    *(
        kind()
        for kind in (getattr(pa, "uuid", None), getattr(pa, "json_", None))
        if kind
    ),
]


def read(path):
    return ParquetFile(str(path), path.stat().st_size, None)


@pytest.mark.parametrize("version", ["1.0", "2.4", "2.6"])
def test_no_type_that_pyarrow_writes_is_another_when_it_is_read(tmp_path, version):
    path = tmp_path / "a.parquet"
    for number, kind in enumerate(TYPES):
        table = pa.table({"a": pa.nulls(3, kind), "b": pa.nulls(3, pa.list_(kind))})
        pq.write_table(table, path, version=version)
        with read(path) as file:
            assert file.places.rows == 3, (number, kind)
    values = {
        "a": [decimal.Decimal("1.5"), None],
        "b": [datetime.datetime(2020, 1, 1), None],
        "c": [{"x": [1, 2]}, None],
    }
    options = {"use_deprecated_int96_timestamps": True}
    pq.write_table(pa.table(values), path, version=version, **options)
    read(path).close()


@pytest.mark.parametrize(
    ("kept", "found"),
    [
        (pa.schema({"text": pa.string()}), pa.schema({"texu": pa.string()})),
        (pa.schema({"a": pa.float64()}), pa.schema({"a": pa.int64()})),
        (pa.schema({"a": pa.list_(pa.int8())}), pa.schema({"a": pa.int8()})),
        (
            pa.schema({"a": pa.struct([("b", pa.int8())])}),
            pa.schema({"a": pa.struct([("c", pa.int8())])}),
        ),
    ],
)
def test_other_names_and_kinds_are_seen(tmp_path, kept, found):
    text = base64.b64encode(kept.serialize().to_pybytes())
    before, after = difference(found, {b"ARROW:schema": text})
    assert before == f"{kept.names[0]}: {kept.types[0]}"
    assert after == f"{found.names[0]}: {found.types[0]}"
    assert difference(kept, {b"ARROW:schema": text}) is None
    assert difference(pa.schema([]), {b"ARROW:schema": text}) is None
    assert difference(found, None) is None
    assert difference(found, {b"ARROW:schema": text[:-20]}) is not None


def test_a_damaged_name_in_a_footer_is_an_error(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"column_of_text": ["a"]}), path, write_statistics=False)
    data = path.read_bytes()
    assert data.count(b"column_of_text") == 2
    path.write_bytes(data.replace(b"column_of_text", b"column_of_texu"))
    with pytest.raises(CorruptRecordError, match="something else") as caught:
        read(path)
    assert caught.value.expected == "column_of_text: string"
    assert caught.value.got == "column_of_texu: string"
