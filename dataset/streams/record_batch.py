"""Several records of an input, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class RecordBatch(NamedTuple):
    """Records that follow one another in a file. All lists are [records].

    Attributes:
        places: Where each is, ascending: the offset of its first byte in the
            (decompressed) file, or its number among the rows or records of the file.
        records: The records.
        crc32cs: Their (unmasked) checksums, checked if they came with one.
    """

    places: Sequence[int]
    records: list[bytes]
    crc32cs: list[int]
