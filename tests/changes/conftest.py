"""Files of the records `A`, `B` and `C`, and a dataset of the first of them."""

import pytest

from tests.changes.changes import A, B, C, convert, write_inputs


@pytest.fixture
def inputs(tmp_path):
    """The files by their names `a`, `b` and `c`."""
    records = {"a": A, "b": B, "c": C}
    return {name: write_inputs(tmp_path, name, records[name]) for name in records}


@pytest.fixture
def a(inputs):
    return inputs["a"]


@pytest.fixture
def b(inputs):
    return inputs["b"]


@pytest.fixture
def c(inputs):
    return inputs["c"]


@pytest.fixture
def there(output, a):
    """A dataset of the records `A`."""
    convert(output, a)
    return output
