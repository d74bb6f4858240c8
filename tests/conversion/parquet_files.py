"""Parquet files for tests, and what pyarrow's own reader says of them."""

from __future__ import annotations

import pathlib
import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def some_table(rows: int, *, seed: int = 0) -> pa.Table:
    """Returns columns of several types, with nulls and lists."""
    chosen = random.Random(seed)
    words = [f"word{number}" for number in range(50)]
    return pa.table(
        {
            "text": [
                " ".join(chosen.choices(words, k=chosen.randrange(1, 30)))
                for _ in range(rows)
            ],
            "number": list(range(rows)),
            "score": [
                None if chosen.random() < 0.1 else chosen.random() for _ in range(rows)
            ],
            "tags": [chosen.choices("abc", k=chosen.randrange(4)) for _ in range(rows)],
        }
    )


def write_parquet(path: pathlib.Path, table: pa.Table, **options: Any) -> pathlib.Path:
    """Writes a file with checksums of its pages and small pages, by default."""
    path.parent.mkdir(parents=True, exist_ok=True)
    defaults = {"write_page_checksum": True, "data_page_size": 1024}
    pq.write_table(table, path, **defaults | options)
    return path


def flip(path: pathlib.Path, offset: int, *, bit: int = 0) -> None:
    """Flips one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(data)


def page_offset(path: pathlib.Path, group: int, column: int) -> int:
    """Returns a place within the pages of a column of a row group."""
    chunk = pq.read_metadata(path).row_group(group).column(column)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    return int(begin) + int(chunk.total_compressed_size) * 9 // 10
