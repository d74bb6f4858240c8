"""The records that two splits share, and the result of `gristmill diff`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np

from gristmill.dataset.base.digest import RecordsDigest
from gristmill.loader.provenance.locate import locate_record
from gristmill.loader.provenance.source_fields import SourcePlace
from gristmill.pipelines.diff.compared_split import ComparedSplit
from gristmill.pipelines.diff.differing import (
    Change,
    Int64,
    Records,
    differing,
    keys_of,
    match_preferred,
)
from gristmill.pipelines.text.formatting import plural, size_text

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


_FILES_SHOWN = 20


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """A difference, and the splits that it is between.

    Attributes:
        before: The first split.
        after: The second split.
        difference: What they have in common, and what only one has.
    """

    before: ComparedSplit
    after: ComparedSplit
    difference: Difference

    @property
    def _changes(self) -> tuple[tuple[str, ComparedSplit, Change], ...]:
        found = self.difference
        return (
            ("removed", self.before, found.removed),
            ("added", self.after, found.added),
        )

    def text(self) -> str:
        """Returns the difference in lines."""
        found = self.difference
        lines = [
            f"before   {_name(self.before)}: {_counted(self.before.digest)}",
            f"after    {_name(self.after)}: {_counted(self.after.digest)}",
            f"kept     {_counted(found.kept)}",
        ]
        for what, side, change in self._changes:
            lines.append(f"{what:<8} {_counted(change.digest)}")
            files = files_of(side, change)
            lines += [
                f"           {records:,} of {path or 'files that are not known'}"
                for path, records in files[:_FILES_SHOWN]
            ]
            if len(files) > _FILES_SHOWN:
                more = f"{len(files) - _FILES_SHOWN:,} more: --json has all"
                lines.append(f"           and {more}")
        if (counts := self._packed) is not None:
            lines += [
                f"{name:<8} {before:,} before, {after:,} after"
                for name, (before, after) in counts.items()
            ]
        read = "no record"
        if found.records_read:
            read = plural(found.records_read, "record") + ", for their lengths"
        indexes = f"the indexes of {plural(found.indexes, 'shard')}"
        return "\n".join([*lines, f"read     {indexes}, and {read}"])

    @property
    def _packed(self) -> dict[str, tuple[int, int]] | None:
        """What packed rows hold before and after; None of other records."""
        both = self.before.table.packed_total(), self.after.table.packed_total()
        if both[0] is None or both[1] is None:
            return None
        return {
            "documents": (both[0].documents, both[1].documents),
            "tokens": (both[0].tokens, both[1].tokens),
        }

    def as_dict(self, *, with_list: bool) -> dict[str, Any]:
        """Returns the difference for JSON; `with_list` each record that differs."""
        found = self.difference
        fields = {
            name: {
                "dataset": side.dataset.path,
                "split": side.dataset.split,
                "edition": side.dataset.edition,
                **_digest(side.digest),
            }
            for name, side in (("before", self.before), ("after", self.after))
        }
        fields["kept"] = _digest(found.kept)
        for what, side, change in self._changes:
            fields[what] = _digest(change.digest) | {
                "files": [
                    {"path": path, "records": records}
                    for path, records in files_of(side, change)
                ]
            }
            if with_list:
                fields[what]["list"] = [
                    {"record": record, "source": source}
                    for record, source in _listed(side, change)
                ]
        if (counts := self._packed) is not None:
            for place, name in enumerate(("before", "after")):
                fields[name] |= {what: pair[place] for what, pair in counts.items()}
        return fields | {
            "indexes_read": found.indexes,
            "records_read": found.records_read,
        }

    def lines(self) -> Iterator[str]:
        """Yields a line for each record that differs: its number, and its source."""
        for what, side, change in self._changes:
            for record, source in _listed(side, change):
                yield f"{what} {record}" + (f" {source}" if source else "")


def files_of(side: ComparedSplit, change: Change) -> list[tuple[str | None, int]]:
    """Returns the source files of records, and how many are of each; most first.

    None stands for all files that are not known.
    """
    found = side.sources(change.records)
    numbers, counts = np.unique(found.numbers, return_counts=True)
    names = [found.names[n] if n >= 0 else None for n in numbers.tolist()]
    rows = zip(names, counts.tolist(), strict=True)
    return sorted(rows, key=lambda row: (-row[1], row[0] is None, row[0] or ""))


def place_text(place: SourcePlace) -> str | None:
    """Returns a source as FILE@PLACE, FILE where the place is not known, or None."""
    if place.source_path is None:
        return None
    for number in (place.source_record, place.source_offset_bytes):
        if number is not None:
            return f"{place.source_path}@{number}"
    return place.source_path


def _listed(side: ComparedSplit, change: Change) -> Iterator[tuple[int, str | None]]:
    for record in change.records.tolist():
        yield record, place_text(locate_record(side.dataset, record))


def _name(side: ComparedSplit) -> str:
    dataset = side.dataset
    return f"{dataset.path}, split {dataset.split}, edition {dataset.edition}"


def _counted(digest: RecordsDigest) -> str:
    text = plural(digest.records, "record")
    if digest.records:
        text += f", {size_text(digest.raw_bytes)}, digest {digest.hex}"
    return text


def _digest(digest: RecordsDigest) -> dict[str, Any]:
    return {
        "records": digest.records,
        "raw_bytes": digest.raw_bytes,
        "records_digest": digest.hex,
    }
