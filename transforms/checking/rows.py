"""Verifying the rows of a packed shard: every document is joined from its pieces."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import google_crc32c

from gristmill.dataset.base.errors import CorruptShardError
from gristmill.dataset.base.findings import (
    UNREADABLE,
    Finding,
    finding_of,
    wrong_size,
)
from gristmill.dataset.metadata import layout
from gristmill.dataset.packed.counts import PackedCounts
from gristmill.dataset.packed.join_documents import RECOUNTED, DocumentJoiner
from gristmill.dataset.packed.row_format import RowFormat
from gristmill.dataset.packed.segment_index import SegmentIndex
from gristmill.dataset.storage.lookup import storage_for


class PackedShard(NamedTuple):
    """What the table of shards says of a shard of packed rows.

    Attributes:
        row_format: How its rows are encoded.
        counts: What they hold.
        segments_bytes: Size of its segment index.
        segments_crc32c: crc32c of that whole file.
    """

    row_format: RowFormat
    counts: PackedCounts
    segments_bytes: int
    segments_crc32c: int


class RowsCheck:
    """Compares the rows of a shard with its segment index and the table of shards.

    It stops at the first contradiction between rows and index: what follows would be
    guessed. Memory: some 80 bytes a piece while the segment index is decoded, then 35.

    Args:
        dataset: The dataset's directory.
        path: The shard, relative to it.
        packed: What the table says.
        found: Takes findings.
    """

    def __init__(
        self,
        dataset: str,
        path: str,
        packed: PackedShard,
        found: Callable[[Finding], None],
    ):
        self._path, self._packed, self._found = path, packed, found
        self._segments = layout.segments_path(path)
        self._index = self._open(dataset)
        self._joiner = None
        if self._index is not None:
            self._joiner = DocumentJoiner(packed.row_format, self._index)

    def _open(self, dataset: str) -> SegmentIndex | None:
        place = layout.join(dataset, self._segments)
        content = storage_for(dataset).load(place)
        if content is None:
            self._found(Finding(self._segments, "segment index is missing"))
            return None
        data, packed = content.data, self._packed
        if len(data) != packed.segments_bytes:
            expected, what = packed.segments_bytes, "segment index"
            self._found(wrong_size(self._segments, expected, len(data), what=what))
        elif (got := google_crc32c.value(data)) != packed.segments_crc32c:
            self._found(
                Finding(
                    self._segments,
                    "segment index is not the file that was written",
                    expected=f"crc32c {packed.segments_crc32c:#010x}",
                    got=f"{got:#010x}",
                )
            )
        try:
            index = SegmentIndex.decode(data, where=place)
        except UNREADABLE as error:
            self._found(finding_of(self._segments, error))
            return None
        expected, documents = packed.counts.documents, index.documents
        if documents != expected:
            self._found(
                Finding(
                    self._segments,
                    "segment index has not the documents that the table of shards has",
                    expected=f"{expected:,}",
                    got=f"{documents:,}",
                )
            )
        return index

    def add(self, records: Sequence[bytes]) -> None:
        """Takes the next rows."""
        if self._joiner is None:
            return
        try:
            self._joiner.add(records)
        except CorruptShardError as error:
            self._joiner = None
            self._found(self._finding(error))

    def lose(self) -> None:
        """Gives up joining documents: rows cannot be decoded."""
        self._joiner = None

    def finish(self) -> PackedCounts | None:
        """Compares what all rows hold with the table of shards.

        Returns:
            What they hold, and of it what only the table tells; None if documents
            could not be joined, for which there is a finding.
        """
        if self._joiner is None:
            return None
        try:
            joined = self._joiner.finish().counts
        except CorruptShardError as error:
            self._found(self._finding(error))
            return None
        counts = self._packed.counts
        recounted = {n: getattr(joined, n) for n in RECOUNTED}
        wrong = [n for n, got in recounted.items() if getattr(counts, n) != got]
        if wrong == ["digest_spans"]:
            self._found(
                Finding(
                    self._path,
                    "messages are not where they were packed, or not trained as then",
                    expected=f"digest {counts.digest_spans:016x} of their spans",
                    got=f"{joined.digest_spans:016x}",
                )
            )
        elif wrong and all(name.startswith("digest") for name in wrong):
            self._found(
                Finding(
                    self._path,
                    "documents are not those that were packed: as many, and others",
                    expected=f"digest {counts.digest.hex}",
                    got=joined.digest.hex,
                )
            )
        elif wrong:
            names = [name for name in wrong if not name.startswith("digest")]
            self._found(
                Finding(
                    self._path,
                    "rows do not hold what the table of shards says",
                    expected=_listed(counts, names),
                    got=_listed(joined, names),
                )
            )
        return dataclasses.replace(counts, **recounted)

    def _finding(self, error: CorruptShardError) -> Finding:
        finding = finding_of(self._path, error)
        return dataclasses.replace(finding, what=f"{error.where}: {finding.what}")


def _listed(counts: PackedCounts, names: Sequence[str]) -> str:
    shown = (f"{getattr(counts, name):,} {name.replace('_', ' ')}" for name in names)
    return ", ".join(shown)
