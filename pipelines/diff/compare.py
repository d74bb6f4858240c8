"""The records that two splits share: by tables of shards, then by indexes.

Shards with equal digests hold the same records; of the others the indexes have the
checksum of every record.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.pipelines.diff.compared_split import ComparedSplit
from gristmill.pipelines.diff.differing import (
    Change,
    Int64,
    Records,
    differing,
    keys_of,
    match_preferred,
)

_CONTENT = ("records", "raw_bytes", "digest_low", "digest_high")
_FILE = ("file_bytes", "file_crc32c")
_PART_RECORDS = 1 << 25  # Each takes some 100 bytes.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Difference:
    """What two splits have in common, and what only one has.

    Attributes:
        kept: The digest of the records that both have.
        removed: The records that only the first has.
        added: The records that only the second has.
        indexes: How many indexes of shards had to be read.
        records_read: How many records had to be read, as no index has their lengths.
    """

    kept: RecordsDigest
    removed: Change
    added: Change
    indexes: int = 0
    records_read: int = 0


def compare(
    before: ComparedSplit, after: ComparedSplit, *, part_records: int = _PART_RECORDS
) -> Difference:
    """Compares the records of two splits, in whatever order each has them.

    A record is counted as often as it is there. Of equal ones of which the other split
    has some, those of other files and the last ones are removed, or added.

    Args:
        before: The first split.
        after: The second split.
        part_records: Records of both to look at at once, by their checksums. Each such
            part takes a pass over the indexes.
    """
    sides = before, after
    shards = _changed_shards(before, after)
    digests = [side.table.digest(own) for side, own in zip(sides, shards, strict=True)]
    if digests[0] == digests[1]:  # The same records, in other shards.
        none = Change(records=np.empty(0, np.int64), digest=RecordsDigest())
        return Difference(kept=before.digest, removed=none, added=none)
    if not all(digest.records for digest in digests):
        removed, added = (
            Change(records=side.records_of(own), digest=digest)
            for side, own, digest in zip(sides, shards, digests, strict=True)
        )
        return Difference(
            kept=before.digest - removed.digest, removed=removed, added=added
        )
    files: dict[str, int] = {}
    parts = -(-sum(digest.records for digest in digests) // part_records)
    lists = [
        Records(
            digest=digest,
            part=functools.partial(side.part, own, parts=parts, files=files),
            lengths_of=side.lengths,
        )
        for side, own, digest in zip(sides, shards, digests, strict=True)
    ]
    removed, added = differing(lists[0], lists[1], parts=parts)
    return Difference(
        kept=before.digest - removed.digest,
        removed=removed,
        added=added,
        indexes=sum(map(len, shards)),
        records_read=sum(side.records_read for side in sides),
    )


def _changed_shards(before: ComparedSplit, after: ComparedSplit) -> list[Int64]:
    """Returns the shards whose records are not those of a shard of the other split."""
    tables = before.table, after.table
    contents, files = (
        keys_of(*([table.columns[name] for name in names] for table in tables))
        for names in (_CONTENT, (*_CONTENT, *_FILE))
    )
    kept = match_preferred(files, contents)
    return [
        np.flatnonzero(~mask & (table.records > 0))
        for mask, table in zip(kept, tables, strict=True)
    ]
