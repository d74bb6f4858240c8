"""The jobs that options describe, and sizes among the options."""

from __future__ import annotations

import pytest

from gristmill.dataset.base.errors import InputError
from gristmill.pipelines.options.conversion_jobs import conversion_of, parse_size
from gristmill.pipelines.options.job_options import ConvertOptions

pytestmark = pytest.mark.usefixtures("no_cloud")


def test_an_edition_is_no_split_to_write():
    options = ConvertOptions(
        input=("gs://a/b",), output="gs://a/c", split="train.e00002"
    )
    with pytest.raises(InputError, match="split name is not usable"):
        conversion_of(options)


@pytest.mark.parametrize(
    "text", ["", "0", "0.5B", "MiB", "-1", "1XB", "1 2", "1e3", "0x10"]
)
def test_what_is_no_size(text):
    with pytest.raises(InputError, match="not a size") as caught:
        parse_size(text, "--cache-bytes")
    assert caught.value.cure == "give another --cache-bytes"
