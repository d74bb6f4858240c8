"""Sizes on the command line."""

import pytest

from gristmill.dataset.errors import InputError
from gristmill.pipelines.options.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("1.5MB", 1_500_000),
        ("256MiB", 256 << 20),
        ("2 GiB", 2 << 30),
        ("1tb", 10**12),
        ("1PiB", 1 << 50),
    ],
)
def test_sizes(text, size_bytes):
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize("text", ["", "MiB", "-1", "1XB", "1 2", "1e3", "0x10"])
def test_what_is_no_size(text):
    with pytest.raises(InputError, match="not a size"):
        parse_size(text)
