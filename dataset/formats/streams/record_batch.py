"""Several records of an input, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class RecordBatch(NamedTuple):
    """Records that follow one another in a file. Lists are [records].

    Attributes:
        places: Place of each, ascending: the offset of its first byte in the
            (decompressed) file, or its number among the rows or records of the file.
        records: The records.
        crc32cs: Their (unmasked) checksums, checked if they came with one.
        null_rows: Number of rows among them that were left out for their nulls.
    """

    places: Sequence[int]
    records: list[bytes]
    crc32cs: list[int]
    null_rows: int = 0
