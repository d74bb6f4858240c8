import pyarrow as pa
import pytest

from gristmill.dataset.base.errors import InputError, RowError
from gristmill.transforms.tables.example_rows import check_column, one_column

IMAGES = [{"bytes": b"JPEG", "path": "a.jpg"}, {"bytes": b"", "path": None}]
BATCH = pa.record_batch(
    {
        "text": ["a", "é"],
        "view": pa.array(["a" * 20, "b"], pa.string_view()),
        "raw": [b"\xff", b""],
        "kind": pa.array(["x", "x"]).dictionary_encode(),
        "image": IMAGES,
        "n": [1, 2],
        "list": [["a"], ["b"]],
        "map": pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int8())),
        "hole": ["a", None],
        "null": pa.nulls(2),
        "struct": [{"x": "a"}, {"x": "b"}],
    }
)


@pytest.mark.parametrize("name", ["n", "list", "map", "none", "image.size"])
def test_columns_that_cannot_be_records(name):
    with pytest.raises(InputError, match=r"cannot be|cannot become|no such column"):
        check_column(BATCH.schema, name)


@pytest.mark.parametrize("name", ["hole", "image.path"])
def test_a_row_without_a_value_is_named(name):
    with pytest.raises(RowError, match="no value in a row") as error:
        one_column(BATCH, name)
    assert (error.value.row, error.value.column) == (1, name)


def test_two_columns_of_one_name():
    batch = pa.RecordBatch.from_arrays([pa.array(["a"]), pa.array(["b"])], ["x", "x"])
    with pytest.raises(InputError, match="two columns"):
        one_column(batch, "x")
